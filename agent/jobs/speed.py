"""Speed of a job: steps a second over its life, its own first hour, its best minute. Pure."""

from collections import deque
from statistics import median

from agent.bounds import HOUR, RATES_KEPT

BIN = 10.0
"""Seconds that one value of the history stands for: as many as a verdict does."""

MINUTE_BINS = 6
"""Values after which the first hour says how fast the job is, and those of its best minute."""

SLOWER = 0.03
"""Share of the reference by which a step takes longer, and the job counts as slower: more than the
windows of one pulse may differ by."""


class JobSpeed:
    """Fed each tick; seconds are of the agent's monotonic clock."""

    def __init__(self, now: float) -> None:
        self.rates: deque[float | None] = deque(maxlen=RATES_KEPT)
        """Steps a second in each ten seconds, oldest first; None without a rhythm."""
        self._end = now + BIN
        self._seen = self._steps = 0.0  # seconds with a rhythm, and steps in them, of this value
        self._all_seen = self._all_steps = 0.0
        self._first: float | None = None  # when the rhythm was first seen
        self._first_hour: list[float] = []
        self._best = 0.0

    @property
    def mean(self) -> float | None:
        """Steps a second over all the time with a rhythm."""
        return self._all_steps / self._all_seen if self._all_seen else None

    @property
    def best(self) -> float | None:
        """Steps a second in the best minute; of a shorter job the mean."""
        return self._best or self.mean

    @property
    def reference(self) -> float | None:
        """Seconds of a step in the first hour with a rhythm, the median; None for the first
        minute."""
        if len(self._first_hour) < MINUTE_BINS:
            return None
        return 1 / median(self._first_hour)

    def take(self, now: float, seconds: float, step: float | None) -> bool:
        """Add so many seconds, ended now, with steps of this length; whether a value is
        complete."""
        if step:
            self._first = now if self._first is None else self._first
            self._seen, self._steps = self._seen + seconds, self._steps + seconds / step
        if now < self._end:
            return False
        self._end = max(self._end + BIN, now)
        self._close(now)
        return True

    def _close(self, now: float) -> None:
        rate = self._steps / self._seen if self._seen else None
        self.rates.append(rate)
        self._all_seen, self._all_steps = self._all_seen + self._seen, self._all_steps + self._steps
        self._seen = self._steps = 0.0
        if rate is None or self._first is None:
            return
        if now - self._first <= HOUR:
            self._first_hour.append(rate)
        minute = list(self.rates)[-MINUTE_BINS:]
        known = [one for one in minute if one is not None]
        if len(known) == MINUTE_BINS:
            self._best = max(self._best, sum(known) / MINUTE_BINS)

    def slower(self, step: float | None) -> bool:
        """Return whether a step of this length is one of a job that has become slower."""
        reference = self.reference
        return bool(step and reference and step > (1 + SLOWER) * reference)
