"""Increases of counters over time windows, for conditions. Only metrics that conditions use are
summed, in buckets of a minute, or of ten minutes for windows longer than six hours.

A series needs 4 bytes per bucket once it increases: with 8 active GPUs, 70 kB for windows of up to
six hours and 30 kB for windows of a day. The hourly sums in agent/diagnosis/hours.py cannot replace
a window of a day: they contain GPU states but no other counters, and a window of full hours loses 4
% of its time whenever an hour ends, which is too much for alerts that fire at a share of 10 %.
"""

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from agent.model import Labels, Metric, Reading, ReadKey, Sample, internal
from agent.series import SampleStore

T = TypeVar("T")


class Counted(Enum):
    """The kind of sum over a window."""

    GROWTH = "increase"  # of a series, starting with its second value
    CHANGES = "changes of its value"
    PRESENCE = "looks at which it was above 0"


class Ask(NamedTuple):
    """A metric that a condition needs. `window` is in seconds; 0 means the latest value."""

    metric: Metric
    window: float = 0.0
    counted: Counted = Counted.GROWTH


ABSENCES = Ask(internal("absences", "All values that are absent, with reasons.", "readings"))
"""Used in place of a metric by conditions that need all absent values."""

LONG = 6 * 3600.0
"""Windows longer than this (in seconds) have buckets of WIDE seconds."""

NOTHING = Reading(ReadKey("", ""), 0.0, 0.0)
NO_SAMPLE = Sample(ABSENCES.metric, (), 0.0)

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
    events: int = 0  # number of additions, except in metrics that count seconds

    def take(self, at: float, samples: Mapping[Labels, float]) -> None:
        bucket, counts = int(at // self.width), self.counted is Counted.PRESENCE
        for labels, value in samples.items():
            before = self.last.get(labels)
            if value == before and not counts:
                continue
            amount = self._amount(before, value)
            self.last[labels] = value
            if amount:
                self.events += not self.metric.name.endswith("_seconds_total")
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
    _taken: dict[ReadKey, Reading] = field(default_factory=dict)
    _changed: dict[str, int] = field(default_factory=dict)  # turn of the last change, by metric
    _late: list[ReadKey] = field(default_factory=list)  # reads whose data have expired
    _absent: int = 0  # turn in which absences changed last
    _answers: dict[object, tuple[object, Any]] = field(default_factory=dict)
    _of_look: dict[object, Any] = field(default_factory=dict)

    def keep(self, asks: Iterable[Ask]) -> None:
        """Begin to sum the metrics in `asks` that have a window."""
        for metric, window, counted in asks:
            if window:
                width = width_for(window)
                key = metric.name, counted, width
                size = math.ceil(window / width) + 1
                known = self._windows.get(key)
                if known is None or known.size < size:
                    self._windows[key] = _Window(metric, counted, width, size)

    def take_whole(self, now: float, readings: Mapping[ReadKey, Reading]) -> None:
        """Store new readings, and add them to the sums."""
        taken = self._taken
        new = [one for key, one in readings.items() if taken.get(key) is not one]
        old = (one for key, one in readings.items() if taken.get(key) is one)
        late = [one.key for one in old if one.expires < now]
        gone = [key for key in taken if key not in readings]
        self._of_look.clear()
        self.take(now, new, gone)
        if gone or late != self._late:
            for key in {*gone, *({*late} ^ {*self._late})} & taken.keys():
                self._note(taken[key], None)
            self._late, self._absent = late, self.turn
        for key in gone:
            del taken[key]
        for one in new:
            self._note(taken.get(one.key), one)
            taken[one.key] = one
        for window in self._windows.values():
            changed = self._changed.get(window.metric.name) == self.turn
            if changed or window.counted is Counted.PRESENCE:
                window.take(now, self.all(window.metric))

    def _note(self, before: Reading | None, now: Reading | None) -> None:
        """Mark each metric whose samples or absences differ between two readings as changed."""
        old, new, changed = before or NOTHING, now or NOTHING, self._changed
        for one, other in zip_longest(old.samples, new.samples, fillvalue=NO_SAMPLE):
            if one != other:
                changed[one.metric.name] = changed[other.metric.name] = self.turn
        if old.absences != new.absences:
            self._absent = self.turn
            for absence in (*old.absences, *new.absences):
                changed[absence.metric.name] = self.turn

    def grown(self, ask: Ask) -> dict[Labels, float]:
        """Return the increase of each series that increased within the window."""
        window = self._window(ask)
        return window.grown(self.now, ask.window) if window else {}

    def _window(self, ask: Ask) -> _Window | None:
        return self._windows.get((ask.metric.name, ask.counted, width_for(ask.window)))

    def answer(self, key: object, asks: Collection[Ask], found: Callable[[], T]) -> T:
        """Return the result of `found`. It is cached until a metric in `asks` may have changed. If
        `asks` is empty, it is not cached."""
        if not asks:
            return found()
        version = tuple(map(self._version, asks))
        known = self._answers.get(key)
        if known is None or known[0] != version:
            known = self._answers[key] = version, found()
        return known[1]

    def of_look(self, key: object, found: Callable[[], T]) -> T:
        """Return the result of `found`, and cache it until the end of the check."""
        if key not in self._of_look:
            self._of_look[key] = found()
        known: T = self._of_look[key]
        return known

    def forget(self, *, answers: bool = False) -> None:
        """Drop the results cached in a check. If `answers` is true, drop all cached results."""
        self._of_look.clear()
        if answers:
            self._answers.clear()

    def _version(self, ask: Ask) -> object:
        """Return a version that changes whenever the result for `ask` may have changed."""
        if ask is ABSENCES:
            return self._absent
        if ask.window:
            window = self._window(ask)
            return int(self.now // MINUTE), window.events if window else 0
        return self._changed.get(ask.metric.name, 0)
