"""The state of one GPU that its sources and the thread that reads them share."""

from dataclasses import dataclass

from agent.model import Reading, Reason

ABNORMAL = frozenset({Reason.FAILED, Reason.STALLED})
"""Reasons of a call that should have been answered: an unknown error, a driver's timeout."""

WINDOW = 30.0
"""Seconds of each of the two windows over which the longest read is kept."""


@dataclass(slots=True, eq=False)
class GpuState:
    """What sources find out about their GPU, and what others of its reads depend on."""

    has_processes: bool = False  # a compute process is on it: dear reads run more often
    lost_at: float | None = None  # when it no longer answered, on the agent's clock
    links: tuple[int, ...] | None = None  # its NVLinks, once they were asked
    woken: bool = False
    doubtful: bool = False

    def wake(self) -> None:
        """The GPU began or ceased to work: reads that ask for it run at once."""
        self.woken = True

    def doubt(self) -> None:
        """A refusal that may not last decided what is read: query the GPU again."""
        self.doubtful = True


@dataclass(slots=True, eq=False)
class GpuAnswers:
    """How the GPU answers: written by the one thread that reads it, read by any."""

    failures: int = 0  # reads in which a call failed that is not refused as a rule
    longest: tuple[float, float] = (0.0, 0.0)  # read (s), of the window before and of this one
    begun: float = 0.0  # this window

    def note(self, reading: Reading, now: float) -> bool:
        """Take in a read that has just ended; whether a call of it failed."""
        if now - self.begun > WINDOW:
            self.longest = (self.longest[1], 0.0)
            self.begun = now
        took = now - reading.at
        if took > self.longest[1]:
            self.longest = (self.longest[0], took)
        failed = any(absence.reason in ABNORMAL for absence in reading.absences)
        self.failures += failed
        return failed
