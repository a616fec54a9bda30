"""The pieces of PromQL that the rules are made of, and conditions, which are evaluated on samples
too. Labels of the target (instance, job, and the owner's additions) are kept everywhere."""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.faults.windows import Ask, Counted, FaultSamples
from agent.model import Kind, Labels, Metric

NODE = "instance, job"
GPU = f"{NODE}, gpu, uuid"
"""The labels that identify a machine, and a GPU of it."""


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


INSTANT = re.compile(
    r"(?:(?<![\w:])dgx_\w+(?![\w:])(?:\{[^}]*\})?|\{__name__[^}]*\})(?! *[\[{]| offset)"
)
"""A selector of instant values: of a metric, or of several, without a range or an offset."""

HELD = 135.0
"""Seconds for which rules hold the last value of a target: a failed scrape marks all its series as
stale. Scrapes may be two minutes apart."""

SOONER, AT_ONCE = 15.0, 60.0
"""Seconds by which a value is held for less than its alert's `for`: a condition of one scrape fires
no alert. Seconds for which it is held if the alert has no `for`."""


def held(expr: str, scale: float, hold: float = 2 * HELD) -> str:
    """PromQL with instant values held, for an alert that fires after so many seconds. If these are
    few, a value that no failed scrape has marked counts too, at any age."""
    most = min(HELD, hold - SOONER) if hold else AT_ONCE
    last = "last_over_time({0}[" + span(most * scale) + "])"
    kept = last if most == HELD else f"({{0}} or {last})"
    return INSTANT.sub(lambda found: kept.replace("{0}", found[0]), expr)


class Recording(NamedTuple):
    """A recording rule; `record` is named level:metric:operations. Its values are held, except for
    a record that has a memory of its own."""

    record: str | Metric
    expr: str
    held: bool = False

    def __str__(self) -> str:
        return str(self.record)


def one(expr: str, *labels: str) -> str:
    """The one side of a join: a row per machine and these labels, with any further labels of its
    owner, so that a target that is relabelled or scraped twice makes no rule fail."""
    return f"max by ({', '.join((NODE, *labels))}) ({expr})"


REMEMBERED = "1d"
"""Time for which a machine's parts are remembered: GPUs without a driver, and past events."""


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


Row = frozenset[tuple[str, str]]
"""The labels of a series, without those of the target: the agent knows one machine."""

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
    """An expression over series, as PromQL and as a function of the samples of a machine.
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
        """A row without a partner on the other side is left out."""
        holds = COMPARISONS[sign]
        if isinstance(other, Condition):
            text = f"{self} {sign} {other}"
            return self._paired(text, other, lambda v, limit: v if holds(v, limit) else None)
        return self._mapped(f"{self} {sign} {other:g}", lambda v: v if holds(v, other) else None)

    def _mapped(self, text: str, change: Callable[[float], float | None]) -> "Condition":
        """The rows with another value each; without a value they are left out."""

        def rows(samples: FaultSamples) -> Vector:
            found = ((row, change(value)) for row, value in self.rows(samples).items())
            return {row: value for row, value in found if value is not None}

        return self.made(text, rows)

    def _paired(
        self,
        text: str,
        other: "Condition",
        joined: Callable[[float, float], float | None],
        ignored: str = "",
    ) -> "Condition":
        """A value from each row and the row of the other that has all its labels but `ignored`; a
        row without a partner, or without a value then, is left out."""

        def rows(samples: FaultSamples) -> Vector:
            right = other.rows(samples)
            left = ((without(row, ignored), value) for row, value in self.rows(samples).items())
            found = ((row, joined(value, right[row])) for row, value in left if row in right)
            return {row: value for row, value in found if value is not None}

        return self.made(text, rows, other)

    def having(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other (none: of the same machine)."""
        return self._joined("and", other, on)

    def unless(self, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with no row of the other (none: of the same machine)."""
        return self._joined("unless", other, on)

    def _joined(self, word: str, other: "Condition", on: tuple[str, ...]) -> "Condition":
        def rows(samples: FaultSamples) -> Vector:
            partners, keep = {_only(row, on) for row in other.rows(samples)}, word == "and"
            left = self.rows(samples).items()
            return {row: value for row, value in left if (_only(row, on) in partners) is keep}

        right = f"({other})" if SIGNED.search(str(other)) else other
        return self.made(f"{self} {word} on ({', '.join((NODE, *on))}) {right}", rows, other)

    def made(
        self, text: str, rows: Callable[[FaultSamples], Vector], *others: "Condition"
    ) -> "Condition":
        """Return a condition that is made of this condition and others."""
        return Condition(text, rows, self.asks.union(*(other.asks for other in others)))

    def named(self, record: "Recording", **labels: str) -> "Condition":
        """Return the same condition, whose PromQL asks for the record of it, by these labels."""
        return self.made(pick(record, **labels), self.rows)

    def rounded(self) -> "Condition":
        return self._mapped(f"round({self})", lambda value: float(round(value)))

    def count_without(self, *labels: str) -> "Condition":
        """The number of rows for all values of these labels."""
        return self._aggregated("count", labels, len)

    def max_without(self, *labels: str) -> "Condition":
        """The largest value for all values of these labels."""
        return self._aggregated("max", labels, max)

    def sum_without(self, *labels: str) -> "Condition":
        """Sums over some labels: a row for all their values."""
        return self._aggregated("sum", labels, sum)

    def _aggregated(
        self, name: str, labels: tuple[str, ...], of_all: Callable[[list[float]], float]
    ) -> "Condition":
        def rows(samples: FaultSamples) -> Vector:
            groups: dict[Row, list[float]] = {}
            for row, value in self.rows(samples).items():
                groups.setdefault(without(row, *labels), []).append(value)
            return {row: float(of_all(values)) for row, values in groups.items()}

        return self.made(f"{name} without ({', '.join(labels)}) ({self})", rows)

    def over(self, other: "Condition") -> "Condition":
        """The quotient of rows that have the same labels."""
        return self._paired(
            f"{self} / {other}", other, lambda v, whole: v / whole if whole else None
        )

    def copied(self, label: str, source: str) -> "Condition":
        """The same rows with another label, of the value of `source`."""

        def rows(samples: FaultSamples) -> Vector:
            found = self.rows(samples).items()
            return {row | {(label, dict(row).get(source, ""))}: value for row, value in found}

        text = f'label_replace({self}, "{label}", "$1", "{source}", "(.+)")'
        return self.made(text, rows)

    def with_label(self, label: str, other: "Condition", *on: str) -> "Condition":
        """The rows that share these labels with a row of the other, with `label` of that row."""

        def rows(samples: FaultSamples) -> Vector:
            partners = {_only(row, on): dict(row).get(label, "") for row in other.rows(samples)}
            found = ((row, v, _only(row, on)) for row, v in self.rows(samples).items())
            return {row | {(label, partners[key])}: v for row, v, key in found if key in partners}

        left = f"({self})" if SIGNED.search(str(self)) else self
        right = one(str(other), *on, label)  # a target that is scraped twice has two
        text = f"{left} * on ({', '.join((NODE, *on))}) group_left ({label}) {right}"
        return self.made(text, rows, other)

    def grouped(self) -> "Condition":
        """The same rows, each with the value 1."""
        return self._mapped(f"group without () ({self})", lambda _: 1.0)

    def or_else(self, other: "Condition") -> "Condition":
        """The rows of this condition, and rows of the other that this lacks."""
        return self.made(
            f"({self}) or ({other})",
            lambda samples: {**other.rows(samples), **self.rows(samples)},
            other,
        )

    def minus(self, other: "Condition | float", ignored: str = "") -> "Condition":
        """The difference to a number, or to the rows of the other, which have all labels but
        `ignored`; a row without a partner is left out."""
        if not isinstance(other, Condition):
            return self._mapped(f"{self} - {other:g}", lambda value: value - other)
        match = f"ignoring ({ignored}) " if ignored else ""
        return self._paired(f"{self} - {match}{other}", other, operator.sub, ignored)


SIGNED = re.compile(r" (?:and|unless|[<>=]=?) ")
"""A sign of an expression that needs brackets: it is more than a selector."""


def without(row: Row, *labels: str) -> Row:
    return frozenset(pair for pair in row if pair[0] not in labels)


def _only(row: Row, labels: Collection[str]) -> Row:
    return frozenset(pair for pair in row if pair[0] in labels)


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
    part: Condition, whole: Condition, window: str, but: str, least: float = 0.5
) -> Condition:
    """The part of the observed time, from the growth of two counters of seconds, once so much of
    the window was observed: an agent that has just started does not take its first minute for a
    quarter of an hour, and an agent that restarts often loses as much of the part as of the whole.
    It uses no rates, because VictoriaMetrics relates them to the time between the samples that
    exist. `but` names the labels that only the part has."""
    enough = least * seconds(window)

    def rows(samples: FaultSamples) -> Vector:
        observed = {row: v for row, v in whole.rows(samples).items() if v >= enough}
        names = {name for row in observed for name, _ in row}
        keys = ((row, value, _only(row, names)) for row, value in part.rows(samples).items())
        return {row: value / observed[key] for row, value, key in keys if key in observed}

    text = f"{part} / ignoring ({but}) group_left () ({whole} >= {enough:g})"
    return part.made(text, rows, whole)
