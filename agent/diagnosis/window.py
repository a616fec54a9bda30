"""The last seconds of the series that verdicts rest on."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.model import Metric, Reading

Labels = tuple[str, ...]

SECONDS = 3.0
"""How far back evidence is weighed: long enough for a mean, short enough to tell a change."""

KEPT = 16
"""Readings kept of each series: a beat of one second fills more than a window."""


class Point(NamedTuple):
    """One value, when it was read, and until when it holds (monotonic seconds)."""

    at: float
    value: float
    until: float


class Refusal(NamedTuple):
    """Why a value is absent, and until when that holds (monotonic seconds)."""

    detail: str
    until: float


NEVER = Refusal("", 0.0)


@dataclass(slots=True)
class Window:
    """Series of the metrics in `kept` (by name), as they came; `now` is the tick's time.

    Asking for a metric that is not kept is a KeyError: a rule would never find its evidence.
    """

    kept: frozenset[str]
    sources: frozenset[str]
    now: float = 0.0
    _series: dict[str, dict[Labels, deque[Point]]] = field(default_factory=dict)
    _refused: dict[tuple[str, Labels], Refusal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._series = {name: {} for name in self.kept}

    def take(self, now: float, readings: Iterable[Reading]) -> None:
        """Take in what was read since the last tick."""
        self.now = now
        for reading in readings:
            if reading.key.source not in self.sources:
                continue
            for metric, labels, value in reading.samples:
                if metric.name in self.kept:
                    self._keep(metric.name, labels, Point(reading.at, value, reading.expires))
            for metric, labels, _, detail in reading.absences:
                if metric.name in self.kept:
                    self._series[metric.name].pop(labels, None)
                    self._refused[metric.name, labels] = Refusal(detail, reading.expires)

    def _keep(self, name: str, labels: Labels, point: Point) -> None:
        series = self._series[name]
        points = series.get(labels)
        if points is None:
            points = series[labels] = deque(maxlen=KEPT)
            self._refused.pop((name, labels), None)
        points.append(point)

    def refusal(self, metric: Metric, *labels: str) -> str:
        """Why a value is absent; empty where it is there, or was never asked for."""
        return self._refused.get((metric.name, labels), NEVER).detail

    def forget(self) -> None:
        """Drop the series that have expired: processes, jobs and GPUs come and go."""
        for series in self._series.values():
            for labels in [k for k, points in series.items() if points[-1].until < self.now]:
                del series[labels]
        self._refused = {k: r for k, r in self._refused.items() if r.until >= self.now}

    def value(self, metric: Metric, *labels: str) -> float | None:
        """The newest value, or None where it is absent or has expired."""
        points = self._series[metric.name].get(labels)
        return points[-1].value if points and self.now <= points[-1].until else None

    def all(self, metric: Metric) -> Iterator[tuple[Labels, float]]:
        """The newest value of every series of a metric."""
        for labels, points in self._series[metric.name].items():
            if self.now <= points[-1].until:
                yield labels, points[-1].value

    def recent(self, metric: Metric, *labels: str) -> list[Point]:
        """The readings within the window, the newest last, also when only it is older."""
        points = self._series[metric.name].get(labels)
        if not points or self.now > points[-1].until:
            return []
        return [p for p in points if p.at > self.now - SECONDS] or [points[-1]]

    def mean(self, metric: Metric, *labels: str) -> float | None:
        """Mean of a gauge over the window."""
        points = self.recent(metric, *labels)
        return sum(p.value for p in points) / len(points) if points else None

    def rate(self, metric: Metric, *labels: str) -> float | None:
        """Growth a second of a counter over the window; None before two readings, or after a fall.

        Where the beat is slower than the window, over the last two readings.
        """
        points = self._series[metric.name].get(labels)
        if not points or len(points) < 2 or self.now > points[-1].until:
            return None
        newest = points[-1]
        older = [p for p in points if p.at >= newest.at - SECONDS and p is not newest]
        first = older[0] if older else points[-2]
        grown = newest.value - first.value
        return grown / (newest.at - first.at) if grown >= 0 and newest.at > first.at else None
