"""Detection of request-driven work on a GPU: bursts of uneven height.

The activity of a trainer that waits for its data or for a peer is the same from second to second
(coefficient of variation 0.00 to 0.08 on tapes), that of servers is not (0.31 to 1.5; from 0.15 at
full load). A trainer
whose steps take seconds is known by its steps.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import fmean

from agent.bounds import HOUR

READINGS = 30
"""Readings of activity, a second apart, that must be uneven, those of the first work among them: a
job that starts is uneven. Where fewer did, three of 112 GPUs fewer were right on the tapes."""

UNEVEN = 0.12
"""Coefficient of variation from which activity comes in bursts, between that of trainers and that
of servers at full load. With 0.2 the waits of three GPUs of servers at 80 and 100 % are unknown."""


@dataclass(slots=True)
class Bursts:
    """Follows one GPU while the same processes are on it, from their first work: loading is no
    request."""

    _readings: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    _at: float = -inf  # of the newest
    _worked: float = -inf
    _uneven: bool = False

    def take(self, activity: float, at: float, quiet: float) -> None:
        """Take in a reading (0-1) of the moment `at` (s), unless it is the one of before. What is
        below `quiet` is no work: a thread that polls may copy a flag now and then."""
        if activity >= quiet:
            self._worked = at
        if self._worked == -inf or at <= self._at:
            return
        self._at = at
        self._readings.append(activity)
        if len(self._readings) < READINGS or max(self._readings) < quiet:  # a rest says nothing
            return
        mean = fmean(self._readings)
        spread = sqrt(
            fmean((value - mean) ** 2 for value in self._readings)
        )  # pstdev adds fractions
        self._uneven = spread >= UNEVEN * mean

    def seen(self, now: float) -> bool:
        """Return whether it has worked in bursts, within the last hour: what rests for longer may
        be forgotten."""
        return self._uneven and now - self._worked <= HOUR
