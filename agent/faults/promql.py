"""Rewrites PromQL for test stacks with faster clocks and for missed scrapes."""

import re
from typing import NamedTuple

NODE = "instance, job"
"""The target labels that identify a machine."""

REMEMBERED = "1d"
"""Length of time in which rules search for GPUs that were present and for earlier events."""

SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SPAN = re.compile(r"([0-9]{1,15})(ms|[smhdw])")


def seconds(span: str) -> float:
    """Return the seconds in a Prometheus duration (900 for `15m`). Raise ValueError if invalid."""
    found = SPAN.fullmatch(span)
    if found is None:
        raise ValueError(span)
    return int(found[1]) * SPAN_UNITS[found[2]]


def spoken(span: str) -> str:
    """Return a Prometheus duration in words, for example `15 min` for `15m`."""
    return SPAN.sub(lambda found: f"{found[1]} {'min' if found[2] == 'm' else found[2]}", span)


def span(length: float) -> str:
    """Return `length` (s) as a whole number of the largest Prometheus unit, at least of ms."""
    milliseconds = max(1, round(length * 1000))
    for unit in ("d", "h", "m", "s"):
        size = round(SPAN_UNITS[unit] * 1000)
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


RANGE = re.compile(rf"(?:(?<=\[)|(?<=s:)|(?<= offset )){SPAN.pattern}(?![\w.])")
"""Matches a range, the step of a subquery, or an offset in a PromQL expression."""


def scaled(expr: str, scale: float) -> str:
    """Return a PromQL expression in which every range and `rate` is multiplied by `scale`. A range
    that is a millisecond shorter than whole seconds, so that it does not overlap another range, is
    also a millisecond shorter after scaling."""
    if scale == 1.0:
        return expr

    def longer(found: re.Match[str]) -> str:
        length = seconds(found[0])
        short = 0.001 if round(length * 1000) % 1000 == 999 else 0.0
        return span((length + short) * scale - short)

    return re.sub(r"\brate\([^()]*\)", rf"(\g<0> * {scale:.9g})", RANGE.sub(longer, expr))


INSTANT = re.compile(
    r"(?:(?<![\w:])dgx_\w+(?![\w:])(?:\{[^}]*\})?|\{__name__[^}]*\})(?! *[\[{]| offset)"
)
"""Matches a vector selector with a metric name or `__name__`, without a range or offset."""

HELD = 135.0
"""Seconds for which rules use the last value of a series after a failed scrape, which marks all
series of the target as stale. Scrapes may be two minutes apart."""

SOONER, AT_ONCE = 15.0, 60.0
"""SOONER: the last value is used for this many seconds less than the `for` of the alert, so that a
condition that is true in a single scrape does not fire the alert. AT_ONCE: seconds for which the
last value is used if the alert has no `for`."""


def held(expr: str, scale: float, hold: float = 2 * HELD) -> str:
    """Return a PromQL expression that uses the last value of a series after failed scrapes. `hold`
    is the `for` of the alert in seconds. If it is short, only stale values are replaced."""
    most = min(HELD, hold - SOONER) if hold else AT_ONCE
    last = "last_over_time({0}[" + span(most * scale) + "])"
    kept = last if most == HELD else f"({{0}} or {last})"
    return INSTANT.sub(lambda found: kept.replace("{0}", found[0]), expr)


class Recording(NamedTuple):
    """A recording rule. `record` has the form level:metric:operations. If `held` is true, the rule
    uses the last value of a series after failed scrapes. If `here` is set, the agent evaluates
    `here` instead of `expr`. `labels` are those of the resulting series."""

    record: str
    expr: str
    held: bool = False
    here: str = ""
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.record
