"""Looking things up in a snapshot: one metric of one GPU, one device, or all of them."""

from collections import defaultdict

from agent.model import Metric, Snapshot

Point = tuple[float, float]
"""When a value was read (monotonic seconds), and the value."""


class Look:
    """The fresh samples of one snapshot by metric."""

    def __init__(self, snapshot: Snapshot, now: float | None = None) -> None:
        self.snapshot = snapshot
        self._samples: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        self._read_at: dict[tuple[str, tuple[str, ...]], float] = {}
        for reading in snapshot.readings.values():
            if not reading.fresh(snapshot.at if now is None else now):
                continue
            for metric, labels, value in reading.samples:
                self._samples[metric.name][labels] = value
                self._read_at[metric.name, labels] = reading.at

    def value(self, metric: Metric, *labels: str) -> float | None:
        """One value by its labels in the metric's order, or None where it is absent."""
        return self._samples[metric.name].get(labels)

    def point(self, metric: Metric, *labels: str) -> Point | None:
        """One value with the time of its reading, or None where it is absent."""
        value = self.value(metric, *labels)
        return None if value is None else (self._read_at[metric.name, labels], value)

    def all(self, metric: Metric) -> dict[tuple[str, ...], float]:
        """Every value of a metric, by its labels."""
        return self._samples[metric.name]

    def where(self, metric: Metric, /, **labels: str) -> dict[tuple[str, ...], float]:
        """The values of a metric whose named labels have these values."""
        wanted = [(metric.labels.index(name), value) for name, value in labels.items()]
        return {
            key: value
            for key, value in self._samples[metric.name].items()
            if all(key[place] == word for place, word in wanted)
        }

    def labelled(self, metric: Metric) -> list[dict[str, str]]:
        """The labels of every sample of an info metric."""
        return [dict(zip(metric.labels, key, strict=True)) for key in self._samples[metric.name]]
