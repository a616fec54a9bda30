"""The pieces of PromQL that the rules are made of, and conditions, which are evaluated on samples
too. Labels of the target (instance, job, and what the owner adds) are kept everywhere."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from agent.faults.windows import Ask, Counted, FaultSamples
from agent.model import Kind, Labels, Metric
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


def spoken(span: str) -> str:
    """Return a span in words: 15m is `15 min`."""
    return SPAN.sub(lambda found: f"{found[1]} {'min' if found[2] == 'm' else found[2]}", span)


class Recording(NamedTuple):
    """One recording rule; `record` is named level:metric:operations."""

    record: str | Metric
    expr: str

    def __str__(self) -> str:
        return str(self.record)


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


class EventRecords(NamedTuple):
    """The records of one counter whose series may begin with their first event, which no increase
    shows: the series above 0; those that are new within the window; the events within it.

    A series is new when a day before the window knew nothing of it under any number of its GPU, and
    the agent was scraped within the window without it: else each old event would be new after a gap
    between two scrapes, after a GPU was lost and others moved up, or where Prometheus has just
    begun. The agent's scrapes are matched by all labels of the target: of one that was relabelled
    those before do not count. A restart of the agent may end the series.
    """

    above: Recording
    born: Recording
    events: Recording

    @classmethod
    def of(cls, counter: Metric, window: str, over: str, memory: str, **labels: str) -> Self:
        name = f"instance_{'_'.join(counter.labels[2:] or counter.labels)}"
        name += f":{counter.name.removesuffix('_total')}"
        above = Recording(f"{name}:above0", f"{pick(counter, **labels)} > 0")
        kept = [label for label in counter.labels if label != "gpu"]
        new = f"max_over_time({above}[{over}])"
        seen = f"count_over_time({pick(counter, **labels)}[{over}])"
        ticks = f"ignoring ({', '.join(kept)}) group_left () count_over_time({LAST_TICK}[{over}])"
        always = f"sum without (gpu) ({seen} and ignoring (gpu) {new}) >= {ticks}"
        old = f"on ({NODE}, {', '.join(kept)}) last_over_time({above}[{memory}] offset {over})"
        born = f"{new} unless {old} unless ignoring (gpu) ({always})"
        grown = f"({increase(counter, over, **labels)} > 0) or {name}:born{window}"
        return cls(
            above,
            Recording(f"{name}:born{window}", born),
            Recording(f"{name}:events{window}", grown),
        )


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
    rows: Callable[[FaultSamples], Vector]
    asks: frozenset[Ask] = frozenset()

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
            return self.made(
                f"{self} {sign} {other:g}",
                lambda samples: {r: v for r, v in self.rows(samples).items() if holds(v, other)},
            )

        def rows(samples: FaultSamples) -> Vector:
            left, right = self.rows(samples), other.rows(samples)
            return {row: v for row, v in left.items() if row in right and holds(v, right[row])}

        return self.made(f"{self} {sign} {other}", rows, other)

    def having(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other (none: of the same machine)."""
        return self._joined("and", other, on)

    def unless(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with no row of the other (none: of the same machine)."""
        return self._joined("unless", other, on)

    def _joined(self, word: str, other: "Condition", on: tuple[str, ...]) -> "Condition":
        def key(row: Row) -> Row:
            return frozenset(pair for pair in row if pair[0] in on)

        def rows(samples: FaultSamples) -> Vector:
            partners, keep = set(map(key, other.rows(samples))), word == "and"
            left = self.rows(samples).items()
            return {row: value for row, value in left if (key(row) in partners) is keep}

        right = f"({other})" if SIGNED.search(str(other)) else other
        return self.made(f"{self} {word} on ({', '.join((NODE, *on))}) {right}", rows, other)

    def made(
        self, text: str, rows: Callable[[FaultSamples], Vector], *others: "Condition"
    ) -> "Condition":
        """Return a condition that is made of this one and others."""
        return Condition(text, rows, self.asks.union(*(other.asks for other in others)))

    def named(self, record: "Recording", **labels: str) -> "Condition":
        """Return the same condition, whose PromQL asks for the record of it, by these labels."""
        return self.made(pick(record, **labels), self.rows)

    def rounded(self) -> "Condition":
        return self.made(
            f"round({self})",
            lambda samples: {row: float(round(v)) for row, v in self.rows(samples).items()},
        )

    def count_without(self, *labels: str) -> "Condition":
        """The number of rows for all values of these labels."""

        def rows(samples: FaultSamples) -> Vector:
            counts: dict[Row, float] = {}
            for row in self.rows(samples):
                rest = without(row, *labels)
                counts[rest] = counts.get(rest, 0.0) + 1
            return counts

        return self.made(f"count without ({', '.join(labels)}) ({self})", rows)

    def max_without(self, *labels: str) -> "Condition":
        """The largest value for all values of these labels."""

        def rows(samples: FaultSamples) -> Vector:
            found: dict[Row, float] = {}
            for row, value in self.rows(samples).items():
                rest = without(row, *labels)
                found[rest] = max(value, found.get(rest, value))
            return found

        return self.made(f"max without ({', '.join(labels)}) ({self})", rows)

    def over(self, other: "Condition") -> "Condition":
        """The quotient of rows that have the same labels."""

        def rows(samples: FaultSamples) -> Vector:
            right, left = other.rows(samples), self.rows(samples)
            return {row: value / right[row] for row, value in left.items() if right.get(row)}

        return self.made(f"{self} / {other}", rows, other)

    def copied(self, label: str, source: str) -> "Condition":
        """The same rows with one more label, of the value of another."""

        def rows(samples: FaultSamples) -> Vector:
            found = self.rows(samples).items()
            return {row | {(label, dict(row).get(source, ""))}: value for row, value in found}

        text = f'label_replace({self}, "{label}", "$1", "{source}", "(.+)")'
        return self.made(text, rows)

    def with_label(self, label: str, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other, with one more label of it."""

        def rows(samples: FaultSamples) -> Vector:
            partners = {
                frozenset(pair for pair in row if pair[0] in on): dict(row).get(label, "")
                for row in other.rows(samples)
            }
            found = (
                (row, value, frozenset(pair for pair in row if pair[0] in on))
                for row, value in self.rows(samples).items()
            )
            return {
                row | {(label, partners[key])}: value
                for row, value, key in found
                if key in partners
            }

        left = f"({self})" if SIGNED.search(str(self)) else self
        text = f"{left} * on ({', '.join((NODE, *on))}) group_left ({label}) {other}"
        return self.made(text, rows, other)

    def grouped(self) -> "Condition":
        """The same rows, each with the value 1."""
        return self.made(
            f"group without () ({self})", lambda samples: dict.fromkeys(self.rows(samples), 1.0)
        )

    def or_else(self, other: "Condition") -> "Condition":
        """The rows of this, and those of the other that it has not."""
        return self.made(
            f"({self}) or ({other})",
            lambda samples: {**other.rows(samples), **self.rows(samples)},
            other,
        )

    def sum_without(self, *labels: str) -> "Condition":
        """Sums over some labels: one row for all their values."""

        def rows(samples: FaultSamples) -> Vector:
            sums: dict[Row, float] = {}
            for row, value in self.rows(samples).items():
                rest = without(row, *labels)
                sums[rest] = sums.get(rest, 0.0) + value
            return sums

        return self.made(f"sum without ({', '.join(labels)}) ({self})", rows)

    def minus(self, other: "Condition | float", ignored: str = "") -> "Condition":
        """The difference to a number, or to the rows of the other, which have all labels but
        `ignored`; a row without a partner is left out."""
        if not isinstance(other, Condition):
            return self.made(
                f"{self} - {other:g}",
                lambda samples: {row: v - other for row, v in self.rows(samples).items()},
            )

        def rows(samples: FaultSamples) -> Vector:
            right = other.rows(samples)
            left = ((without(row, ignored), value) for row, value in self.rows(samples).items())
            return {rest: value - right[rest] for rest, value in left if rest in right}

        match = f"ignoring ({ignored}) " if ignored else ""
        return self.made(f"{self} - {match}{other}", rows, other)


SIGNED = re.compile(r" (?:and|unless|[<>=]=?) ")
"""Of an expression that needs brackets: more than a selector."""


def without(row: Row, *labels: str) -> Row:
    return frozenset(pair for pair in row if pair[0] not in labels)


def _matching(
    metric: Metric, labels: Mapping[str, str]
) -> Callable[[Mapping[Labels, float]], Vector]:
    """Return a function from series to the rows whose labels match."""
    wanted = [(metric.labels.index(name), matcher(word)) for name, word in labels.items()]

    def matches(value: str, how: str, word: str) -> bool:
        same = value == word if how in ("=", "!=") else re.fullmatch(word, value) is not None
        return same != how.startswith("!")

    return lambda found: {
        frozenset(zip(metric.labels, series, strict=True)): value
        for series, value in found.items()
        if all(matches(series[place], *word) for place, word in wanted)
    }


def of(metric: Metric, /, **labels: str) -> Condition:
    """The series of a metric whose labels match, as `of(ecc.ERRORS, severity="corrected")`;
    matchers are written as `pick` takes them."""
    matching = _matching(metric, labels)
    return Condition(
        pick(metric, **labels),
        lambda samples: matching(samples.all(metric)),
        frozenset({Ask(metric)}),
    )


def grown(
    metric: Metric, window: str, text: str, counted: Counted = Counted.GROWTH, /, **labels: str
) -> Condition:
    """The growth of the series of a metric within a window; `text` is the same in PromQL."""
    ask, matching = Ask(metric, seconds(window), counted), _matching(metric, labels)
    return Condition(text, lambda samples: matching(samples.grown(ask)), frozenset({ask}))


def share_of(
    part: Condition, whole: Condition, window: str, text: str, least: float = 0.5
) -> Condition:
    """The part of the time observed, once so much of the window was observed. The rows of the whole
    have some of the labels of the part; `text` is the same in PromQL."""

    def rows(samples: FaultSamples) -> Vector:
        observed = {
            row: value
            for row, value in whole.rows(samples).items()
            if value >= least * seconds(window)
        }
        names = {name for row in observed for name, _ in row}
        found = part.rows(samples).items()
        keys = ((row, value, frozenset(p for p in row if p[0] in names)) for row, value in found)
        return {row: value / observed[key] for row, value, key in keys if key in observed}

    return part.made(text, rows, whole)
