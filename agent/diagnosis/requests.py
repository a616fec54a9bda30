"""Detection of request-driven work on a GPU: bursts of uneven height, without a rhythm.

The activity of a trainer that waits for its data or for a peer is the same from second to second
(coefficient of variation 0.00 to 0.08 on tapes), or repeats; that of servers is not (0.31 to 1.5).
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import fmean

from agent.jobs.job import HOUR
from agent.jobs.pulse import autocorrelation

KEPT, NEWEST, STARTS = 60, 20, 30.0
"""Readings of activity that are kept, and of them the newest that must be uneven; and seconds from
the first work that are no evidence: a job that starts is uneven."""

BURST = 0.005
"""Activity from which a reading shows work: a thread that polls may copy a flag now and then."""

UNEVEN, RHYTHM = 0.2, 0.7
"""Coefficient of variation from which activity comes in bursts (of trainers 0.08 at most, of
servers 0.31 at least), and correlation with itself some readings later from which it repeats."""


@dataclass(slots=True)
class Bursts:
    """Follows one GPU while the same processes are on it, from their first work: loading is no
    request."""

    _readings: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    _began: float | None = None
    _worked: float = -inf
    _uneven: bool = False

    def take(self, activity: float, at: float) -> None:
        """Take in a reading (0-1) of the moment `at` (s), unless it is the one of before."""
        if activity >= BURST:
            self._began, self._worked = at if self._began is None else self._began, at
        if self._began is None or (self._readings and at <= self._readings[-1][0]):
            return
        self._readings.append((at, activity))
        values = [value for _, value in self._readings]
        newest = values[-NEWEST:]
        if at - self._began < STARTS or max(newest) < BURST:  # a rest says nothing
            return
        mean = fmean(newest)
        spread = sqrt(fmean((value - mean) ** 2 for value in newest))  # pstdev adds fractions
        self._uneven = spread >= UNEVEN * mean
        if self._uneven and len(values) == KEPT:
            self._uneven = max(autocorrelation(values, KEPT // 3).at_lag[2:]) < RHYTHM

    def seen(self, now: float) -> bool:
        """Return whether it has worked in bursts, within the last hour: what rests for longer may
        be forgotten."""
        return self._uneven and now - self._worked <= HOUR
