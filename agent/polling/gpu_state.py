"""GPU state shared by sources, reading threads, and other components."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.hardware.nvml import Nvml
from agent.model import Absence, GpuIdentity, Labels, Reason


@dataclass(slots=True)
class GpuProcesses:
    """The compute processes of every GPU by its labels (index, UUID).

    The NVML worker writes and the host worker reads it. Each entry is replaced as a whole, so
    neither worker waits for the other.
    """

    _by_gpu: dict[Labels, tuple[int, ...]] = field(default_factory=dict)
    _divided: dict[Labels, tuple[str, ...]] = field(default_factory=dict)

    def set_processes(self, gpu: Labels, pids: Iterable[int]) -> None:
        self._by_gpu[gpu] = tuple(pids)

    def divide(self, gpu: Labels, uuids: Iterable[str]) -> None:
        self._divided[gpu] = tuple(uuids)

    @property
    def divided(self) -> bool:
        """True if a GPU is in MIG mode."""
        return bool(self._divided)

    def parents(self) -> dict[str, str]:
        parents = {gpu[1]: gpu[1] for gpu in list(self._by_gpu)}
        for gpu, uuids in list(self._divided.items()):
            parents.update(dict.fromkeys(uuids, gpu[1]))
        return parents

    def keep(self, gpus: Iterable[Labels]) -> None:
        """Keep only GPUs that respond, and forget GPUs that were lost or whose index has
        changed."""
        kept = set(gpus)
        for table in (self._by_gpu, self._divided):
            for gone in table.keys() - kept:
                del table[gone]

    @property
    def at_rest(self) -> bool:
        """True if there are GPUs and none of them has a process."""
        there = list(self._by_gpu.values())
        return bool(there) and not any(there)

    def __iter__(self) -> Iterator[tuple[Labels, tuple[int, ...]]]:
        return iter(list(self._by_gpu.items()))


WINDOW_SECONDS = 30.0  # Seconds per window; the longest visit is kept for two windows


@dataclass(slots=True, eq=False)
class GpuState:
    """GPU state that is detected by sources and controls the GPU's other reads."""

    has_processes: bool = False  # a compute process uses it, so costly reads run more often
    lost_at: float | None = None  # when it stopped responding, on the agent's clock
    sm_clock: float | None = None  # MHz at the last tick; None if the read failed
    woken: bool = False  # it started or stopped working: run_on_wake reads run at once
    doubtful: bool = False  # its reads follow from a temporary refusal: query it again


@dataclass(slots=True, eq=False)
class GpuAnswers:
    """Response statistics of a GPU, written only by its reading thread and read by any thread."""

    failures: int = 0  # reads with a failed call, except permanent refusals
    timeouts: int = 0  # driver timeouts in this turn
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
    """The discovered GPUs; immutable and replaced as a whole."""

    generation: int = 0  # grows when the driver is connected and when a GPU returns
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)  # loss time (s) by UUID
    not_answering: Mapping[str, str] = field(default_factory=dict)  # reason by UUID
    unmet: int = 0  # unidentified GPUs whose first calls have not returned
    missing: tuple[int, ...] = ()  # indices counted by the driver whose GPUs never responded
    most: int = 0  # most GPUs that have responded since the agent started
    reason: Reason = Reason.STALLED  # why the driver is disconnected, ...
    why_not: str = "the driver has not responded yet"  # ... as text; empty while connected

    @property
    def connected(self) -> bool:
        return not self.why_not

    @property
    def answering(self) -> int:
        return len(self.gpus) - len(self.lost)


@dataclass(frozen=True, slots=True)
class EventSubscription:
    """The GPUs whose events a thread can wait for; a new generation requires a new subscription."""

    generation: int
    nvml: Nvml
    handles: dict[str, Any]  # NVML's device handles by UUID
