"""Texts about facts and findings, for the page, the terminal, and JSON.

Each kind of fact or finding has a sentence template, which consists of parts. A part is omitted if
a figure or name in it is unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from string import Formatter
from typing import Any

from agent.diagnosis.facts import FactKind
from agent.faults.model import Finding, function
from agent.faults.watch import AlertState
from agent.metrics import beside
from agent.model import Fact, Figure, Pair, Severity, Snapshot
from agent.status.model import AlertStatus, Level

SCALES = {"bytes_per_second": 1e-9, "hertz": 1e-6}
"""Factors that convert figures from base units to the units shown: GB/s and MHz."""

LEVEL: dict[Severity | None, Level] = {severity: Level(severity) for severity in Severity}
LEVEL[None] = Level.GOOD
"""The level for each severity. Healthy states have the severity None."""

GRAVEST_FIRST = (Level.CRITICAL, Level.WARNING, Level.INFO, None, Level.GOOD)
UNANSWERED = "not known: the driver does not respond"

Parts = Sequence[str]
"""Template parts. `{name}` is the figure `name`, and `{name_limit}` is its limit. `{names}` lists
all names, and `{0}` is the first. `{gpu}` and `{device}` are those of the finding. `{n:link|links}`
is a number and a noun, and `{n:~link|links}` is only the noun. `{x:rate}` is in GB/s, and
`{x:bits}` is in Gb/s. Facts and alerts also use `percent` for a ratio, and `speed` for bytes/s."""

HOUR, DAY = 3600.0, 86400.0

SOON = 10.0
"""Minimum duration in seconds that texts mention. Shorter durations would change every second."""

PATHS = {
    "nvlink": ("NVLink", "NVLink"),
    "pcie": ("PCIe", "PCIe"),
    "hbm": ("HBM", "HBM"),
    "disk": ("Disks", "disk"),
    "network": ("Network", "network port"),
    "infiniband": ("InfiniBand", "InfiniBand port"),
}
"""Titles of the kinds of data paths, in the order in which they are shown, and names in texts."""

FACTS: Mapping[FactKind, Parts] = {
    FactKind(kind): parts for kind, parts in beside(__file__, "facts").items()
}


def worst_level(levels: Iterable[Level | None]) -> Level | None:
    return min(levels, key=GRAVEST_FIRST.index, default=None)


def moment(wall: float) -> datetime:
    """Return a wall-clock time as a UTC datetime, rounded to milliseconds."""
    return datetime.fromtimestamp(round(wall, 3), UTC)


def began(snapshot: Snapshot, seconds: float) -> datetime:
    """Return the time `seconds` before the tick, rounded to 1 s so that later ticks agree."""
    return moment(round(snapshot.wall - seconds))


def duration(seconds: float) -> str:
    """Return a duration as text, in two units if it is an hour or more. It is rounded, so that
    texts do not change every second. `span` in `figures.js` must use the same format."""
    if seconds < SOON:
        return f"{seconds:.0f} s"
    if seconds < 60:
        return f"{seconds // 10 * 10:.0f} s"
    if seconds < HOUR:
        return f"{seconds // 60:.0f} min"
    size, unit, part, smaller = (DAY, "d", HOUR, "h") if seconds >= DAY else (HOUR, "h", 60, "min")
    rest = seconds % size // part
    text = f"{seconds // size:.0f} {unit}"
    return f"{text} {rest:.0f} {smaller}" if rest > 0 else text


def figure(value: float) -> str:
    """Return a number as text: with two significant digits, or rounded to an integer above 9.9."""
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:.2g}" if value < 9.95 else f"{value:.0f}"


def rate(moved: float | None, limit: float | None, path: str) -> str:
    """Return a rate and its limit, if known: `39 of 55 GB/s`, or Gb/s for network ports."""
    times, unit = (8, "Gb/s") if path in ("network", "infiniband") else (1, "GB/s")
    shown = ["-" if one is None else figure(times * one / 1e9) for one in (moved, limit)]
    return f"{shown[0]} {unit}" if limit is None else f"{shown[0]} of {shown[1]} {unit}"


FORMS: Mapping[str, Callable[[float], str]] = {
    "percent": lambda share: f"{100 * share:.0f} %",
    "rate": figure,
    "speed": lambda value: f"{figure(8e-9 * value)} Gb/s",
    "bits": lambda value: figure(8 * value),
    "duration": duration,
}


class _Amount(float):
    """A number with format specs for templates. `link|links` adds a singular or plural noun."""

    def __format__(self, spec: str) -> str:
        if spec in FORMS:
            return FORMS[spec](float(self))
        one, bar, many = spec.removeprefix("~").partition("|")
        if not bar:
            return super().__format__(spec)
        singular = round(self) == 1
        if one == "once":
            return one if singular else f"{self:.0f} {many}"
        word = one if singular else many
        return word if spec.startswith("~") else f"{self:.0f} {word}"


def _given(figures: Iterable[Figure], names: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if names:
        given |= {"names": ", ".join(names), "n": _Amount(len(names))}
        given |= {"further": ", ".join(names[2:]), "path": PATHS.get(names[0], names[:1])[-1]}
    for name, value, limit, unit in figures:
        scale = SCALES.get(unit, 1.0)
        given[name] = _Amount(value * scale)
        if limit is not None:
            given[f"{name}_limit"] = _Amount(limit * scale)
    return given


def _sentence(parts: Parts, names: Sequence[str], given: Mapping[str, Any]) -> str:
    there = {*given, *map(str, range(len(names)))}
    known = (part for part in parts if there.issuperset(_fields(part)))
    return "".join(part.format(*names, **given) for part in known)


@lru_cache(maxsize=1024)
def _fields(part: str) -> frozenset[str]:
    """Return the names of the figures and names that a template part contains."""
    return frozenset(name for _, name, _, _ in Formatter().parse(part) if name is not None)


def fact_text(fact: Fact) -> str:
    """Return a fact as a clause without the GPU name."""
    given = _given(fact.figures, fact.names)
    if fact.gpu is not None:
        given["gpu"] = fact.gpu.index
    return _sentence(FACTS[FactKind(fact.kind)], fact.names, given)


def finding_text(finding: Finding) -> str:
    """Return a finding as text, without the name of its GPU."""
    fault = finding.fault
    given = {name: label for name, label in finding.labels if label}
    given |= _given(finding.figures, finding.names)
    if not (finding.gpu and finding.device == f"gpu{finding.gpu.index}"):
        given["device"] = finding.device
    terms = fault.finding.terms if fault.finding else {}
    given |= {name: function(term)(finding) for name, term in terms.items()}
    if fault.words:
        value = finding.names[0] if finding.names else f"{finding.figures[0].value:.0f}"
        given["word"] = fault.words.get(value, f"code {value}")
    return _sentence(fault.sentence, finding.names, given)


CALLS = {
    Severity.CRITICAL: "critical: pages on-call immediately",
    Severity.WARNING: "warning: notifies, does not page",
    Severity.INFO: "info: notifies, does not page",
}
"""Texts about the effect of an alert, by severity. `alerts/build.py` implements these effects."""


def alert_status(
    name: str, severity: Severity, state: AlertState, when: str = ""
) -> AlertStatus | None:
    """Return an alert with a text such as `alert DgxGpuMissing (critical: pages on-call
    immediately) would fire in 1 min`. Return None if the name is empty."""
    if not name:
        return None
    text = f"alert {name} ({CALLS[severity]}) {when}".rstrip()
    return AlertStatus(name=name, severity=LEVEL[severity], state=state, text=text)


def wait(hold: float) -> str:
    """Return the advice to do nothing about a late read unless it stays late for `hold` seconds."""
    return f"Nothing yet: a late read ends by itself. Act if it lasts for {duration(hold)}."


def pair_name(pair: Pair) -> str:
    """Return a state and its cause as `state/cause`."""
    return f"{pair[0].value}/{pair[1].value}"
