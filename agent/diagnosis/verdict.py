"""What can be said of a GPU's time at one tick."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where the time of a GPU goes."""

    IDLE = "idle"  # no compute process
    HELD = "held"  # a process that does nothing, for a while
    THROTTLED = "throttled"  # the clocks are held down
    STARVED = "starved"  # a process is there, and its GPU waits
    COMMUNICATING = "communicating"  # the GPU waits for a wire that carries its data
    BUSY = "busy"


class Cause(StrEnum):
    """Why the time goes there."""

    NONE = "none"
    THERMAL = "thermal"
    POWER = "power"
    RELIABILITY = "reliability"
    PCIE = "pcie"
    NVLINK = "nvlink"
    INFINIBAND = "infiniband"
    PEER = "peer"
    DISK = "disk"
    NETWORK = "network"
    CPU = "cpu"
    HOST_THREAD = "host_thread"
    UNKNOWN = "unknown"


CAUSES: dict[State, tuple[Cause, ...]] = {
    State.IDLE: (Cause.NONE,),
    State.HELD: (Cause.NONE,),
    State.THROTTLED: (Cause.THERMAL, Cause.POWER, Cause.RELIABILITY),
    State.STARVED: (
        Cause.PCIE,
        Cause.PEER,
        Cause.DISK,
        Cause.NETWORK,
        Cause.CPU,
        Cause.HOST_THREAD,
        Cause.UNKNOWN,
    ),
    State.COMMUNICATING: (Cause.NVLINK, Cause.INFINIBAND, Cause.PCIE),
    State.BUSY: (Cause.NONE,),
}
"""The causes that each state can have."""

Pair = tuple[State, Cause]
PAIRS: tuple[Pair, ...] = tuple((state, cause) for state, its in CAUSES.items() for cause in its)
BUSY: Pair = (State.BUSY, Cause.NONE)


class Grade(StrEnum):
    """With what eyes a verdict was reached."""

    GPM = "gpm"  # Hopper and newer: activity of the engines and of the multiprocessors
    NVML = "nvml"  # utilisation, which counts copies and spinning too, and power


@dataclass(frozen=True, slots=True)
class Verdict:
    """One GPU at one tick: state, cause, and the figures that decided it.

    `lost` is the share of the tick, 0-1, that counts for this pair; the rest of it was busy.
    """

    state: State
    cause: Cause
    grade: Grade
    lost: float = 1.0
    evidence: tuple[str, ...] = ()  # what decided it, in words with figures, the weightiest first
    doubts: tuple[str, ...] = ()  # what could not be seen, and would have been asked

    @property
    def pair(self) -> Pair:
        return self.state, self.cause
