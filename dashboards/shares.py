"""The shares that several boards show: of GPU time by state, of time that a path was full."""

from agent.diagnosis.accounting import STATE_SECONDS
from agent.limits.paths import LIMIT, OBSERVED, RATIO, SATURATED, SPEC
from agent.model import State
from dashboards.queries import (
    ALERTS,
    Labels,
    Query,
    Value,
    grown,
    grown_in_all,
    largest,
    linked,
    now,
    over,
    rate,
    select,
    smallest,
)

NODE: Labels = ("instance",)
GPU: Labels = ("instance", "gpu")
CAUSE: Labels = ("state", "cause")
DEVICE: Labels = ("instance", "path", "device", "direction")
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
    return Value(
        f"max by ({', '.join(by)}) ({grown(SATURATED, None, **match).expr}"
        f" / ({grown(OBSERVED, None, **match).expr} > 0))",
        "percentunit",
    )


def fullness(by: Labels, **match: str) -> Value:
    """Traffic over the limit: the fullest of each group."""
    return Value(f"max by ({', '.join(by)}) ({select(RATIO, **match)})", "percentunit")


def limit(legend: str = "limit", **match: str) -> Query:
    """The limit of a path as a dashed line: the smallest of the devices shown."""
    return Query(smallest(now(LIMIT, **match)), legend, limit=True)


def of_spec() -> Value:
    """What each path can carry now over what its spec sheet says."""
    return over(largest(now(LIMIT), DEVICE), largest(now(SPEC), DEVICE))


def alerts(by: Labels | None = None, severity: str = "") -> Value:
    """Firing alerts of ours, without the one that always fires; not every alert has an instance."""
    which = f'severity="{severity}",' if severity else ""
    expr = (
        f'{ALERTS}{{alertstate="firing",alertname=~"Dgx.+",alertname!="DgxWatchdog",{which}'
        'job=~"$job|",instance=~"$instance|"}'
    )
    return Value(expr if by is None else f"count by ({', '.join(by)}) ({expr})", "none")
