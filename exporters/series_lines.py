"""The lines of an exposition: each series as prometheus_client writes it, for its value's price.

Names and labels of a series never change: the library writes its line once, and from then on only
the value behind it is written anew.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from agent.model import Kind, Metric, Sample

Labels = tuple[str, ...]
Encode = Callable[[Collector], bytes]

END = "# EOF"
"""How OpenMetrics ends; the families of others come before it."""

FAMILIES: dict[Kind, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
}


class OneFamily(Collector):
    """A collector of one family, for the library to write."""

    def __init__(self, family: MetricFamily) -> None:
        self._family = family

    def collect(self) -> Iterable[MetricFamily]:
        """The family."""
        return [self._family]


@dataclass(slots=True, eq=False)
class SeriesLine:
    """What stands before the value, and the value as text."""

    start: str
    value: float = 0.0
    text: str = ""


@dataclass(slots=True, eq=False)
class FamilyLines:
    """The lines of one metric in one format, in the order of their labels."""

    metric: Metric
    encode: Encode
    head: str = ""
    came: list[Labels] = field(default_factory=list)  # the series as they came last
    lines: list[tuple[int, SeriesLine]] = field(default_factory=list)  # with their place in `came`
    known: dict[Labels, SeriesLine] = field(default_factory=dict)

    def write(self, labels: list[Labels], values: list[float], into: list[str]) -> None:
        """Append the family."""
        if labels != self.came:
            self._meet(labels)
        into.append(self.head)
        for place, line in self.lines:
            value = values[place]
            if value != line.value or not value:  # -0.0 equals 0.0, and is written otherwise
                line.value, line.text = value, f"{floatToGoString(value)}\n"  # type: ignore[no-untyped-call]
            into.append(line.start)
            into.append(line.text)

    def _meet(self, labels: list[Labels]) -> None:
        """Let the library write the series that are new, and forget those that are gone. Of one
        that comes twice, the last counts."""
        places = {one: place for place, one in enumerate(labels)}
        new = [one for one in places if one not in self.known]
        name, words = self.metric.name, self.metric.help
        family = FAMILIES[self.metric.kind](name, words, labels=self.metric.labels)
        for one in new:
            family.add_metric([encodable(label) for label in one], 0)
        written = self.encode(OneFamily(family)).decode().split("\n")[:-1]
        self.head = "".join(f"{x}\n" for x in written if x.startswith("# ") and x != END)
        starts = [f"{x.rpartition(' ')[0]} " for x in written if not x.startswith("#")]
        met = {one: SeriesLine(start) for one, start in zip(new, starts, strict=True)}
        self.known = {one: met.get(one) or self.known[one] for one in places}
        self.lines = [(places[one], self.known[one]) for one in sorted(places)]
        self.came = labels


class ExpositionLines:
    """The lines of all samples of a snapshot, in one format."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._families: dict[str, FamilyLines] = {}

    def write(self, samples: Iterable[Sample]) -> str:
        """Families in the order of their names, samples in the order of their label values."""
        found: dict[str, tuple[Metric, list[Labels], list[float]]] = {}
        for metric, labels, value in samples:
            if not isfinite(value):
                continue
            family = found.get(metric.name)
            if family is None:
                family = found[metric.name] = metric, [], []
            family[1].append(labels)
            family[2].append(value)
        pieces: list[str] = []
        families = {}
        for name in sorted(found):
            metric, series, values = found[name]
            if metric.kind in FAMILIES:
                lines = self._families.get(name) or FamilyLines(metric, self._encode)
                lines.write(series, values, pieces)
                families[name] = lines
        self._families = families
        return "".join(pieces)


def encodable(label: str) -> str:
    """A label value that UTF-8 can carry: undecodable bytes of a name become question marks."""
    return label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")
