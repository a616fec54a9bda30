"""PromQL out of the catalogue: metrics enter queries as objects, with their labels and units.

Each query is held to the variables of its board: job, instance and, for what belongs to a GPU, gpu.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.model import Kind, Metric, counter, gauge

Labels = tuple[str, ...]

UP = gauge("up", "1 if the last scrape succeeded.", "Prometheus", ())
ALERTS = gauge("ALERTS", "1 for each alert.", "Prometheus", ("alertname", "alertstate", "severity"))
SCRAPE_SECONDS = gauge("scrape_duration_seconds", "How long the scrape took.", "Prometheus")
SCRAPED = gauge("scrape_samples_scraped", "Samples of the scrape.", "Prometheus")
AGENT_CPU = counter("process_cpu_seconds_total", "CPU time of the agent.", "prometheus-client")
AGENT_MEMORY = gauge("process_resident_memory_bytes", "Memory of the agent.", "prometheus-client")
ALERTS_SINCE = gauge(
    "ALERTS_FOR_STATE",
    "When each alert began to hold, in seconds since the epoch.",
    "Prometheus",
    ("alertname", "severity"),
)
FOREIGN = (UP, ALERTS, ALERTS_SINCE, SCRAPE_SECONDS, SCRAPED, AGENT_CPU, AGENT_MEMORY)
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
"""Grafana's unit of growth per second; of errors and the like we show how many."""

OF_GPU = {"nvlink", "pcie", "hbm"}
"""Data paths that belong to a GPU; the label `gpu` of the others is empty."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression and Grafana's unit of what it yields."""

    expr: str
    unit: str


@dataclass(frozen=True, slots=True)
class Query:
    """A value on a panel; a limit is drawn as a dashed line that nothing is stacked on, and what
    is there at times only as points: Grafana would draw a line across the gap."""

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
    """Only the GPUs chosen; where kinds of paths are mixed, also those of the host."""
    if "gpu" not in metric.labels:
        return []
    if "path" not in metric.labels or path in OF_GPU:
        return ['gpu=~"$gpu"']
    return ['gpu=~"$gpu|"'] if path.startswith("~") else []


def aggregated(operator: str, expr: str, by: Labels | None) -> str:
    return expr if by is None else f"{operator} by ({', '.join(by)}) ({expr})"


def now(metric: Metric, **match: str) -> Value:
    """A gauge as it is."""
    return Value(select(metric, **match), unit_of(metric))


def rate(metric: Metric, by: Labels | None = None, **match: str) -> Value:
    """Growth of a counter per second, summed by labels."""
    _must_be_counter(metric)
    expr = aggregated("sum", f"rate({select(metric, **match)}[{RATE}])", by)
    return Value(expr, unit_of(metric, RATES))


def bits(value: Value) -> Value:
    """Bytes a second of a network in bits, as networks are sold."""
    return Value(f"8 * ({value.expr})", "bps")


def grown(metric: Metric, by: Labels | None = None, within: str = RANGE, **match: str) -> Value:
    """Growth of a counter within the time that the board shows, or another, summed by labels."""
    _must_be_counter(metric)
    expr = aggregated("sum", f"increase({select(metric, **match)}[{within}])", by)
    return Value(expr, unit_of(metric))


def grown_in_all(metric: Metric, by: Labels | None = None) -> Value:
    """The same for a graph, where `grown` would look back from each of its points."""
    _must_be_counter(metric)
    expr = aggregated("sum", f"increase({select(metric)}[{RANGE}] @ end())", by)
    return Value(expr, unit_of(metric))


def total(value: Value, by: Labels = ()) -> Value:
    return Value(aggregated("sum", value.expr, by), value.unit)


def largest(value: Value, by: Labels = ()) -> Value:
    return Value(aggregated("max", value.expr, by), value.unit)


def smallest(value: Value, by: Labels = ()) -> Value:
    return Value(aggregated("min", value.expr, by), value.unit)


def counted(value: Value, by: Labels = ()) -> Value:
    return Value(aggregated("count", value.expr, by), "none")


def over(part: Value, whole: Value, on: Labels | None = None) -> Value:
    """A share: part over whole; with `on` many parts of one whole. Nothing where there is none."""
    joined = "" if on is None else f"on ({', '.join(on)}) group_left () "
    return Value(f"({part.expr}) / {joined}(({whole.expr}) > 0)", "percentunit")


def latency(seconds: Metric, requests: Metric, by: Labels) -> Value:
    """Mean time of a request: the growth of their time over that of their number."""
    part, whole = rate(seconds, by), rate(requests, by)
    return Value(f"({part.expr}) / (({whole.expr}) > 0)", "s")


def a_second(requests: Metric, by: Labels) -> Value:
    """Requests a second, in the field's own unit."""
    return Value(rate(requests, by).expr, "iops")


def less(value: Value, other: Value) -> Value:
    return Value(f"({value.expr}) - ({other.expr})", value.unit)


def where(value: Value, condition: str) -> Value:
    """Only the series for which the comparison holds."""
    return Value(f"({value.expr}) {condition}", value.unit)


def or_zero(value: Value) -> Value:
    """0 where there is no series at all: for counts of things that may not exist."""
    return Value(f"({value.expr}) or vector(0)", value.unit)


def descending(value: Value) -> Value:
    """The largest first, where a panel has one figure of each series."""
    return Value(f"sort_desc({value.expr})", value.unit)


def most(value: Value, number: int) -> Value:
    """The largest few."""
    return Value(f"topk({number}, {value.expr})", value.unit)


def least(value: Value, number: int) -> Value:
    """The smallest few."""
    return Value(f"bottomk({number}, {value.expr})", value.unit)


def with_labels_of(value: Value, info: Metric, on: Labels, labels: Labels) -> Value:
    """Labels of an information metric (whose value is 1) joined to a value."""
    join = f"* on ({', '.join(on)}) group_left ({', '.join(labels)}) "
    return Value(f"({value.expr}) {join}{select(info)}", value.unit)


def labelled(value: Value, label: str, text: str, source: str, pattern: str = "(.*)") -> Value:
    """A further label: `text` with $1 of the pattern found in the label `source`."""
    arguments = ", ".join(f'"{argument}"' for argument in (label, text, source, pattern))
    return Value(f"label_replace({value.expr}, {arguments})", value.unit)


def linked(value: Value, label: str, *sources: str) -> Value:
    """A further label: the values of others joined by a slash."""
    arguments = ", ".join(f'"{argument}"' for argument in (label, "/", *sources))
    return Value(f"label_join({value.expr}, {arguments})", value.unit)


def summed(record: Metric, by: Labels = (), **match: str) -> Value:
    """Return the sum of a record of seconds within the time that the board shows."""
    return Value(aggregated("sum", f"sum_over_time({select(record, **match)}[{RANGE}])", by), "s")


def of_cluster(record: Metric, unit: str) -> Value:
    """A record of whole clusters or racks, in the scope of the board."""
    return Value(f'{record.name}{{cluster=~"$cluster"}}', unit)


def among(value: Value, chosen: Value, on: Labels) -> Value:
    """Only those that are among others."""
    return Value(f"{value.expr} and on ({', '.join(on)}) ({chosen.expr})", value.unit)


def mean(value: Value, by: Labels = ()) -> Value:
    return Value(aggregated("avg", value.expr, by), value.unit)


def apart(value: Value, by: Labels) -> Value:
    """The series that lie far from the others of their group: more than twice the standard
    deviation, and more than a tenth, from the mean."""
    centre, joined = mean(value, by).expr, f"on ({', '.join(by)}) group_left ()"
    spread = f"2 * {aggregated('stddev', value.expr, by)} > 0.1 * {centre}"
    most = f"({spread} or 0.1 * {centre})"
    return Value(
        f"{value.expr} and (abs({value.expr} - {joined} {centre}) > {joined} {most})", value.unit
    )


def of_several(summary: Value, value: Value) -> Value:
    """Return the sum of series if there are at least two."""
    return Value(f"{summary.expr} and on () count({value.expr}) > 1", summary.unit)


def either(*values: Value) -> Value:
    return Value(" or ".join(value.expr for value in values), values[0].unit)


def _must_be_counter(metric: Metric) -> None:
    if metric.kind is not Kind.COUNTER:
        raise ValueError(f"{metric} is no counter: it has no rate")
