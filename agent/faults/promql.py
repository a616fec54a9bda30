"""The texts of rules: spans of time, ranges on a faster clock, and instant values that are held."""

import re
from typing import NamedTuple

NODE = "instance, job"
"""The labels that identify a machine."""

JOB = "dgx-telemetry"
"""The job label, by convention."""

UP = f'up{{job="{JOB}"}}'
"""Prometheus' own metric: 1 if the last scrape succeeded."""

REMEMBERED = "1d"
"""Time for which a machine's parts are remembered: GPUs without a driver, and past events."""

SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SPAN = re.compile(r"([0-9]{1,15})(ms|[smhdw])")


def seconds(span: str) -> float:
    """Return the seconds of a span, 900 for 15m; raises ValueError."""
    found = SPAN.fullmatch(span)
    if found is None:
        raise ValueError(span)
    return int(found[1]) * SPAN_UNITS[found[2]]


def spoken(span: str) -> str:
    """Return a span in words: 15m is `15 min`."""
    return SPAN.sub(lambda found: f"{found[1]} {'min' if found[2] == 'm' else found[2]}", span)


def span(length: float) -> str:
    """Return so many seconds, to the millisecond, in the largest unit that gives a whole number."""
    milliseconds = max(1, round(length * 1000))
    for unit in ("d", "h", "m", "s"):
        size = round(SPAN_UNITS[unit] * 1000)
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


RANGE = re.compile(rf"(?:(?<=\[)|(?<=s:)|(?<= offset )){SPAN.pattern}(?![\w.])")
"""A range, the step of a subquery, or an offset."""


def scaled(expr: str, scale: float) -> str:
    """PromQL with every range multiplied. A range that is a millisecond short of whole seconds, so
    that two do not overlap, stays so."""
    if scale == 1.0:
        return expr

    def longer(found: re.Match[str]) -> str:
        length = seconds(found[0])
        short = 0.001 if round(length * 1000) % 1000 == 999 else 0.0
        return span((length + short) * scale - short)

    return RANGE.sub(longer, expr)


INSTANT = re.compile(
    r"(?:(?<![\w:])dgx_\w+(?![\w:])(?:\{[^}]*\})?|\{__name__[^}]*\})(?! *[\[{]| offset)"
)
"""A selector of instant values: of a metric, or of several, without a range or an offset."""

HELD = 135.0
"""Seconds for which rules hold the last value of a target: a failed scrape marks all its series as
stale. Scrapes may be two minutes apart."""

SOONER, AT_ONCE = 15.0, 60.0
"""Seconds by which a value is held for less than the `for` of its alert, so that a condition of a
single scrape fires no alert; seconds for which it is held if the alert has no `for`."""


def held(expr: str, scale: float, hold: float = 2 * HELD) -> str:
    """Return PromQL with instant values held, for an alert that fires after so many seconds. For a
    short time, a value that no failed scrape has marked counts at any age."""
    most = min(HELD, hold - SOONER) if hold else AT_ONCE
    last = "last_over_time({0}[" + span(most * scale) + "])"
    kept = last if most == HELD else f"({{0}} or {last})"
    return INSTANT.sub(lambda found: kept.replace("{0}", found[0]), expr)


class Recording(NamedTuple):
    """A recording rule; `record` is named level:metric:operations. Its values are held, except for
    a record that has a memory of its own. The agent evaluates `here` if that differs."""

    record: str
    expr: str
    held: bool = False
    here: str = ""

    def __str__(self) -> str:
        return self.record
