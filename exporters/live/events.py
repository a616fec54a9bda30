"""Errors of late. Their counters stay above 0 for ever after one event, long over perhaps."""

from dataclasses import dataclass, field

from agent.model import Reading, ReadKey, Snapshot
from agent.sources import nvlink, xid

Event = tuple[str, str, str]
"""Name of the counter, index of the GPU, XID code or number of the link."""

PARTS = {("xid", "counts"), ("nvlink", "errors")}
METRICS = (xid.ERRORS, nvlink.ERRORS)

SCAN = 16
"""Ticks between two looks for readings of these parts: GPUs come and go."""


@dataclass(slots=True)
class Events:
    """Fed with each tick. A counter that is above 0 when first seen counts as an event then."""

    recent: dict[Event, float] = field(default_factory=dict)  # when it grew last (s)
    number: int = 0  # of events so far: growth of a counter, by however much
    _counts: dict[tuple[str, ...], float] = field(default_factory=dict)
    _readings: dict[ReadKey, Reading | None] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> None:
        """Take in a tick."""
        if not self._readings or snapshot.tick % SCAN == 0:
            keys = (key for key in snapshot.readings if key[:2] in PARTS)
            self._readings = {key: self._readings.get(key) for key in keys}
        for key, before in self._readings.items():
            reading = snapshot.readings.get(key)
            if reading is None or reading is before:
                continue
            self._readings[key] = reading
            if before is None or reading.samples != before.samples:
                self._count(reading)

    def _count(self, reading: Reading) -> None:
        for metric, labels, value in reading.samples:
            if metric in METRICS:
                place = (metric.name, *labels)
                if value > self._counts.get(place, 0.0):
                    self.number += 1
                    self.recent[metric.name, labels[0], labels[2]] = reading.at
                self._counts[place] = value

    def forget(self, before: float) -> None:
        """Events that were over at this second are no longer of late."""
        self.recent = {event: at for event, at in self.recent.items() if at >= before}
