"""Where in the readings the few values of the history stand: looking for them each tick is dear."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.model import EXPIRY_BEATS, Metric, ReadKey, Snapshot

SCAN = 16
"""Ticks between two looks for where things stand: reads come and go with their GPUs."""

Place = tuple[Metric, ReadKey, int]
"""A metric, the key of its reading, and its place among the samples there."""


@dataclass(slots=True)
class Places:
    """Values of a few metrics that each GPU has once."""

    metrics: Sequence[Metric]
    sources: frozenset[str]
    _places: dict[str, dict[str, Place]] = field(default_factory=dict)  # by UUID and name
    _tick: int = -SCAN

    def values(self, snapshot: Snapshot, uuid: str) -> list[float | None]:
        """The value of each metric that is fresh; None where it is absent."""
        if snapshot.tick - self._tick >= SCAN or uuid not in self._places:
            self._look(snapshot)
        places = self._places.setdefault(uuid, {})
        return [_value(snapshot, uuid, places.get(metric.name)) for metric in self.metrics]

    def _look(self, snapshot: Snapshot) -> None:
        self._tick = snapshot.tick
        self._places = {}
        wanted = {metric.name for metric in self.metrics}
        for key, reading in snapshot.readings.items():
            if key.source not in self.sources:
                continue
            for place, (metric, labels, _) in enumerate(reading.samples):
                if metric.name in wanted:
                    self._places.setdefault(labels[1], {})[metric.name] = metric, key, place


def _value(snapshot: Snapshot, uuid: str, where: Place | None) -> float | None:
    if where is None:
        return None
    metric, key, place = where
    reading = snapshot.readings.get(key)
    if reading is None or snapshot.at - reading.at > EXPIRY_BEATS * reading.every:
        return None
    if place >= len(reading.samples):
        return None
    found, labels, value = reading.samples[place]
    return value if found is metric and labels[1] == uuid else None
