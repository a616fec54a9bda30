"""Whether the work on a GPU comes as requests do: in bursts of no even height, and in no rhythm.

The activity of a trainer that waits for its data or for a peer is the same from second to second
(coefficient of variation 0.00 to 0.08 on tapes), or repeats; that of servers is not (0.31 to 1.5).
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import fmean, pstdev

from agent.jobs.autocorrelation import autocorrelation

KEPT, EVERY = 60, 5
"""Readings of activity that are kept, and after how many more they are judged again."""

STARTS, FEWEST = 30.0, 10
"""Seconds, and readings, from the first work that are no evidence: a job that starts is uneven."""

NEWEST, OF_NEWEST = 20.0, 8
"""Seconds, and readings at least, that must be uneven."""

BURST = 0.005
"""Activity from which a reading shows work: a thread that polls may copy a flag now and then."""

UNEVEN = 0.2
"""Coefficient of variation from which activity comes in bursts."""

RHYTHM = 0.7
"""Correlation with itself some readings later from which it repeats."""

REMEMBERED = 3600.0
"""Seconds after its last burst for which it is a server; what rests for longer may be forgotten."""


@dataclass(slots=True)
class Bursts:
    """Follows one GPU while the same processes are on it, from their first work: loading is no
    request."""

    _readings: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _began: float | None = None
    _worked: float = -inf
    _due: int = FEWEST
    _uneven: bool = False

    def take(self, activity: float, at: float) -> None:
        """Take in a reading (0-1) of the moment `at` (s), unless it is the one of before."""
        if activity >= BURST:
            self._began, self._worked = at if self._began is None else self._began, at
        if self._began is None or (self._readings and at <= self._readings[-1][0]):
            return
        self._readings.append((at, activity))
        self._due -= 1
        if self._due <= 0 and at - self._began >= STARTS:
            self._judge(at)

    def _judge(self, now: float) -> None:
        values = [value for _, value in self._readings]
        recent = sum(at > now - NEWEST for at, _ in self._readings)
        newest = values[-max(recent, OF_NEWEST) :]
        if max(newest) < BURST:  # a rest says nothing
            return
        self._due = EVERY
        self._uneven = pstdev(newest) >= UNEVEN * fmean(newest)
        if len(values) == KEPT:
            alike = autocorrelation(values, KEPT // 3).at_lag[2:]
            self._uneven &= max(alike) < RHYTHM

    def seen(self, now: float) -> bool:
        """Whether it has worked in bursts, within the last hour."""
        return self._uneven and now - self._worked <= REMEMBERED
