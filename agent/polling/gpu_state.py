"""State of the GPUs that sources, the threads that read them and others share."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.hardware.nvml import Nvml
from agent.model import Absence, GpuIdentity, Labels, Reason


@dataclass(slots=True)
class GpuProcesses:
    """The compute processes of every GPU by its labels (index, UUID).

    Written by the worker that reads NVML and read by the worker that reads the host; each entry is
    replaced whole, so neither waits for the other.
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
        """Keep only the GPUs that answer: forget those that are lost, and those whose index
        moved."""
        kept = set(gpus)
        for gone in self._by_gpu.keys() - kept:
            del self._by_gpu[gone]
        for gone in self._divided.keys() - kept:
            del self._divided[gone]

    @property
    def at_rest(self) -> bool:
        """True if there are GPUs, and no process is on any of them."""
        there = list(self._by_gpu.values())
        return bool(there) and not any(there)

    def __iter__(self) -> Iterator[tuple[Labels, tuple[int, ...]]]:
        return iter(list(self._by_gpu.items()))


WINDOW_SECONDS = 30.0  # Seconds of each of the two windows over which the longest visit is kept


@dataclass(slots=True, eq=False)
class GpuState:
    """State of a GPU that sources detect, and on which its other reads depend."""

    has_processes: bool = False  # a compute process is on it: costly reads run more often
    lost_at: float | None = None  # when it no longer answered, on the agent's clock
    sm_clock: float | None = None  # MHz at the last tick, None if there was no answer
    woken: bool = False  # it began or ceased to work: reads that ask for it run at once
    doubtful: bool = False  # a refusal that may not last decided the reads: query the GPU again


@dataclass(slots=True, eq=False)
class GpuAnswers:
    """Record of the GPU's answers: only its reading thread writes it, any thread reads it."""

    failures: int = 0  # reads in which a call failed that is not refused as a rule
    timeouts: int = 0  # of this turn: the driver gave up waiting
    longest: tuple[float, float] = (0.0, 0.0)  # visit (real s), of the window before and of this
    begun: float = 0.0  # this window

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


def count_timeouts(gpus: Collection[GpuAnswers]) -> None:
    """Count the timeouts of this turn as failures, unless all GPUs have some: the driver hangs."""
    of_gpus = not all(one.timeouts for one in gpus)
    for one in gpus:
        one.failures += one.timeouts * of_gpus
        one.timeouts = 0


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs that were found; replaced whole, never changed."""

    generation: int = 0  # grows with each connection to the driver, and with each GPU found again
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    lost: Mapping[str, float] = field(default_factory=dict)  # since when (s), by UUID
    not_answering: Mapping[str, str] = field(default_factory=dict)  # its words, by UUID
    unmet: int = 0  # GPUs whose first calls have not returned, so that they are not known
    missing: tuple[int, ...] = ()  # numbers that the driver counts, of GPUs that were never met
    most: int = 0  # the most GPUs that answered since the agent started
    reason: Reason = Reason.STALLED  # why there is no driver, ...
    why_not: str = "the driver has not responded yet"  # ... and in words; empty while connected

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
