"""Parses and evaluates the conditions of faults, in a subset of PromQL. Alerting rules contain the
same expressions. The agent parses each condition once.

The agent monitors only its own machine, so its series have no target labels (`instance` and `job`),
and a join on target labels alone matches all series. `windows.py` computes `increase` and
`changes`. `last_over_time` and `max_over_time` return 1 for each series that was above 0 within the
window. If a comparison contains a number, it must be on the right.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from agent.catalogue import METRICS
from agent.faults.promql import seconds
from agent.faults.windows import Ask, Counted, FaultSamples
from agent.model import Labels

Row = frozenset[tuple[str, str]]
"""The labels of a row in the result of a condition, without target labels."""

Vector = Mapping[Row, float]


class ConditionError(ValueError):
    """Raised if a string is not a valid condition, for example because of an unknown metric."""


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A parsed expression. `apply` computes its result, rows with labels and a value, from the rows
    of its operands (`parts`) or, for a selector, from the series in `ask`."""

    apply: Callable[..., Vector]
    parts: "tuple[Condition, ...]" = ()
    ask: Ask | None = None
    number: float | None = None  # value of a constant

    @property
    def asks(self) -> frozenset[Ask]:
        """All series that the expression needs."""
        return frozenset([self.ask] if self.ask else []).union(*(p.asks for p in self.parts))

    def rows(self, samples: FaultSamples) -> Vector:
        """Return the rows of the result. They are computed only if their inputs have changed."""
        if (rows := samples.rows.get(self)) is None:
            inputs = [samples.read(self.ask)] if self.ask else [p.rows(samples) for p in self.parts]
            rows = samples.derived.of(self, inputs, lambda: self.apply(*inputs))
            samples.rows[self] = rows
        return rows


Records = Callable[[str], Condition | None]
"""A function that returns the condition of the recording rule with this name, if any."""


def condition(text: str, records: Records = lambda _: None) -> Condition:
    """Parse a condition. Raise ConditionError if it is invalid."""
    parser = _Parser(text, records)
    try:
        found = parser.expression()
        parser.take("")
    except ConditionError as error:
        raise ConditionError(f"{error} in {text}") from None
    return found


class _Match(NamedTuple):
    """The rule by which rows of two operands match: the labels in `on`, or all except `ignoring`,
    must be equal. The labels in `copied` are copied from the right operand."""

    on: tuple[str, ...] | None = None
    ignoring: tuple[str, ...] = ()
    copied: tuple[str, ...] | None = None

    def key(self, row: Row) -> Row:
        return _only(row, self.on) if self.on is not None else _without(row, self.ignoring)

    def joined(self, left: Row, right: Row) -> Row:
        if self.copied is None:
            return self.key(left)
        return _without(left, self.copied) | _only(right, self.copied)


def _only(row: Row, labels: tuple[str, ...]) -> Row:
    return frozenset(pair for pair in row if pair[0] in labels)


def _without(row: Row, labels: tuple[str, ...]) -> Row:
    return frozenset(pair for pair in row if pair[0] not in labels) if labels else row


def _kept(holds: Callable[[float, float], bool]) -> Callable[[float, float], float | None]:
    return lambda value, limit: value if holds(value, limit) else None


OPERATIONS: Mapping[str, Callable[[float, float], float | None]] = {
    "==": _kept(operator.eq),
    "<=": _kept(operator.le),
    ">=": _kept(operator.ge),
    "<": _kept(operator.lt),
    ">": _kept(operator.gt),
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda value, whole: value / whole if whole else None,
    "^": operator.pow,
}
"""Binary operators. If the result is None, the row is left out."""

WEAKEST_FIRST = ("or", "and unless", "== <= >= < >", "-", "* /", "^")
BINDING = {sign: n for n, signs in enumerate(WEAKEST_FIRST, 1) for sign in signs.split()}
"""Precedence of each operator. An operator with a higher number binds more tightly."""

AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "count": len,
    "group": lambda _: 1.0,
}
OF_EACH: Mapping[str, Callable[[float], float]] = {
    "round": lambda value: math.floor(value + 0.5),
    "ceil": math.ceil,
}
OVER_TIME: Mapping[str, tuple[Counted, Callable[[float, float], float]]] = {
    "increase": (Counted.GROWTH, lambda total, _: total),
    "rate": (Counted.GROWTH, operator.truediv),
    "changes": (Counted.CHANGES, lambda total, _: total),
    "last_over_time": (Counted.PRESENCE, lambda *_: 1.0),
    "max_over_time": (Counted.PRESENCE, lambda *_: 1.0),
}
"""Maps each PromQL function to the kind of sum that it needs, and to a Python function that
computes the result from the sum and the range (s)."""

TOKEN = re.compile(
    r'\s*(\d+(?:\.\d+)?(?:e[-+]?\d+)?|"[^"]*"|\[\w+\]|[A-Za-z_:][\w:]*|[=!]~|[=!<>]=|\S|$)'
)


class _Parser:
    """A recursive descent parser. Each method parses one kind of expression."""

    def __init__(self, text: str, records: Records) -> None:
        self.tokens = TOKEN.findall(text)
        self.records = records

    def take(self, wanted: str | None = None) -> str:
        """Consume and return the next token. Raise ConditionError if it is not `wanted`."""
        found: str = self.tokens.pop(0) if self.tokens else ""
        if wanted is not None and found != wanted:
            raise ConditionError(f"{found or 'the end'!r} in the place of {wanted or 'the end'!r}")
        return found

    def taken(self, *wanted: str) -> str:
        """Consume and return the next token if it is in `wanted`, or return an empty string."""
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else ""

    def names(self) -> tuple[str, ...]:
        """Parse a list of label names in parentheses, and return the names."""
        found: list[str] = []
        self.take("(")
        while not self.taken(")"):
            found.append(self.take())
            self.taken(",")
        return tuple(found)

    def expression(self, least: int = 1) -> Condition:
        left = self.atom()
        while BINDING.get(self.tokens[0], 0) >= least:
            sign = self.take()
            match = self.match()
            right = self.expression(BINDING[sign] + (sign != "^"))
            apply = OPERATIONS.get(sign)
            left = _of_two(apply, left, right, match) if apply else _set(sign, left, right, match)
        return left

    def match(self) -> _Match:
        how = self.taken("on", "ignoring")
        labels = self.names() if how else ()
        copied = self.names() if self.taken("group_left") else None
        return _Match(labels if how == "on" else None, labels if how != "on" else (), copied)

    def atom(self) -> Condition:
        first = self.take()
        if first == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if first == "-":
            return _constant(-float(self.take()))
        if first[:1].isdigit():
            return _constant(float(first))
        if first in AGGREGATIONS:
            return self.aggregation(first)
        if self.tokens[0] == "(":
            return self.function(first)
        return self.selector(first)

    def aggregation(self, name: str) -> Condition:
        by, labels = self.taken("by") or not self.take("without"), self.names()
        inner, of_all = self.atom(), AGGREGATIONS[name]

        def apply(rows: Vector) -> Vector:
            groups: dict[Row, list[float]] = {}
            for row, value in rows.items():
                key = _only(row, labels) if by else _without(row, labels)
                groups.setdefault(key, []).append(value)
            return {row: float(of_all(values)) for row, values in groups.items()}

        return Condition(apply, (inner,))

    def function(self, name: str) -> Condition:
        self.take("(")
        if name in OVER_TIME:
            found = self.selector(self.take(), name)
        elif name in OF_EACH:
            change = OF_EACH[name]
            found = _of_two(lambda value, _: change(value), self.expression(), _constant(0.0))
        elif name == "clamp_min":
            found, least = self.expression(), float(self.token(","))
            found = _of_two(max, found, _constant(least))
        elif name == "label_replace":
            inner = self.expression()
            found = _relabelled(inner, *(self.token(",")[1:-1] for _ in range(4)))
        else:
            raise ConditionError(f"{name} is no function of conditions")
        self.take(")")
        return found

    def token(self, before: str) -> str:
        self.take(before)
        return self.take()

    def selector(self, name: str, function: str = "") -> Condition:
        """Parse a selector for a metric or recording rule. It has a range if `function` is set."""
        matchers = []
        if self.taken("{"):
            while not self.taken("}"):
                matchers.append((self.take(), self.take(), self.take()[1:-1]))
                self.taken(",")
        if name in METRICS:
            window = seconds(self.take()[1:-1]) if function else 0.0
            return _series(name, tuple(matchers), function, window)
        record = self.records(name)
        if record is None:
            raise ConditionError(f"{name} is no metric and no record that the agent knows")
        return _picked(record, [(label, matching(how, word)) for label, how, word in matchers])


@cache
def _series(
    name: str, matchers: tuple[tuple[str, str, str], ...], function: str, window: float
) -> Condition:
    """Return a condition that selects the series of a metric that match `matchers`."""
    metric, labels = METRICS[name], METRICS[name].labels
    for label, *_ in matchers:
        if label not in labels:
            raise ConditionError(f"{name} has no label {label}")
    wanted = [(labels.index(label), matching(how, word)) for label, how, word in matchers]
    counted, of_sum = OVER_TIME.get(function, (Counted.GROWTH, None))

    def apply(found: Mapping[Labels, float]) -> Vector:
        for place, matches in wanted:
            known = set(filter(matches, {series[place] for series in found}))
            found = {series: n for series, n in found.items() if series[place] in known}
        return {
            frozenset(zip(labels, series, strict=True)): of_sum(n, window) if of_sum else n
            for series, n in found.items()
        }

    return Condition(apply, ask=Ask(metric, window, counted))


def _constant(number: float) -> Condition:
    return Condition(dict, number=number)


@cache
def matching(how: str, word: str) -> Callable[[str], bool]:
    """Return a function that checks a label value against `word` with the operator `how` (`=~`)."""
    if how in ("=", "!="):
        return lambda value: (value == word) is (how == "=")
    pattern = re.compile(word)
    return lambda value: (pattern.fullmatch(value) is not None) is (how == "=~")


def _picked(record: Condition, wanted: list[tuple[str, Callable[[str], bool]]]) -> Condition:
    """Return a condition that selects the rows of `record` whose labels match `wanted`."""

    def apply(found: Vector) -> Vector:
        labelled = ((row, dict(row), value) for row, value in found.items())
        return {
            row: value
            for row, labels, value in labelled
            if all(matches(labels.get(label, "")) for label, matches in wanted)
        }

    return Condition(apply, (record,)) if wanted else record


def _set(sign: str, left: Condition, right: Condition, match: _Match) -> Condition:
    def apply(one: Vector, other: Vector) -> Vector:
        if sign == "or":
            known = {match.key(row) for row in one}
            return {**one, **{row: v for row, v in other.items() if match.key(row) not in known}}
        partners = {match.key(row) for row in other}
        return {row: v for row, v in one.items() if (match.key(row) in partners) is (sign == "and")}

    return Condition(apply, (left, right))


def _of_two(
    operation: Callable[[float, float], float | None],
    left: Condition,
    right: Condition,
    match: _Match = _Match(),  # noqa: B008  # it is immutable
) -> Condition:
    """Return a condition that applies an operator to each row of `left` and the matching row of
    `right`. If an operand is a number, every row of the other operand matches it."""
    first, second = left.number, right.number

    def apply(one: Vector, other: Vector = MappingProxyType({})) -> Vector:
        if second is not None:
            found = ((row, operation(v, second)) for row, v in one.items())
        elif first is not None:
            found = ((row, operation(first, v)) for row, v in one.items())
        else:
            partners = {match.key(row): (row, v) for row, v in other.items()}
            keyed = ((row, v, match.key(row)) for row, v in one.items())
            found = (
                (match.joined(row, partners[key][0]), operation(v, partners[key][1]))
                for row, v, key in keyed
                if key in partners
            )
        return {row: value for row, value in found if value is not None}

    if first is not None and second is not None:
        return _constant(operation(first, second) or 0.0)
    return Condition(apply, tuple(part for part in (left, right) if part.number is None))


def _relabelled(inner: Condition, label: str, word: str, source: str, pattern: str) -> Condition:
    """Return a condition that sets `label` to `word` in rows where `source` matches `pattern`."""
    whole = re.compile(pattern)

    def apply(rows: Vector) -> Vector:
        named = {}
        for row, value in rows.items():
            found = whole.fullmatch(dict(row).get(source, ""))
            new = word.replace("$1", found[1] if found.re.groups else "") if found else None
            named[_without(row, (label,)) | {(label, new)} if new is not None else row] = value
        return named

    return Condition(apply, (inner,))
