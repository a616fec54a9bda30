"""The lines of an exposition: each series as prometheus_client writes it, for its value's price.

Names and labels of a series never change: the library writes its line once, and from then on only
the value behind it is written again.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import copysign, isfinite

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from agent.errors import encodable
from agent.model import Kind, Metric, Sample
from exporters.guard import Guard

Labels = tuple[str, ...]
Chosen = Callable[[Metric, Labels], bool]
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
class FamilyLines:
    """The lines of one metric in one format, in the order of their labels."""

    metric: Metric
    encode: Encode
    exports: Chosen
    guard: Guard
    count: int = 0  # samples that come
    text: str = ""
    came: list[Labels] | None = None  # the series as they came last
    values: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # in `came`, of each line
    known: dict[Labels, str] = field(default_factory=dict)  # what stands before the value
    pieces: list[str] = field(default_factory=list)  # the head; then start and end of each line

    def write(self, labels: list[Labels], values: list[float]) -> None:
        """Bring the text up to date; none where that fails, which is logged."""
        with self.guard():
            self._write(labels, values)
            return
        self.came, self.text = None, ""

    def _write(self, labels: list[Labels], values: list[float]) -> None:
        if not all(map(isfinite, values)):  # what is no number is left out
            finite = [place for place, value in enumerate(values) if isfinite(value)]
            labels, values = [labels[place] for place in finite], [values[p] for p in finite]
        before, self.values = self.values, values
        if labels != self.came:
            self._meet(labels)
        else:
            for number, place in enumerate(self.places):
                value = values[place]
                if value != before[place] or (not value and other_zero(value, before[place])):
                    self.pieces[2 * number + 2] = line_end(value)
        self.text = "".join(self.pieces) if self.places else ""

    def _meet(self, labels: list[Labels]) -> None:
        """Let the library write the series that are new, and forget those that are gone. Of one
        that comes twice, the last counts."""
        places = {o: place for place, o in enumerate(labels) if self.exports(self.metric, o)}
        new = [one for one in places if one not in self.known]
        name, words = self.metric.name, self.metric.help
        family = FAMILIES[self.metric.kind](name, words, labels=self.metric.labels)
        for one in new:
            family.add_metric([encodable(label) for label in one], 0)
        written = self.encode(OneFamily(family)).decode().split("\n")[:-1]
        head = "".join(f"{x}\n" for x in written if x.startswith("# ") and x != END)
        starts = [f"{x.rpartition(' ')[0]} " for x in written if not x.startswith("#")]
        begun = dict(zip(new, starts, strict=True))
        self.known = {one: begun.get(one) or self.known[one] for one in places}
        self.pieces, self.places = [head], []
        for one in sorted(places):
            self.places.append(places[one])
            self.pieces += self.known[one], line_end(self.values[places[one]])
        self.came = labels


def line_end(value: float) -> str:
    """A value as the library writes it, and the end of its line."""
    return f"{floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


def other_zero(value: float, before: float) -> bool:
    """Whether of two zeros, which are equal, one is -0.0, which is written otherwise."""
    return copysign(1.0, value) != copysign(1.0, before)


@dataclass(slots=True, eq=False)
class ExpositionLines:
    """The lines of all samples of a snapshot, in one format. A family that comes as it came last is
    not looked at: of a hundred, some thirty change in a tick."""

    encode: Encode
    exports: Chosen
    _families: dict[str, FamilyLines] = field(default_factory=dict)
    _metrics: list[Metric] = field(default_factory=list)  # of each sample, as they came last
    _order: list[int] = field(default_factory=list)  # places of samples, family by family
    _labels: list[Labels] = field(default_factory=list)  # in this order
    _values: bytes = b""  # likewise, eight bytes each; none where one is no number

    def write(self, samples: Iterable[Sample]) -> str:
        """Families in the order of their names, samples in the order of their label values. One
        that cannot be written costs only itself."""
        listed = list(samples)
        metrics = [sample.metric for sample in listed]
        if metrics != self._metrics:
            self._arrange(metrics)
        ordered = [listed[place] for place in self._order]
        labels = [sample.labels for sample in ordered]
        try:
            values = array("d", [sample.value for sample in ordered])
        except TypeError:
            values = array("d")
        packed, before = values.tobytes(), self._values
        same = labels == self._labels and len(packed) == len(before) > 0
        self._labels, self._values = labels, packed
        begin = 0
        for lines in self._families.values():
            end = begin + lines.count
            part = slice(begin * values.itemsize, end * values.itemsize)
            if not same or packed[part] != before[part]:
                lines.write(labels[begin:end], [sample.value for sample in ordered[begin:end]])
            begin = end
        return "".join([lines.text for lines in self._families.values()])

    def _arrange(self, metrics: list[Metric]) -> None:
        """Find the families, and the samples of each."""
        found: dict[str, list[int]] = {}
        for place, metric in enumerate(metrics):
            if metric.kind in FAMILIES:
                found.setdefault(metric.name, []).append(place)
        families = {}
        for name in sorted(found):
            metric = metrics[found[name][0]]
            lines = self._families.get(name) or FamilyLines(
                metric, self.encode, self.exports, Guard(name)
            )
            lines.count = len(found[name])
            families[name] = lines
        self._families, self._metrics, self._labels = families, metrics, []
        self._order = [place for name in families for place in found[name]]
