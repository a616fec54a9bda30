"""The state of one GPU that its sources and the thread that reads them share."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from agent.model import Absence, Reason

WINDOW = 30.0  # Seconds of each of the two windows over which the longest visit is kept


@dataclass(slots=True, eq=False)
class GpuState:
    """State of a GPU that sources detect, and on which its other reads depend."""

    has_processes: bool = False  # a compute process is on it: costly reads run more often
    lost_at: float | None = None  # when it no longer answered, on the agent's clock
    sm_clock: float | None = None  # MHz at the last tick, None where it was not answered
    woken: bool = False  # it began or ceased to work: reads that ask for it run at once
    doubtful: bool = False  # a refusal that may not last decided what is read: query it again


@dataclass(slots=True, eq=False)
class GpuAnswers:
    """Record of the GPU's answers: written by the one thread that reads it, read by any."""

    failures: int = 0  # reads in which a call failed that is not refused as a rule
    timeouts: int = 0  # of this turn: the driver gave up waiting
    longest: tuple[float, float] = (0.0, 0.0)  # visit (s), of the window before and of this one
    begun: float = 0.0  # this window

    def took(self, since: float, now: float) -> None:
        if now - self.begun > WINDOW:
            self.longest = (self.longest[1], 0.0)
            self.begun = now
        if now - since > self.longest[1]:
            self.longest = (self.longest[0], now - since)

    def failed(self, absences: Iterable[Absence]) -> bool:
        """Return whether a call of a read failed that should have been answered; count it then."""
        reasons = {absence.reason for absence in absences}
        self.failures += Reason.FAILED in reasons
        self.timeouts += Reason.STALLED in reasons
        return not reasons.isdisjoint((Reason.FAILED, Reason.STALLED))


def count_timeouts(gpus: Collection[GpuAnswers]) -> None:
    """Count those of this turn as failures, unless all GPUs have some: then the driver hangs."""
    of_gpus = not all(one.timeouts for one in gpus)
    for one in gpus:
        one.failures += one.timeouts * of_gpus
        one.timeouts = 0
