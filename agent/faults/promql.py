"""The pieces of PromQL that the rules are made of, and conditions, which are evaluated on samples
too. Labels of the target (instance, job, and what the owner adds) are kept everywhere."""

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.diagnosis import accounting
from agent.faults.values import seconds
from agent.model import Kind, Metric
from agent.series import SampleStore
from agent.sources import gpu, system
from agent.sources.agent_health import LAST_TICK

NODE = "instance, job"
GPU = f"{NODE}, gpu, uuid"
"""The labels that identify a machine, and a GPU of it."""


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


class Condition(ABC):
    """An expression over series. Comparisons keep the rows that hold, as in PromQL."""

    @abstractmethod
    def rows(self, samples: SampleStore) -> Vector:
        """The value of each row, on the samples of one machine."""

    @abstractmethod
    def __str__(self) -> str:
        """PromQL."""

    def __lt__(self, other: "Condition | float") -> "Condition":
        return Compared(self, "<", other)

    def __le__(self, other: "Condition | float") -> "Condition":
        return Compared(self, "<=", other)

    def __gt__(self, other: "Condition | float") -> "Condition":
        return Compared(self, ">", other)

    def __ge__(self, other: "Condition | float") -> "Condition":
        return Compared(self, ">=", other)

    def equals(self, number: float) -> "Condition":
        return Compared(self, "==", number)

    def having(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other (none: of the same machine)."""
        return Joined(self, other, on, keep=True)

    def unless(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with no row of the other (none: of the same machine)."""
        return Joined(self, other, on, keep=False)


@dataclass(frozen=True, slots=True)
class Selected(Condition):
    """The series of a metric whose labels match; matchers are written as `pick` takes them."""

    metric: Metric
    labels: Mapping[str, str]

    def rows(self, samples: SampleStore) -> Vector:
        names = self.metric.labels
        wanted = [(names.index(name), word) for name, word in self.labels.items()]
        return {
            frozenset(zip(names, labels, strict=True)): value
            for labels, value in samples.all(self.metric).items()
            if all(_matches(labels[place], word) for place, word in wanted)
        }

    def __str__(self) -> str:
        return pick(self.metric, **self.labels)


def of(metric: Metric, **labels: str) -> Selected:
    """The series of a metric, as `of(ecc.REMAPPED_ROWS, severity="uncorrected")`."""
    return Selected(metric, labels)


def _matches(value: str, wanted: str) -> bool:
    how, word = matcher(wanted)
    same = value == word if how in ("=", "!=") else re.fullmatch(word, value) is not None
    return same != how.startswith("!")


@dataclass(frozen=True, slots=True)
class Compared(Condition):
    """The rows of the left side for which the comparison holds."""

    left: Condition
    sign: str
    right: Condition | float

    def rows(self, samples: SampleStore) -> Vector:
        """A row that the right side does not have is left out."""
        holds, left = COMPARISONS[self.sign], self.left.rows(samples)
        if isinstance(self.right, Condition):
            right = self.right.rows(samples)
            return {row: v for row, v in left.items() if row in right and holds(v, right[row])}
        return {row: value for row, value in left.items() if holds(value, self.right)}

    def __str__(self) -> str:
        right = self.right if isinstance(self.right, Condition) else f"{self.right:g}"
        return f"{self.left} {self.sign} {right}"


@dataclass(frozen=True, slots=True)
class Joined(Condition):
    """The rows of the left side that have, or do not have, a partner on the right."""

    left: Condition
    right: Condition
    on: tuple[str, ...]
    keep: bool

    def rows(self, samples: SampleStore) -> Vector:
        """Two rows are partners if they share the labels of `on`."""
        partners = {self._key(row) for row in self.right.rows(samples)}
        left = self.left.rows(samples).items()
        return {row: value for row, value in left if (self._key(row) in partners) is self.keep}

    def _key(self, row: Row) -> Row:
        return frozenset(pair for pair in row if pair[0] in self.on)

    def __str__(self) -> str:
        word = "and" if self.keep else "unless"
        right = self.right if isinstance(self.right, Selected) else f"({self.right})"
        return f"{self.left} {word} on ({', '.join((NODE, *self.on))}) {right}"


@dataclass(frozen=True, slots=True)
class SumWithout(Condition):
    """Sums over one label."""

    label: str
    inner: Condition

    def rows(self, samples: SampleStore) -> Vector:
        """One row for all values of the label."""
        sums: dict[Row, float] = {}
        for row, value in self.inner.rows(samples).items():
            rest = frozenset(pair for pair in row if pair[0] != self.label)
            sums[rest] = sums.get(rest, 0.0) + value
        return sums

    def __str__(self) -> str:
        return f"sum without ({self.label}) ({self.inner})"


@dataclass(frozen=True, slots=True)
class Difference(Condition):
    """The left side less the right one, whose rows have all labels of it but `ignored`."""

    left: Condition
    right: Condition
    ignored: str = ""

    def rows(self, samples: SampleStore) -> Vector:
        """A row without a partner is left out."""
        right = self.right.rows(samples)
        found = {}
        for row, value in self.left.rows(samples).items():
            rest = frozenset(pair for pair in row if pair[0] != self.ignored)
            if rest in right:
                found[rest] = value - right[rest]
        return found

    def __str__(self) -> str:
        match = f" ignoring ({self.ignored})" if self.ignored else ""
        return f"{self.left} -{match} {self.right}"
