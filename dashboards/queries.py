"""PromQL out of the catalogue: metrics enter queries as objects, with their labels and units.

Each query is held to the variables of its board: job, instance and, for metrics of a GPU, gpu.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.diagnosis.accounting import STATE_SECONDS
from agent.faults.records import BUSY_DISK
from agent.limits.paths import LIMIT, OBSERVED, RATIO, SATURATED, SPEC
from agent.model import Kind, Metric, State, counter, gauge
from agent.sources import disk

Labels = tuple[str, ...]

UP = gauge("up", "1 if the last scrape succeeded.", "Prometheus", ())
ALERTS = gauge("ALERTS", "1 for each alert.", "Prometheus", ("alertname", "alertstate", "severity"))
SCRAPE_SECONDS = gauge("scrape_duration_seconds", "How long the scrape took.", "Prometheus")
AGENT_CPU = counter("process_cpu_seconds_total", "CPU time of the agent.", "/proc/self/stat")
AGENT_MEMORY = gauge("process_resident_memory_bytes", "Memory of the agent.", "/proc/self/stat")
ALERTS_SINCE = gauge(
    "ALERTS_FOR_STATE",
    "When each alert began to hold, in seconds since the epoch.",
    "Prometheus",
    ("alertname", "severity"),
)
FOREIGN = (UP, ALERTS, ALERTS_SINCE, SCRAPE_SECONDS, AGENT_CPU, AGENT_MEMORY)
"""Metrics on the boards besides the catalogue: Prometheus' own, and the agent's process."""

RATE, RANGE = "$__rate_interval", "$__range"

UNITS: dict[str, str] = {
    "ratio": "percentunit",
    "watts": "watt",
    "joules": "joule",
    "celsius": "celsius",
    "bytes": "bytes",
    "hertz": "hertz",
    "seconds": "s",
    "bytes_per_second": "Bps",
}
"""Grafana's unit by the unit that ends a metric's name; countables have none."""

RATES = {"bytes": "Bps", "joules": "watt", "seconds": "percentunit"}
"""Grafana's unit of growth per second; for errors and the like the boards show their number."""

OF_GPU = {"nvlink", "pcie", "hbm"}
"""Data paths that belong to a GPU; the label `gpu` of the others is empty."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression and Grafana's unit of its result."""

    expr: str
    unit: str

    def total(self, by: Labels = ()) -> "Value":
        return Value(aggregated("sum", self.expr, by), self.unit)

    def largest(self, by: Labels = ()) -> "Value":
        return Value(aggregated("max", self.expr, by), self.unit)

    def smallest(self, by: Labels = ()) -> "Value":
        return Value(aggregated("min", self.expr, by), self.unit)

    def counted(self, by: Labels = ()) -> "Value":
        return Value(aggregated("count", self.expr, by), "none")

    def mean(self, by: Labels = ()) -> "Value":
        return Value(aggregated("avg", self.expr, by), self.unit)

    def over(self, whole: "Value", on: Labels | None = None) -> "Value":
        """A share of `whole`; with `on` many parts of the same whole. Empty if there is none."""
        joined = "" if on is None else f"on ({', '.join(on)}) group_left () "
        return Value(f"({self.expr}) / {joined}(({whole.expr}) > 0)", "percentunit")

    def less(self, other: "Value") -> "Value":
        return Value(f"({self.expr}) - ({other.expr})", self.unit)

    def where(self, condition: str) -> "Value":
        return Value(f"({self.expr}) {condition}", self.unit)

    def number(self, condition: str) -> "Value":
        """The number of series that meet a condition; empty if there is no series at all."""
        operator, figure = condition.split()
        return Value(f"sum(({self.expr}) {operator} bool {figure})", "none")

    def or_why(self, whole: "Value") -> "Value":
        """No number for rows that have a `whole` alone, so that the column can say why."""
        return Value(f"{self.expr} or ({whole.expr}) * NaN", self.unit)

    def or_none_of(self, whole: "Value") -> "Value":
        """0 for rows that have a `whole` alone: an empty share has no series."""
        return Value(f"({self.expr}) or ({whole.expr}) * 0", self.unit)

    def when(self, which: str, by: Labels) -> "Value":
        """The first (`min`) or last time (`max`) at which there was a series, within the board's
        time range, to the minute; in milliseconds since the epoch."""
        seen = f"{which}_over_time(timestamp({self.expr})[{RANGE}:1m])"
        return Value(f"{aggregated(which, seen, by)} * 1000", "dateTimeFromNow")

    def or_zero(self) -> "Value":
        """0 if there is no series at all: for counts of things that may not exist."""
        return Value(f"({self.expr}) or vector(0)", self.unit)

    def descending(self) -> "Value":
        return Value(f"sort_desc({self.expr})", self.unit)

    def bits(self) -> "Value":
        """Bytes a second of a network in bits, as networks are sold."""
        return Value(f"8 * ({self.expr})", "bps")

    def most(self, number: int) -> "Value":
        return Value(f"topk({number}, {self.expr})", self.unit)

    def with_labels_of(self, info: Metric, on: Labels, labels: Labels, **match: str) -> "Value":
        """Labels of an information metric (whose value is 1) joined to the value."""
        join = f"* on ({', '.join(on)}) group_left ({', '.join(labels)}) "
        return Value(f"({self.expr}) {join}{select(info, **match)}", self.unit)

    def labelled(self, label: str, text: str, source: str, pattern: str = "(.*)") -> "Value":
        """A further label: `text` with $1 of the pattern found in the label `source`."""
        arguments = ", ".join(f'"{argument}"' for argument in (label, text, source, pattern))
        return Value(f"label_replace({self.expr}, {arguments})", self.unit)

    def linked(self, label: str, *sources: str) -> "Value":
        """A further label: the values of others joined by a slash."""
        arguments = ", ".join(f'"{argument}"' for argument in (label, "/", *sources))
        return Value(f"label_join({self.expr}, {arguments})", self.unit)

    def among(self, chosen: "Value", on: Labels) -> "Value":
        return Value(f"{self.expr} and on ({', '.join(on)}) ({chosen.expr})", self.unit)

    def apart(self, by: Labels) -> "Value":
        """The series that lie far from the others of their group: more than twice the standard
        deviation, and more than a tenth, from the mean."""
        centre, joined = self.mean(by).expr, f"on ({', '.join(by)}) group_left ()"
        spread = f"2 * {aggregated('stddev', self.expr, by)} > 0.1 * {centre}"
        most = f"({spread} or 0.1 * {centre})"
        return Value(
            f"{self.expr} and (abs({self.expr} - {joined} {centre}) > {joined} {most})", self.unit
        )

    def of_several(self, value: "Value") -> "Value":
        """The same if `value` has at least two series."""
        return Value(f"{self.expr} and on () count({value.expr}) > 1", self.unit)


@dataclass(frozen=True, slots=True)
class Query:
    """A value on a panel; a limit is drawn as a dashed line that nothing is stacked on, and a
    series that is there at times only as points: Grafana would draw a line across the gap."""

    value: Value
    legend: str = ""
    limit: bool = False
    points: bool = False


def unit_of(metric: Metric, units: Mapping[str, str] = UNITS) -> str:
    """Grafana's unit of a metric (or, with RATES, of its growth per second)."""
    stem = metric.name.removesuffix("_total")
    found = [unit for end, unit in units.items() if stem.endswith(f"_{end}")]
    return found[-1] if found else "none"


def select(metric: Metric, **match: str) -> str:
    """A selector in the scope of the board; a value that begins with ~ is a regular expression."""
    scope = ['job=~"$job"', 'instance=~"$instance"', *_of_gpus(metric, match.get("path", "~"))]
    for label, value in match.items():
        if label not in metric.labels:
            raise ValueError(f"{metric} has no label {label}")
        scope.append(f'{label}=~"{value[1:]}"' if value[:1] == "~" else f'{label}="{value}"')
    return f"{metric.name}{{{','.join(scope)}}}"


def _of_gpus(metric: Metric, path: str) -> list[str]:
    """Only the GPUs chosen; if kinds of paths are mixed, also the paths of the host."""
    if "gpu" not in metric.labels:
        return []
    if "path" not in metric.labels or path in OF_GPU:
        return ['gpu=~"$gpu"']
    return ['gpu=~"$gpu|"'] if path.startswith("~") else []


def aggregated(operator: str, expr: str, by: Labels | None) -> str:
    return expr if by is None else f"{operator} by ({', '.join(by)}) ({expr})"


def now(metric: Metric, **match: str) -> Value:
    return Value(select(metric, **match), unit_of(metric))


def rate(metric: Metric, by: Labels | None = None, **match: str) -> Value:
    """Growth of a counter per second, summed by labels."""
    _must_be_counter(metric)
    expr = aggregated("sum", f"rate({select(metric, **match)}[{RATE}])", by)
    return Value(expr, unit_of(metric, RATES))


def grown(metric: Metric, by: Labels | None = None, within: str = RANGE, **match: str) -> Value:
    """Growth of a counter within the board's time range, or another, summed by labels."""
    _must_be_counter(metric)
    expr = aggregated("sum", f"increase({select(metric, **match)}[{within}])", by)
    return Value(expr, unit_of(metric))


def summed(record: Metric, by: Labels = (), **match: str) -> Value:
    """Return the sum of a record of seconds within the board's time range."""
    return Value(aggregated("sum", f"sum_over_time({select(record, **match)}[{RANGE}])", by), "s")


def either(*values: Value) -> Value:
    return Value(" or ".join(value.expr for value in values), values[0].unit)


def _must_be_counter(metric: Metric) -> None:
    if metric.kind is not Kind.COUNTER:
        raise ValueError(f"{metric} is no counter: it has no rate")


NODE: Labels = ("instance",)
GPU: Labels = ("instance", "gpu")
CAUSE: Labels = ("state", "cause")
DEVICE: Labels = ("instance", "path", "device", "direction")
WHOLE_GPU = "~gpu[0-9]+"
"""Devices of NVLink that stand for all links of a GPU together; single links are gpu0:3."""


def time_in(state: State, by: Labels = ()) -> Value:
    """Share of the observed GPU time, within the board's time range, that went into a state."""
    whole = grown(STATE_SECONDS, by)
    return grown(STATE_SECONDS, by, state=state.value).or_none_of(whole).over(whole)


def time_by_cause(**match: str) -> Value:
    """Share of the observed GPU time by state and cause, over time, for the pairs that occur within
    the board's time range; from busy to throttled.

    Prometheus sorts series by their labels, and areas lie on each other in that order.
    """
    ever = aggregated("sum", f"increase({select(STATE_SECONDS)}[{RANGE}] @ end())", CAUSE)
    share = rate(STATE_SECONDS, CAUSE, **match).over(rate(STATE_SECONDS, ()), on=())
    linked = share.linked("account", *CAUSE)
    return Value(f"{linked.expr} and on ({', '.join(CAUSE)}) ({ever}) > 0", share.unit)


def range_by_cause(**match: str) -> Value:
    """The same over the whole time range, from a thousandth on, the most first."""
    share = grown(STATE_SECONDS, CAUSE, **match).over(grown(STATE_SECONDS, ()), on=())
    return share.where(">= 0.001").descending()


def saturated(by: Labels, **match: str) -> Value:
    """Share of the observed time, within the board's time range, for which a path was full."""
    seen = f"max without (direction) ({grown(OBSERVED, None, **match).expr}) > 0"
    full = f"{grown(SATURATED, None, **match).expr} / ignoring (direction) group_left () ({seen})"
    if "disk" in match.get("path", "disk"):
        full = f"{full} or {_busy_disks()}"
    return Value(f"max by ({', '.join(by)}) ({full})", "percentunit")


def _busy_disks() -> str:
    """Share of the time with a request in flight, for disks without a known limit that were nearly
    always busy; as paths of the direction `busy`."""
    busy = f"rate({select(disk.BUSY)}[{RANGE}]) >= {BUSY_DISK:g}"
    known = f"on (instance, job, device) {select(LIMIT, path='disk')}"
    path = f'label_replace({busy} unless {known}, "path", "disk", "", "")'
    return f'label_replace({path}, "direction", "busy", "", "")'


def fullness(by: Labels, **match: str) -> Value:
    """Traffic over the limit: the fullest of each group."""
    return Value(f"max by ({', '.join(by)}) ({select(RATIO, **match)})", "percentunit")


def limit(legend: str = "smallest limit", **match: str) -> Query:
    """The limit of a path as a dashed line, in the unit of its traffic: the smallest of the devices
    shown. A limit that is equal in both directions has no direction."""
    if "direction" in match:
        match["direction"] = f"~{match['direction']}|"
    least = now(LIMIT, **match).smallest()
    network = match.get("path") in ("network", "infiniband")
    return Query(least.bits() if network else least, legend, limit=True)


def of_spec() -> Value:
    return now(LIMIT).largest(DEVICE).over(now(SPEC).largest(DEVICE))


GPU_NAME = "{{instance}} GPU {{gpu}}"


def spread(value: Value, name: str = GPU_NAME) -> list[Query]:
    """Many GPUs in a few lines: the least, the mean, the most, and each that lies far from the rest
    by its name. Of one GPU the mean is all there is."""
    return [
        Query(value.smallest().of_several(value), "least"),
        Query(value.mean(), "mean"),
        Query(value.largest().of_several(value), "most"),
        Query(value.apart(NODE), name, points=True),
    ]


PLACES_OF_NODES = 'instance=~"$instance"'
PLACES_OF_FLEET = 'cluster=~"$cluster|",rack=~"$rack|",instance=~"$instance|"'
"""Alerts of a rack or a cluster too: they have no instance."""


def since(severity: str, places: str) -> Value:
    """Return the time at which each of those alerts began to hold, in ms since the epoch."""
    began = _of_ours(ALERTS_SINCE.name, severity, places=places)
    firing = f"ignoring (alertstate) {alerts(None, severity, places=places).expr}"
    return Value(f"({began} and {firing}) * 1000", "dateTimeFromNow")


def _of_ours(name: str, severity: str = "", state: str = "", places: str = PLACES_OF_NODES) -> str:
    """Alerts of ours, without the alert that always fires."""
    which = f'severity=~"{severity}",' if severity else ""
    return (
        f'{name}{{{state}alertname=~"Dgx.+",alertname!="DgxWatchdog",{which}job=~"$job|",{places}}}'
    )


def alerts(by: Labels | None = None, severity: str = "", *, places: str = PLACES_OF_NODES) -> Value:
    """Firing alerts, with a severity or any."""
    expr = _of_ours(ALERTS.name, severity, 'alertstate="firing",', places)
    return Value(expr if by is None else f"count by ({', '.join(by)}) ({expr})", "none")
