"""Increases of counters over time windows, for conditions. Only metrics that conditions use are
summed, in buckets of a minute, or of ten minutes for windows longer than six hours.

A series needs 4 bytes per bucket once it increases: with 8 active GPUs, 70 kB for windows of up to
six hours and 30 kB for windows of a day. The hourly sums in agent/diagnosis/hours.py cannot replace
a window of a day: they contain GPU states but no other counters, and a window of full hours loses 4
% of its time whenever an hour ends, which is too much for alerts that fire at a share of 10 %.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from agent.model import Labels, Metric, Reading, ReadKey
from agent.series import SampleStore

T = TypeVar("T")


class Counted(Enum):
    """The kind of sum over a window."""

    GROWTH = "increase"  # of a series, starting with its second value
    CHANGES = "changes of its value"
    PRESENCE = "looks at which it was above 0"


class Ask(NamedTuple):
    """The sum over a window that a condition needs. `window` is in seconds."""

    metric: Metric
    window: float
    counted: Counted


LONG = 6 * 3600.0
"""Windows longer than this (in seconds) have buckets of WIDE seconds."""

MINUTE, WIDE = 60.0, 600.0
"""Widths of buckets in seconds."""


def width_for(window: float) -> float:
    return WIDE if window > LONG else MINUTE


@dataclass(slots=True)
class _Sums:
    """The sums of a series, by bucket, since its first increase."""

    first: int  # bucket of the first sum
    sums: "array[float]" = field(default_factory=lambda: array("f"))

    def add(self, bucket: int, amount: float, size: int) -> None:
        """Add an amount, and keep the last `size` buckets."""
        place = bucket - self.first
        self.sums.extend([0.0] * (place + 1 - len(self.sums)))
        self.sums[place] += amount
        self.first += max(0, len(self.sums) - size)
        del self.sums[:-size]

    def total(self, bucket: int, count: int) -> float:
        """Return the sum of the `count` buckets that end with `bucket`."""
        return math.fsum(self.sums[max(0, bucket - count + 1 - self.first) :])


@dataclass(slots=True)
class _Window:
    """All series of a metric, summed in buckets of the same width."""

    metric: Metric
    counted: Counted
    width: float
    size: int
    last: dict[Labels, float] = field(default_factory=dict)
    sums: dict[Labels, _Sums] = field(default_factory=dict)

    def take(self, at: float, samples: Mapping[Labels, float]) -> None:
        bucket, counts = int(at // self.width), self.counted is Counted.PRESENCE
        for labels, value in samples.items():
            before = self.last.get(labels)
            if value == before and not counts:
                continue
            amount = self._amount(before, value)
            self.last[labels] = value
            if amount:
                if labels not in self.sums:  # drop the sums of removed devices
                    past = bucket - self.size + 1
                    self.sums = {k: s for k, s in self.sums.items() if s.first + len(s.sums) > past}
                self.sums.setdefault(labels, _Sums(bucket)).add(bucket, amount, self.size)

    def _amount(self, before: float | None, now: float) -> float:
        if self.counted is Counted.PRESENCE:
            return float(now > 0)
        if before is None:
            return 0.0
        if self.counted is Counted.CHANGES:
            return float(now != before)
        return now - before if now >= before else now

    def grown(self, at: float, window: float) -> dict[Labels, float]:
        bucket, count = int(at // self.width), math.ceil(window / self.width)
        sums = ((labels, own.total(bucket, count)) for labels, own in self.sums.items())
        return {labels: total for labels, total in sums if total}


@dataclass(slots=True, eq=False)
class FaultSamples(SampleStore):
    """The latest samples, and the sums over the windows that conditions use."""

    _windows: dict[tuple[str, Counted, float], _Window] = field(default_factory=dict)
    _taken: Mapping[ReadKey, Reading] = field(default_factory=dict)
    _of_look: dict[object, Any] = field(default_factory=dict)

    def keep(self, asks: Iterable[Ask]) -> None:
        """Begin to sum the metrics in `asks`."""
        for metric, window, counted in asks:
            width = width_for(window)
            key = metric.name, counted, width
            size = math.ceil(window / width) + 1
            known = self._windows.get(key)
            if known is None or known.size < size:
                self._windows[key] = _Window(metric, counted, width, size)

    def take_whole(self, now: float, readings: Mapping[ReadKey, Reading]) -> None:
        """Store new readings, and add them to the sums."""
        new = [one for key, one in readings.items() if self._taken.get(key) is not one]
        self.take(now, new, self._taken.keys() - readings.keys())
        self._taken = readings
        for window in self._windows.values():
            window.take(now, self.all(window.metric))

    def grown(self, ask: Ask) -> dict[Labels, float]:
        """Return the increase of each series that increased within the window."""
        window = self._windows.get((ask.metric.name, ask.counted, width_for(ask.window)))
        return window.grown(self.now, ask.window) if window else {}

    def of_look(self, key: object, found: Callable[[], T]) -> T:
        """Return the result of `found`, and cache it until the end of the check."""
        if key not in self._of_look:
            self._of_look[key] = found()
        known: T = self._of_look[key]
        return known

    def forget(self) -> None:
        """Drop the results cached in a check."""
        self._of_look.clear()
