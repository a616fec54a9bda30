"""The pieces of PromQL that the rules are made of, and conditions, which are evaluated on samples
too. Labels of the target (instance, job, and what the owner adds) are kept everywhere."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.diagnosis import accounting
from agent.model import Kind, Metric
from agent.series import SampleStore
from agent.sources import gpu, system
from agent.sources.agent_health import LAST_TICK

NODE = "instance, job"
GPU = f"{NODE}, gpu, uuid"
"""The labels that identify a machine, and a GPU of it."""


SPAN_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SPAN = re.compile(r"([0-9]{1,15})(ms|[smhdw])")


def seconds(span: str) -> float:
    """15m is 900; raises ValueError."""
    found = SPAN.fullmatch(span)
    if found is None:
        raise ValueError(span)
    return int(found[1]) * SPAN_UNITS[found[2]]


class Recording(NamedTuple):
    """One recording rule; `record` is named level:metric:operations."""

    record: str | Metric
    expr: str

    def __str__(self) -> str:
        return str(self.record)


LOST = (
    f"(group without () ({accounting.UNOBSERVED_SECONDS}) unless on ({NODE}, uuid) {gpu.INFO}"
    f" and on ({NODE}) ({system.GPUS} < {system.GPUS_EXPECTED}))"
)
"""GPUs that are known and gone: their accounts stay, what describes them has no value. Of a driver
that hangs no GPU is lost: nothing at all has a value then."""


def one(expr: str, *labels: str) -> str:
    """The one side of a join: a row a machine and these labels, whatever else its owner's labels
    are, so that a target that is relabelled or scraped twice makes no rule fail."""
    return f"max by ({', '.join((NODE, *labels))}) ({expr})"


REMEMBERED = "1d"
"""Time for which a machine's parts are remembered: GPUs, should its driver be gone; past events."""


def pick(metric: Metric | Recording, /, **labels: str) -> str:
    """Series by their labels; a value that begins with = ! or ~ brings its own operator."""
    pairs = ((name, *matcher(value)) for name, value in labels.items())
    matchers = ", ".join(f'{name}{operator}"{word}"' for name, operator, word in pairs)
    return f"{metric}{{{matchers}}}" if matchers else str(metric)


def matcher(value: str) -> tuple[str, str]:
    return (value[:2], value[2:]) if value[:2] in ("!=", "=~", "!~") else ("=", value)


def rate(counter: Metric, over: str, /, **labels: str) -> str:
    assert counter.kind is Kind.COUNTER, f"{counter} is no counter"
    return f"rate({pick(counter, **labels)}[{over}])"


def increase(counter: Metric, over: str, /, **labels: str) -> str:
    assert counter.kind is Kind.COUNTER, f"{counter} is no counter"
    return f"increase({pick(counter, **labels)}[{over}])"


def observed_share(part: str, whole: str, window: str, but: str = "", least: float = 0.5) -> str:
    """The part of the time observed, from the growth of two counters of seconds, once so much of
    the window was observed: an agent that has just started does not take its first minute for a
    quarter of an hour, and one that restarts often loses as much of the part as of the whole. No
    rates: those of VictoriaMetrics are of the time between the samples that there are. `but` names
    labels that only the part has."""
    match = f"ignoring ({but}) group_left () " if but else ""
    return f"{part} / {match}({whole} >= {least * seconds(window):g})"


def events(
    counter: Metric, over: str, memory: str, /, had: Recording | None = None, **labels: str
) -> str:
    """Growth of a counter whose series may begin with its first event, which no increase shows.

    A series is new when `memory` before the window knew nothing of it under any number of its GPU,
    and the agent was scraped within the window without it: one look back would take each old event
    for new whenever half an hour after a gap between two scrapes, after a GPU was lost and others
    moved up, or where Prometheus has just begun. `had` records the series above 0: where most are
    at 0, to look through all of them over a day each time takes Prometheus longer than the time
    between two evaluations. The agent's scrapes are matched by all labels of the target: of one
    that was relabelled those before do not count. A restart of the agent may end the series.
    """
    kept = [label for label in counter.labels if label != "gpu"]
    series = pick(counter, **labels)
    old = f"last_over_time({pick(had or counter, **labels)}[{memory}] offset {over})"
    new = f"max_over_time({pick(had or counter, **labels)}[{over}]) > 0"
    scrapes = f"sum without (gpu) (count_over_time({series}[{over}]) and ignoring (gpu) {new})"
    ticks = f"ignoring ({', '.join(kept)}) group_left () count_over_time({LAST_TICK}[{over}])"
    same = f"on ({', '.join((NODE, *kept))})"
    born = f"({new} unless {same} {old} unless ignoring (gpu) ({scrapes} >= {ticks}))"
    return f"({increase(counter, over, **labels)} > 0) or {born}"


Row = frozenset[tuple[str, str]]
"""The labels of one series, without those of the target: the agent knows one machine."""

Vector = Mapping[Row, float]

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """An expression over series, as PromQL and as a function of the samples of one machine.
    Comparisons keep the rows that hold, as in PromQL."""

    text: str
    rows: Callable[[SampleStore], Vector]

    def __str__(self) -> str:
        return self.text

    def __lt__(self, other: "Condition | float") -> "Condition":
        return self._compared("<", other)

    def __le__(self, other: "Condition | float") -> "Condition":
        return self._compared("<=", other)

    def __gt__(self, other: "Condition | float") -> "Condition":
        return self._compared(">", other)

    def __ge__(self, other: "Condition | float") -> "Condition":
        return self._compared(">=", other)

    def equals(self, number: float) -> "Condition":
        return self._compared("==", number)

    def _compared(self, sign: str, other: "Condition | float") -> "Condition":
        """A row that the other side does not have is left out."""
        holds = COMPARISONS[sign]
        if not isinstance(other, Condition):
            return Condition(
                f"{self} {sign} {other:g}",
                lambda samples: {r: v for r, v in self.rows(samples).items() if holds(v, other)},
            )

        def rows(samples: SampleStore) -> Vector:
            left, right = self.rows(samples), other.rows(samples)
            return {row: v for row, v in left.items() if row in right and holds(v, right[row])}

        return Condition(f"{self} {sign} {other}", rows)

    def having(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other (none: of the same machine)."""
        return self._joined("and", other, on)

    def unless(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with no row of the other (none: of the same machine)."""
        return self._joined("unless", other, on)

    def _joined(self, word: str, other: "Condition", on: tuple[str, ...]) -> "Condition":
        def key(row: Row) -> Row:
            return frozenset(pair for pair in row if pair[0] in on)

        def rows(samples: SampleStore) -> Vector:
            partners, keep = set(map(key, other.rows(samples))), word == "and"
            left = self.rows(samples).items()
            return {row: value for row, value in left if (key(row) in partners) is keep}

        right = f"({other})" if SIGNED.search(str(other)) else other
        return Condition(f"{self} {word} on ({', '.join((NODE, *on))}) {right}", rows)

    def sum_without(self, label: str) -> "Condition":
        """Sums over one label: one row for all its values."""

        def rows(samples: SampleStore) -> Vector:
            sums: dict[Row, float] = {}
            for row, value in self.rows(samples).items():
                rest = without(row, label)
                sums[rest] = sums.get(rest, 0.0) + value
            return sums

        return Condition(f"sum without ({label}) ({self})", rows)

    def minus(self, other: "Condition", ignored: str) -> "Condition":
        """The difference to the rows of the other, which have all labels but `ignored`; a row
        without a partner is left out."""

        def rows(samples: SampleStore) -> Vector:
            right = other.rows(samples)
            left = ((without(row, ignored), value) for row, value in self.rows(samples).items())
            return {rest: value - right[rest] for rest, value in left if rest in right}

        return Condition(f"{self} - ignoring ({ignored}) {other}", rows)


SIGNED = re.compile(r" (?:and|unless|[<>=]=?) ")
"""Of an expression that needs brackets: more than a selector."""


def without(row: Row, label: str) -> Row:
    return frozenset(pair for pair in row if pair[0] != label)


def of(metric: Metric, **labels: str) -> Condition:
    """The series of a metric whose labels match, as `of(ecc.ERRORS, severity="corrected")`;
    matchers are written as `pick` takes them."""
    wanted = [(metric.labels.index(name), matcher(word)) for name, word in labels.items()]

    def matches(value: str, how: str, word: str) -> bool:
        same = value == word if how in ("=", "!=") else re.fullmatch(word, value) is not None
        return same != how.startswith("!")

    def rows(samples: SampleStore) -> Vector:
        return {
            frozenset(zip(metric.labels, found, strict=True)): value
            for found, value in samples.all(metric).items()
            if all(matches(found[place], *word) for place, word in wanted)
        }

    return Condition(pick(metric, **labels), rows)
