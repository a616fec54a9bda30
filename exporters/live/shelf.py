"""The newest values of a few metrics, kept up with what changed: a tick brings little that is
new."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.model import Metric, Reading, ReadKey, Snapshot

Labels = tuple[str, ...]
Readings = Mapping[ReadKey, Reading]


class Point(NamedTuple):
    """One value, when it was read, until when it holds, and its growth a second since the reading
    before (None where there was none, or it fell)."""

    at: float
    value: float
    until: float
    rate: float | None


@dataclass(slots=True)
class Shelf:
    """Values by the name of their metric and their labels.

    `stirred` says that a value of a metric in `watched` came, went or changed; whoever sees to it
    sets it back.
    """

    sources: frozenset[str]
    wanted: frozenset[str]  # names of metrics
    watched: frozenset[str] = frozenset()
    now: float = 0.0
    stirred: bool = True
    _readings: Readings = field(default_factory=dict)
    _dull: set[ReadKey] = field(default_factory=set)  # of readings that hold nothing wanted
    _points: dict[str, dict[Labels, Point]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sources: Iterable[str],
        wanted: Iterable[Metric],
        watched: Iterable[Metric] = (),
    ) -> "Shelf":
        """A shelf for all these metrics, which come from readings of these sources."""
        news = frozenset(metric.name for metric in watched)
        return cls(frozenset(sources), news.union(metric.name for metric in wanted), news)

    def take(self, snapshot: Snapshot) -> None:
        """Take in the readings that are not those of the last snapshot."""
        before, self._readings = self._readings, snapshot.readings
        self.now = snapshot.at
        if before.keys() - snapshot.readings.keys():  # a GPU is gone, or has another number
            self._points.clear()
            self._dull.clear()
            before, self.stirred = {}, True
        for key, reading in changed(before, snapshot.readings):
            if key.source not in self.sources or key in self._dull:
                continue
            if not self._keep(reading) and (reading.samples or reading.absences):
                self._dull.add(key)

    def _keep(self, reading: Reading) -> bool:
        """Whether there was anything to keep."""
        at, until, kept = reading.at, reading.expires, False
        for metric, labels, value in reading.samples:
            name = metric.name
            if name not in self.wanted:
                continue
            kept = True
            points = self._points.setdefault(name, {})
            before = points.get(labels)
            rate = None
            if before is None or value != before.value:
                self.stirred |= name in self.watched
            if before is not None and at > before.at and value >= before.value:
                rate = (value - before.value) / (at - before.at)
            points[labels] = Point(at, value, until, rate)
        for metric, labels, _, _ in reading.absences:
            if metric.name in self.wanted:
                kept = True
                if self._points.get(metric.name, {}).pop(labels, None) is not None:
                    self.stirred |= metric.name in self.watched
        return kept

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One value, or None where it is absent or has expired."""
        point = self.point(metric, *labels)
        return None if point is None else point.value

    def point(self, metric: Metric, *labels: str) -> Point | None:
        """One value with its times and its growth, or None where it is absent or has expired."""
        point = self._points.get(metric.name, {}).get(labels)
        return point if point is not None and self.now <= point.until else None

    def all(self, metric: Metric) -> Iterator[tuple[Labels, Point]]:
        """Every value of a metric that has not expired."""
        for labels, point in self._points.get(metric.name, {}).items():
            if self.now <= point.until:
                yield labels, point

    def labelled(self, metric: Metric) -> list[dict[str, str]]:
        """The labels of an info metric, the newest last."""
        found = sorted(self.all(metric), key=lambda entry: entry[1].at)
        return [dict(zip(metric.labels, labels, strict=True)) for labels, _ in found]


def changed(before: Readings, now: Readings) -> Iterator[tuple[ReadKey, Reading]]:
    """Readings that are new or not those of before; nearly always the keys are the same."""
    if len(before) == len(now):
        for (key, reading), (other, old) in zip(now.items(), before.items(), strict=True):
            if key is not other:
                break
            if reading is not old:
                yield key, reading
        else:
            return
    yield from ((key, reading) for key, reading in now.items() if before.get(key) is not reading)
