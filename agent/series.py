"""Stores recent samples, from which all code reads latest values, means, and rates. A series is
absent as soon as the latest reading lacks it. The CPU time of a tick depends only on the number of
new readings. Readings with the same series share one index of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from agent.model import Absence, Labels, Metric, Reading, ReadKey, Snapshot, TimedSeries

T = TypeVar("T")

WINDOW_SECONDS = 3.0
"""Default number of seconds over which a mean or rate is computed."""

KEPT = 12.0
"""The store keeps the readings of this many seconds, and one older reading of each read."""


class Point(NamedTuple):
    """A value, the time of its reading, and the time at which it expires (monotonic seconds)."""

    at: float
    value: float
    until: float


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """The series of a reading in the order of its values, and their positions in this order."""

    metrics: tuple[Metric, ...]
    labels: tuple[Labels, ...]
    places: Mapping[tuple[str, Labels], int]  # by metric name and labels
    by_metric: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, metrics: tuple[Metric, ...], labels: tuple[Labels, ...]) -> "_Shape":
        places: dict[tuple[str, Labels], int] = {}
        by_metric: dict[str, list[int]] = {}
        for place, (metric, series) in enumerate(zip(metrics, labels, strict=True)):
            places[metric.name, series] = place
            by_metric.setdefault(metric.name, []).append(place)
        return cls(metrics, labels, places, by_metric)


class _Kept(NamedTuple):
    """A stored reading: its values, in the order of its series, and the number of its tick."""

    at: float
    until: float
    turn: int
    values: tuple[float, ...]
    shape: _Shape
    absences: tuple[Absence, ...]

    def value(self, series: tuple[str, Labels]) -> float | None:
        place = self.shape.places.get(series)
        return None if place is None else self.values[place]


_Read = list[_Kept]
"""The stored readings from one read, oldest first."""

NOTHING: tuple[tuple[Metric, ...], tuple[Labels, ...], tuple[float, ...]] = ((), (), ())


@dataclass(slots=True, eq=False)
class SampleStore:
    """Recent samples by metric and labels. `now` is the monotonic time of the current tick.

    An expired value counts as absent. The store is not thread-safe.
    """

    now: float = 0.0
    turn: int = 0  # number of calls to `take`
    _reads: dict[ReadKey, _Read] = field(default_factory=dict)
    _series: dict[str, dict[Labels, list[tuple[_Read, int]]]] = field(default_factory=dict)
    """By metric name and labels: the reads that provide a series (almost always one), each with the
    position of the series' value in its latest reading."""
    _reporters: dict[str, dict[ReadKey, _Read]] = field(default_factory=dict)  # by metric name
    _fresh_series: dict[str, list[TimedSeries]] = field(default_factory=dict)  # by metric name
    _rates: dict[tuple[str, Labels, float], float | None] = field(default_factory=dict)  # this tick

    @classmethod
    def of(cls, snapshot: Snapshot, now: float | None = None) -> Self:
        """Return a store with the samples of `snapshot` at `now` (by default, `snapshot.at`)."""
        store = cls()
        store.take(snapshot.at if now is None else now, snapshot.readings.values())
        return store

    # Updates

    def take(self, now: float, fresh: Iterable[Reading], forgotten: Iterable[ReadKey] = ()) -> None:
        """Begin a tick at `now`. Store the readings in `fresh`, and remove those in `forgotten`."""
        self.now, self.turn = now, self.turn + 1
        self._rates.clear()
        self._fresh_series.clear()
        for key in forgotten:
            read = self._reads.pop(key, None)
            if read is None:
                continue
            self._leave(read)
            for reporters in self._reporters.values():
                reporters.pop(key, None)
        for reading in fresh:
            self._keep(reading)
            for series in reading.series:
                self._fresh_series.setdefault(series.metric.name, []).append(series)

    def include(self, readings: Iterable[Reading]) -> None:
        """Store further readings of this tick, such as those of observers, unless stored."""
        for reading in readings:
            known = self._reads.get(reading.key)
            if known is None or known[-1].at != reading.at:
                self._keep(reading)

    def _keep(self, reading: Reading) -> None:
        key, at, absences = reading.key, reading.at, reading.absences
        metrics, labels, values = zip(*reading.samples, strict=True) if reading.samples else NOTHING
        read = self._reads.get(key)
        before = read[-1] if read else None
        if read is None:
            read = self._reads[key] = []
        shape = before.shape if before else None
        same = shape and metrics == shape.metrics and labels == shape.labels
        if not shape or not same:
            shape = _Shape.of(metrics, labels)
            if before:
                self._leave(read)
        read.append(_Kept(at, reading.expires, self.turn, values, shape, absences))
        if not same:
            self._enter(key, read)
        if absences and (before is None or absences != before.absences):
            for absence in absences:
                self._reporters.setdefault(absence.metric.name, {})[key] = read
        while len(read) > 2 and read[1].at < at - KEPT:
            del read[0]

    def _enter(self, key: ReadKey, read: _Read) -> None:
        """Add the series in the latest reading of a read to the index."""
        shape = read[-1].shape
        for (name, labels), place in shape.places.items():
            self._series.setdefault(name, {}).setdefault(labels, []).append((read, place))
        for name in shape.by_metric:
            self._reporters.setdefault(name, {})[key] = read

    def _leave(self, read: _Read) -> None:
        """Remove the series in the latest reading of a read from the index."""
        for name, labels in read[-1].shape.places:
            held = [other for other in self._series[name].pop(labels) if other[0] is not read]
            if held:
                self._series[name][labels] = held

    # Queries

    def _newest(self, held: Sequence[tuple[_Read, int]]) -> tuple[_Read, int] | None:
        """Return the item of `held` with the newest value, or None if all values are expired."""
        fresh = [one for one in held if self.now <= one[0][-1].until]
        if len(fresh) > 1:
            return max(fresh, key=lambda one: one[0][-1].at)
        return fresh[0] if fresh else None

    def _find(self, metric: Metric, labels: Labels) -> tuple[_Read, int] | None:
        try:
            held = self._series[metric.name][labels]
        except KeyError:
            return None
        if len(held) > 1:
            return self._newest(held)
        return held[0] if self.now <= held[0][0][-1].until else None

    def value(self, metric: Metric, *labels: str) -> float | None:
        """Return the latest value of the series with these labels, or None if it is absent."""
        found = self._find(metric, labels)
        return found[0][-1].values[found[1]] if found else None

    def point(self, metric: Metric, *labels: str) -> Point | None:
        """Return the latest value of a series as a point, or None if the value is absent."""
        found = self._find(metric, labels)
        if found is None:
            return None
        newest = found[0][-1]
        return Point(newest.at, newest.values[found[1]], newest.until)

    def all(self, metric: Metric) -> dict[Labels, float]:
        """Return the latest value of every series of a metric."""
        found: dict[Labels, float] = {}
        for labels, held in self._series.get(metric.name, {}).items():
            read, place = held[0]
            if len(held) > 1 or self.now > read[-1].until:
                if (newest := self._newest(held)) is None:
                    continue
                read, place = newest
            found[labels] = read[-1].values[place]
        return found

    def where(self, metric: Metric, /, **labels: str) -> dict[Labels, float]:
        """Return the latest values of those series of a metric that have these labels."""
        wanted = [(metric.labels.index(name), value) for name, value in labels.items()]
        return {
            key: value
            for key, value in self.all(metric).items()
            if all(key[place] == word for place, word in wanted)
        }

    def labelled(self, metric: Metric) -> list[dict[str, str]]:
        """Return the labels of all series of an info metric, oldest first."""
        found = [
            (newest[0][-1].at, labels)
            for labels, held in self._series.get(metric.name, {}).items()
            if (newest := self._newest(held))
        ]
        found.sort(key=lambda entry: entry[0])
        return [dict(zip(metric.labels, labels, strict=True)) for _, labels in found]

    def latest(self, metric: Metric) -> "list[tuple[_Shape, tuple[float, ...]]]":
        """Return the series and values of the latest readings that contain the metric. Callers
        compare the result with an earlier result to detect changes."""
        reads = self._reporters.get(metric.name, {}).values()
        return [(r[-1].shape, r[-1].values) for r in reads if self.now <= r[-1].until]

    def fresh(self, metric: Metric) -> Iterator[tuple[Labels, Point]]:
        """Yield all points of a metric that were read since the last tick. The points of each read
        are in chronological order."""
        for read in self._reporters.get(metric.name, {}).values():
            for kept in read if read[-1].turn == self.turn else ():
                if kept.turn == self.turn:
                    for place in kept.shape.by_metric.get(metric.name, ()):
                        point = Point(kept.at, kept.values[place], kept.until)
                        yield kept.shape.labels[place], point

    def fresh_series(self, metric: Metric) -> Sequence[TimedSeries]:
        """Return the driver's samples of a metric since the last tick. The next tick drops them."""
        return self._fresh_series.get(metric.name, ())

    def recent(self, metric: Metric, *labels: str, seconds: float = WINDOW_SECONDS) -> list[float]:
        """Return the values of a series in the last `seconds`, latest first. If all values are
        older, return only the latest value."""
        values: list[float] = []
        if (found := self._find(metric, labels)) is not None:
            read, place = found
            shape = read[-1].shape
            for kept in reversed(read):
                if values and kept.at <= self.now - seconds:
                    break
                same = kept.shape is shape
                value = kept.values[place] if same else kept.value((metric.name, labels))
                if value is not None:
                    values.append(value)
        return values

    def mean(self, metric: Metric, *labels: str, seconds: float = WINDOW_SECONDS) -> float | None:
        """Return the mean of a gauge over the last `seconds`, or None if the gauge is absent."""
        values = self.recent(metric, *labels, seconds=seconds)
        return sum(values) / len(values) if values else None

    def rate(self, metric: Metric, *labels: str, seconds: float = WINDOW_SECONDS) -> float | None:
        """Return the increase of a counter per second over the last `seconds`, or between the last
        two readings if they are further apart. Return None if there are fewer than two readings, or
        if the counter has decreased."""
        known = (metric.name, labels, seconds)
        if known not in self._rates:
            found = self._find(metric, labels)
            self._rates[known] = _growth(*found, known[:2], seconds) if found else None
        return self._rates[known]

    def absence(self, metric: Metric, *labels: str) -> Absence | None:
        """Return the record that a series has no value, with its reason, or None without one."""
        for read in self._reporters.get(metric.name, {}).values():
            for absence in read[-1].absences if self.now <= read[-1].until else ():
                if absence.metric is metric and absence.labels == labels:
                    return absence
        return None


@dataclass(slots=True, eq=False)
class Derived:
    """A cache of results by key. A result is computed again only if its inputs have changed.
    Comparing inputs is fast, because unchanged inputs are usually the same objects as before."""

    known: dict[object, tuple[object, Any]] = field(default_factory=dict)

    def of(self, key: object, inputs: object, found: Callable[[], T]) -> T:
        known = self.known.get(key)
        if known is None or known[0] != inputs:
            known = self.known[key] = inputs, found()
        result: T = known[1]
        return result


def _growth(read: _Read, place: int, series: tuple[str, Labels], seconds: float) -> float | None:
    """Return the increase per second of a series over the readings of the last `seconds`."""
    at, _, _, values, shape, _ = read[-1]
    first = None
    for kept in islice(reversed(read), 1, None):
        if first and at - kept.at > seconds:
            break
        if kept.shape is shape or kept.value(series) is not None:
            first = kept
    if first is None:
        return None
    then = first.values[place] if first.shape is shape else first.value(series)
    if then is None or at <= first.at or values[place] < then:
        return None
    return (values[place] - then) / (at - first.at)
