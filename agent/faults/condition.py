"""Conditions of faults: one expression, evaluated on samples of the agent and written as PromQL."""

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.faults.promql import NODE, matcher, pick
from agent.model import Metric
from agent.series import SampleStore

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
