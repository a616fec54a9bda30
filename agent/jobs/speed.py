"""Speed of a job: its mean steps per second, and its step time in the first hour."""

from collections import deque
from statistics import median

from agent.bounds import HOUR, RATES_KEPT

BIN = 10.0
"""Length in seconds of the intervals over which step rates are averaged."""

LEAST_BINS = 6
"""Minimum number of intervals with a step rate that are needed for the reference step time."""

SLOWER = 0.03
"""Minimum relative increase of the step time at which a job counts as slower. It is larger than the
tolerance with which windows agree on a step time (`ALIKE` in `pulse.py`)."""


class JobSpeed:
    """Speed of a job, updated on every tick. Times are in seconds on the monotonic clock."""

    def __init__(self, now: float) -> None:
        self.rates: deque[float | None] = deque(maxlen=RATES_KEPT)
        """Steps per second in each interval of BIN seconds (None if unknown), oldest first."""
        self._end = now + BIN
        self._seen = self._steps = 0.0  # s with a rhythm, and number of steps, in this bin
        self._all_seen = self._all_steps = self._all = 0.0
        self._first: float | None = None  # time at which a rhythm was first detected
        self._first_hour: list[float] = []

    @property
    def mean(self) -> float | None:
        """Mean steps per second since the step time was first known. None if it has been unknown
        for so long since then that the mean may be wrong."""
        known = self._all_seen and self._all_seen >= (1 - SLOWER) * self._all
        return self._all_steps / self._all_seen if known else None

    @property
    def reference(self) -> float | None:
        """Median step time (s) in the first hour in which it is known. None in its first minute."""
        known = len(self._first_hour) >= LEAST_BINS
        return 1 / median(self._first_hour) if known else None

    def take(self, now: float, seconds: float, step: float | None) -> None:
        """Add the step time (None if unknown) of the `seconds` seconds before `now`."""
        if step:
            self._first = now if self._first is None else self._first
            self._seen, self._steps = self._seen + seconds, self._steps + seconds / step
        if self._first is not None:
            self._all += seconds
        if now < self._end:
            return
        self._end = max(self._end + BIN, now)
        rate = self._steps / self._seen if self._seen else None
        self.rates.append(rate)
        self._all_seen, self._all_steps = self._all_seen + self._seen, self._all_steps + self._steps
        self._seen = self._steps = 0.0
        if rate is not None and self._first is not None and now - self._first <= HOUR:
            self._first_hour.append(rate)
