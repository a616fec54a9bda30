"""Sums the increases of counters over time windows, for conditions. A sum consists of buckets of a
minute, or of ten minutes for windows longer than six hours.

A series that increases needs 4 bytes per bucket. With 8 active GPUs, all series together need 70 kB
for windows of up to six hours and 30 kB for windows of a day. The hourly sums in
agent/diagnosis/hours.py cannot replace windows of a day, because they contain no counters except
GPU states. In addition, full hours omit up to 4 % of a day, which is too much for alerts that fire
at a share of 10 %.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from agent.model import Labels, Metric, Reading, ReadKey
from agent.series import Derived, SampleStore


class Counted(Enum):
    """The quantity that is summed over a time window."""

    GROWTH = "increase"  # of a series, starting with its second value
    CHANGES = "changes of its value"
    PRESENCE = "looks at which it was above 0"


class Ask(NamedTuple):
    """The data that a condition needs: sums over `window` seconds, or latest values if it is 0."""

    metric: Metric
    window: float
    counted: Counted


LONG = 6 * 3600.0
"""In windows of more than this many seconds, buckets cover WIDE seconds rather than MINUTE."""

MINUTE, WIDE = 60.0, 600.0
"""Widths of buckets in seconds."""


def width_for(window: float) -> float:
    return WIDE if window > LONG else MINUTE


@dataclass(slots=True)
class _Sums:
    """The sums of a series since its first increase, one per bucket."""

    first: int  # bucket of the first sum
    sums: "array[float]" = field(default_factory=lambda: array("f"))

    def add(self, bucket: int, amount: float, size: int) -> None:
        """Add an amount to a bucket, and drop all but the last `size` buckets."""
        place = bucket - self.first
        self.sums.extend([0.0] * (place + 1 - len(self.sums)))
        self.sums[place] += amount
        self.first += max(0, len(self.sums) - size)
        del self.sums[:-size]

    def total(self, bucket: int, count: int) -> float:
        """Return the sum over the `count` buckets that end with `bucket`."""
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
        if samples == self.last and not counts:
            return
        for labels, value in samples.items():
            before = self.last.get(labels)
            if value == before and not counts:
                continue
            amount = 0.0 if before is None else value - before if value >= before else value
            if self.counted is not Counted.GROWTH:
                amount = float(value > 0 if counts else before is not None)
            self.last[labels] = value
            if amount:
                if labels not in self.sums:  # drop the sums of removed devices
                    past = bucket - self.size + 1
                    self.sums = {k: s for k, s in self.sums.items() if s.first + len(s.sums) > past}
                self.sums.setdefault(labels, _Sums(bucket)).add(bucket, amount, self.size)

    def grown(self, at: float, window: float) -> dict[Labels, float]:
        bucket, count = int(at // self.width), math.ceil(window / self.width)
        sums = ((labels, own.total(bucket, count)) for labels, own in self.sums.items())
        return {labels: total for labels, total in sums if total}


@dataclass(slots=True, eq=False)
class FaultSamples:
    """The samples on which conditions are evaluated: latest values, and sums over time windows."""

    store: SampleStore = field(default_factory=SampleStore)
    _windows: dict[tuple[str, Counted, float], _Window] = field(default_factory=dict)
    _taken: Set[ReadKey] = frozenset()
    derived: Derived = field(default_factory=Derived)
    rows: dict[object, Any] = field(default_factory=dict)  # of conditions in this check

    def keep(self, asks: Iterable[Ask]) -> None:
        """Start to sum the metrics that conditions need (`asks`)."""
        for metric, window, counted in (ask for ask in asks if ask.window):
            width = width_for(window)
            key = metric.name, counted, width
            size = math.ceil(window / width) + 1
            known = self._windows.get(key)
            if known is None or known.size < size:
                self._windows[key] = _Window(metric, counted, width, size)

    def take_whole(self, now: float, readings: Mapping[ReadKey, Reading]) -> None:
        """Store new readings, and add them to the sums."""
        if self.store.now != now:
            self.store.take(now, (), self._taken - readings.keys())
        self.store.include(readings.values())
        self._taken = readings.keys()
        self.rows.clear()
        for window in self._windows.values():
            window.take(now, self.latest(window.metric))

    def latest(self, metric: Metric) -> dict[Labels, float]:
        """Return the latest value of each series of a metric."""
        read = self.store.latest(metric)
        return self.derived.of(metric.name, read, lambda: self.store.all(metric))

    def read(self, ask: Ask) -> dict[Labels, float]:
        """Return the latest value of each series, or its sum over the window if that is above 0."""
        if not ask.window:
            return self.latest(ask.metric)
        now = self.store.now
        window = self._windows.get((ask.metric.name, ask.counted, width_for(ask.window)))
        return self.derived.of(ask, now, lambda: window.grown(now, ask.window)) if window else {}
