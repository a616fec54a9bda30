"""As much of OpenTelemetry's transformation language as `deploy/opentelemetry` uses, after its
documented grammar (pkg/ottl/LANGUAGE.md): metrics with data points, statements, conditions."""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Attributes = dict[str, str]
TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_]+(?:\.[a-z_]+)*|==|!=|=|[\[\](),])')


@dataclass
class Metric:
    """A metric of a pipeline: a gauge, or a sum that is monotonic or not."""

    name: str
    kind: str
    points: list[tuple[Attributes, float]]
    unit: str = ""
    description: str = "of the agent"


@dataclass
class Parser:
    """One statement or condition; raises ValueError where the grammar has no such thing."""

    text: str
    tokens: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = 0
        while at < len(self.text.rstrip()):
            found = TOKEN.match(self.text, at)
            if not found:
                raise ValueError(f"{self.text!r} at {at}")
            self.tokens.append(found[1])
            at = found.end()

    def take(self, expected: str = "") -> str:
        token = self.tokens.pop(0)
        if expected and token != expected:
            raise ValueError(f"{self.text!r}: {token} where {expected} was expected")
        return token

    def next_is(self, token: str) -> bool:
        return self.tokens[:1] == [token]

    def values(self, end: str) -> list[Any]:
        found = []
        while not self.next_is(end):
            found.append(self.value())
            if not self.next_is(end):
                self.take(",")
        self.take(end)
        return found

    def value(self) -> Any:
        """A literal, a list, or a tuple: a path, a call, or an argument with its name."""
        token = self.take()
        if token.startswith('"'):
            return token[1:-1].replace('\\"', '"')
        if token == "[":
            return self.values("]")
        if token in ("nil", "true", "false"):
            return {"nil": None, "true": True, "false": False}[token]
        if self.next_is("("):
            self.take()
            return ("call", token, self.values(")"))
        if self.next_is("="):
            self.take()
            return ("named", token, self.value())
        key = ""
        if self.next_is("["):
            self.take()
            key = self.value()
            self.take("]")
        return ("path", token, key)

    def condition(self) -> list[Any]:
        """Comparisons and calls that must all hold."""
        parts = []
        while True:
            left = self.value()
            operator = self.take() if self.next_is("==") or self.next_is("!=") else ""
            parts.append((left, operator, self.value() if operator else None))
            if not self.next_is("and"):
                break
            self.take()
        if self.tokens:
            raise ValueError(f"{self.text!r}: {self.tokens}")
        return parts


def condition(text: str) -> list[Any]:
    return Parser(text).condition()


def statement(text: str) -> tuple[Any, list[Any]]:
    """An editor, and when it is applied."""
    parser = Parser(text)
    editor = parser.value()
    if not parser.tokens:
        return editor, []
    parser.take("where")
    return editor, parser.condition()


@dataclass
class Place:
    """Target of a statement: a metric, and one of its data points or none."""

    metric: Metric
    attributes: Attributes | None

    def get(self, value: Any) -> Any:
        match value:
            case ("path", "metric.name" | "metric.unit" | "metric.description" as path, ""):
                return getattr(self.metric, path.partition(".")[2])
            case ("path", "datapoint.attributes" | "attributes", key) if key:
                assert self.attributes is not None, "no data point in the context of a metric"
                return self.attributes.get(key)
            case ("call", "IsMatch", [target, pattern]):
                return re.search(pattern, self.get(target) or "") is not None
            case ("call", "Concat", [parts, delimiter]):
                return delimiter.join(str(self.get(part)) for part in parts)
            case tuple():
                raise ValueError(value)
        return value

    def holds(self, parts: Iterable[Any]) -> bool:
        return all(
            (self.get(left) == self.get(right)) is (operator == "==")
            if operator
            else self.get(left) is True
            for left, operator, right in parts
        )

    def edit(self, editor: Any, metrics: list[Metric]) -> None:
        match editor:
            case ("call", "set", [("path", "datapoint.attributes", key), value]):
                assert self.attributes is not None
                if self.get(value) is not None:
                    self.attributes[key] = self.get(value)
            case ("call", "set", [("path", path, ""), value]) if path.startswith("metric."):
                setattr(self.metric, path.partition(".")[2], self.get(value))
            case ("call", "delete_key", [("path", "datapoint.attributes", ""), key]):
                assert self.attributes is not None
                self.attributes.pop(key, None)
            case ("call", "copy_metric", [("named", "name", name)]):
                metrics.append(deepcopy(self.metric))
                metrics[-1].name = name
            case ("call", "convert_gauge_to_sum", ["cumulative", monotonic]):
                if self.metric.kind == "gauge":
                    self.metric.kind = "counter" if monotonic else "updowncounter"
            case _:
                raise ValueError(editor)


def transform(metrics: list[Metric], groups: Iterable[Mapping[str, Any]]) -> None:
    """The transform processor: each group of statements, on metrics or on their data points."""
    for group in groups:
        on_points = "datapoint." in str(group)
        conditions = [condition(text) for text in group.get("conditions", ())]
        statements = [statement(text) for text in group["statements"]]
        for metric in metrics:  # what is copied comes too
            points: Iterable[Attributes | None]
            points = [attributes for attributes, _ in metric.points] if on_points else [None]
            for place in (Place(metric, point) for point in points):
                if conditions and not any(place.holds(parts) for parts in conditions):
                    continue
                for editor, when in statements:
                    if place.holds(when):
                        place.edit(editor, metrics)


def leave_out(metrics: list[Metric], conditions: Iterable[str]) -> None:
    """The filter processor, on data points."""
    parsed = [condition(text) for text in conditions]
    for one in metrics:
        one.points = [
            point for point in one.points if not any(Place(one, point[0]).holds(c) for c in parsed)
        ]
