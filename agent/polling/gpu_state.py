"""Data about GPUs that the threads of the agent share."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.hardware.nvml import Nvml
from agent.model import Absence, GpuIdentity, Labels, Reason


@dataclass(slots=True)
class GpuProcesses:
    """The PIDs of the compute processes on every GPU, and the UUIDs of the MIG devices of each GPU
    in MIG mode, by GPU labels (index, UUID).

    The NVML worker writes the entries, and the host worker reads them. Each entry is replaced as a
    whole, so that no lock is necessary.
    """

    by_gpu: dict[Labels, tuple[int, ...]] = field(default_factory=dict)
    divided: dict[Labels, tuple[str, ...]] = field(default_factory=dict)

    def parents(self) -> dict[str, str]:
        parents = {gpu[1]: gpu[1] for gpu in list(self.by_gpu)}
        for gpu, uuids in list(self.divided.items()):
            parents.update(dict.fromkeys(uuids, gpu[1]))
        return parents

    def keep(self, gpus: Iterable[Labels]) -> None:
        """Remove the entries of all GPUs that are not in `gpus`, such as lost GPUs."""
        kept = set(gpus)
        for table in (self.by_gpu, self.divided):
            for gone in table.keys() - kept:
                del table[gone]

    @property
    def at_rest(self) -> bool:
        """Whether there is at least one GPU, and no GPU has a process."""
        there = list(self.by_gpu.values())
        return bool(there) and not any(there)

    def __iter__(self) -> Iterator[tuple[Labels, tuple[int, ...]]]:
        return iter(list(self.by_gpu.items()))


WINDOW_SECONDS = 30.0  # Seconds per window; the longest visit is kept for two windows


@dataclass(slots=True, eq=False)
class GpuState:
    """State of a GPU that some reads set, and that determines when other reads of the GPU run."""

    has_processes: bool = False  # a compute process is present, so costly reads are frequent
    lost_at: float | None = None  # when the GPU was lost, on the agent's clock
    sm_clock: float | None = None  # MHz in the last tick; None if the read failed
    woken: bool = False  # work started or stopped: run_on_wake reads run at once
    doubtful: bool = False  # reads depend on a temporary refusal, so query it again


@dataclass(slots=True, eq=False)
class GpuAnswers:
    """Duration and failures of a GPU's driver calls, written by the thread that reads the GPU."""

    failures: int = 0  # reads with a failed call, excluding permanent refusals
    timeouts: int = 0  # timeouts of the driver in this turn
    longest: tuple[float, float] = (0.0, 0.0)  # visit (s) in the last two windows
    begun: float = 0.0  # start of the current window

    def took(self, seconds: float, now: float) -> None:
        if now - self.begun > WINDOW_SECONDS:
            self.longest = (self.longest[1], 0.0)
            self.begun = now
        self.longest = (self.longest[0], max(self.longest[1], seconds))

    def failed(self, absences: Iterable[Absence], *, ceased: bool) -> bool:
        reasons = {absence.reason for absence in absences}
        self.failures += ceased or Reason.FAILED in reasons
        self.timeouts += Reason.STALLED in reasons
        return not reasons.isdisjoint((Reason.FAILED, Reason.STALLED))


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The known GPUs at one time. An inventory is immutable. A change creates a new inventory."""

    generation: int = 0  # incremented when the driver connects or a GPU returns
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)  # loss time (s) by UUID
    not_answering: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """Last prompt response (s) and reason of each GPU that does not respond, by UUID."""
    unmet: tuple[GpuIdentity, ...] = ()  # without a UUID, as their first calls hang
    missing: tuple[int, ...] = ()  # indices counted by the driver without a response so far
    most: int = 0  # maximum number of GPUs that have responded so far
    reason: Reason = Reason.STALLED  # why the driver is not connected, ...
    why_not: str = "the driver has not responded yet"  # ... as text; empty while connected

    @property
    def connected(self) -> bool:
        return not self.why_not

    @property
    def answering(self) -> int:
        return len(self.gpus) - len(self.lost)


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """The GPUs whose NVML events the agent needs. A new `generation` requires a new event set."""

    generation: int
    nvml: Nvml
    handles: dict[str, Any]  # NVML's device handles, by UUID
