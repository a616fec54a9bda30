"""The shares that several boards show: of GPU time by state, of time that a path was full."""

from agent.diagnosis.accounting import STATE_SECONDS
from agent.limits.paths import LIMIT, OBSERVED, RATIO, SATURATED, SPEC
from agent.model import State
from agent.sources import disk
from dashboards.queries import (
    ALERTS,
    ALERTS_SINCE,
    RANGE,
    Labels,
    Query,
    Value,
    apart,
    bits,
    grown,
    grown_in_all,
    largest,
    linked,
    mean,
    now,
    of_several,
    over,
    rate,
    select,
    smallest,
)

NODE: Labels = ("instance",)
GPU: Labels = ("instance", "gpu")
CAUSE: Labels = ("state", "cause")
DEVICE: Labels = ("instance", "path", "device", "direction")
BUSY_DISK = 0.9
"""Share of the time with a request in flight from which a disk without a limit counts as full; one
that serves many requests at once may still have room, but it is where to look."""

WHOLE_GPU = "~gpu[0-9]+"
"""Devices of NVLink that are all links of a GPU together; single links are gpu0:3."""


def time_in(state: State, by: Labels = ()) -> Value:
    """Share of the observed GPU time, within what the board shows, that went into a state."""
    return over(grown(STATE_SECONDS, by, state=state.value), grown(STATE_SECONDS, by))


def time_by_cause(**match: str) -> Value:
    """Share of the observed GPU time by state and cause, over time; from busy to throttled.

    Prometheus sorts series by their labels, and areas lie on each other in that order.
    """
    share = over(rate(STATE_SECONDS, CAUSE, **match), rate(STATE_SECONDS, ()), on=())
    return linked(share, "account", *CAUSE)


def time_by_cause_seen() -> Value:
    """The same, of those that there were at any time within what the board shows."""
    ever = grown_in_all(STATE_SECONDS, CAUSE).expr
    share = time_by_cause()
    return Value(f"{share.expr} and on ({', '.join(CAUSE)}) ({ever}) > 0", share.unit)


def range_by_cause(**match: str) -> Value:
    """Share of the observed GPU time by state and cause, over all that the board shows."""
    return over(grown(STATE_SECONDS, CAUSE, **match), grown(STATE_SECONDS, ()), on=())


def saturated(by: Labels, **match: str) -> Value:
    """Share of the observed time, within what the board shows, for which a path was full."""
    full = f"{grown(SATURATED, None, **match).expr} / ({grown(OBSERVED, None, **match).expr} > 0)"
    if "disk" in match.get("path", "disk"):
        full = f"{full} or {_busy_disks()}"
    return Value(f"max by ({', '.join(by)}) ({full})", "percentunit")


def _busy_disks() -> str:
    """Disks without a known limit that were hardly ever without a request: the share of the time,
    as paths of the direction `busy`."""
    busy = f"rate({select(disk.BUSY)}[{RANGE}]) >= {BUSY_DISK:g}"
    known = f"on (instance, job, device) {select(LIMIT, path='disk')}"
    path = f'label_replace({busy} unless {known}, "path", "disk", "", "")'
    return f'label_replace({path}, "direction", "busy", "", "")'


def fullness(by: Labels, **match: str) -> Value:
    """Traffic over the limit: the fullest of each group."""
    return Value(f"max by ({', '.join(by)}) ({select(RATIO, **match)})", "percentunit")


def limit(legend: str = "smallest limit", **match: str) -> Query:
    """The limit of a path as a dashed line, in the unit of its traffic: the smallest of the devices
    shown."""
    least = smallest(now(LIMIT, **match))
    network = match.get("path") in ("network", "infiniband")
    return Query(bits(least) if network else least, legend, limit=True)


def of_spec() -> Value:
    """Return the present limit of each path over the figure of its spec sheet."""
    return over(largest(now(LIMIT), DEVICE), largest(now(SPEC), DEVICE))


def spread(value: Value, name: str) -> list[Query]:
    """Many GPUs in a few lines: the least, the mean, the most, and each that lies far from the
    rest by its name. Of one GPU the mean is all there is."""
    return [
        Query(of_several(smallest(value), value), "least"),
        Query(mean(value), "mean"),
        Query(of_several(largest(value), value), "most"),
        Query(apart(value, NODE), name, points=True),
    ]


PLACES_OF_NODES = 'instance=~"$instance"'
PLACES_OF_FLEET = 'cluster=~"$cluster|",rack=~"$rack|",instance=~"$instance|"'
"""Also what is said of a rack or a cluster: such an alert has no instance."""


def since(by: Labels, severity: str, places: str) -> Value:
    """Return the time when the first of those alerts began to hold, in milliseconds since the
    epoch."""
    began = _of_ours(ALERTS_SINCE.name, severity, places=places)
    firing = f"ignoring (alertstate) {alerts(None, severity, places=places).expr}"
    expr = f"min by ({', '.join(by)}) ({began} and {firing}) * 1000"
    return Value(expr, "dateTimeFromNow")


def _of_ours(name: str, severity: str = "", state: str = "", places: str = PLACES_OF_NODES) -> str:
    """Alerts of ours, without the one that always fires."""
    which = f'severity=~"{severity}",' if severity else ""
    return (
        f'{name}{{{state}alertname=~"Dgx.+",alertname!="DgxWatchdog",{which}job=~"$job|",{places}}}'
    )


def alerts(by: Labels | None = None, severity: str = "", *, places: str = PLACES_OF_NODES) -> Value:
    """Firing alerts, with a severity or any."""
    expr = _of_ours(ALERTS.name, severity, 'alertstate="firing",', places)
    return Value(expr if by is None else f"count by ({', '.join(by)}) ({expr})", "none")
