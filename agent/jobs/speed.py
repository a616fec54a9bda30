"""Speed of a job: steps a second over its life and in its own first hour. Pure."""

from collections import deque
from statistics import median

from agent.bounds import HOUR, RATES_KEPT

BIN = 10.0
"""Seconds that a value of the history stands for: as many as a verdict does."""

LEAST_BINS = 6
"""Values after which the speed of the first hour is known."""

SLOWER = 0.03
"""Share of the reference by which a step takes longer, and the job counts as slower: more than the
windows of a pulse may differ by."""


class JobSpeed:
    """Takes every tick; seconds are of the agent's monotonic clock."""

    def __init__(self, now: float) -> None:
        self.rates: deque[float | None] = deque(maxlen=RATES_KEPT)
        """Steps a second in each ten seconds, oldest first; None without a rhythm."""
        self._end = now + BIN
        self._seen = self._steps = 0.0  # seconds with a rhythm, and steps in them, of this value
        self._all_seen = self._all_steps = self._all = 0.0
        self._first: float | None = None  # when the rhythm was first seen
        self._first_hour: list[float] = []

    @property
    def mean(self) -> float | None:
        """Steps a second since the rhythm was first seen; None if for more of that time than may
        hide a slower job there was no rhythm: the pauses may be what slows it."""
        known = self._all_seen and self._all_seen >= (1 - SLOWER) * self._all
        return self._all_steps / self._all_seen if known else None

    @property
    def reference(self) -> float | None:
        """Seconds of a step in the first hour with a rhythm, the median; None for the first
        minute."""
        known = len(self._first_hour) >= LEAST_BINS
        return 1 / median(self._first_hour) if known else None

    def take(self, now: float, seconds: float, step: float | None) -> None:
        """Add so many seconds, ended now, with steps of this length."""
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
