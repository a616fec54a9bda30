"""As much of OpenTelemetry's transformation language as `deploy/opentelemetry` uses, after its
documented grammar (pkg/ottl/LANGUAGE.md). A statement reads as one of Python but for `where`."""

import ast
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from types import CodeType, SimpleNamespace
from typing import Any


class Attributes(dict[str, Any]):
    """Attributes of a data point: nil where there is none, and nil is not set."""

    def __missing__(self, key: str) -> None:
        return None

    def __setitem__(self, key: str, value: Any) -> None:
        if value is not None:
            super().__setitem__(key, value)


@dataclass(slots=True)
class Metric:
    """A metric of a pipeline: a gauge, or a sum that is monotonic or not."""

    name: str
    kind: str
    points: list[tuple[Attributes, float]]
    unit: str = ""
    description: str = "of the agent"


@cache
def compiled(text: str) -> tuple[CodeType, CodeType]:
    """An editor or nothing, and when it is applied; ValueError where the grammar has no such
    thing. `set` is an assignment."""
    editor, _, condition = text.rpartition(" where ") if " where " in text else (text, "", "true")
    if "'" in text:
        raise ValueError(f"{text}: strings have double quotes")
    (statement,) = ast.parse(editor).body
    match statement:
        case ast.Expr(ast.Call(ast.Name("set"), [target, value])):
            editor = f"{ast.unparse(target)} = {ast.unparse(value)}"
        case ast.Expr(ast.Call(ast.Name("set"))):
            raise ValueError(f"{text}: set has two arguments")
    return compile(editor, text, "exec"), compile(condition, text, "eval")


FUNCTIONS = {
    "nil": None,
    "true": True,
    "false": False,
    "IsMatch": lambda text, pattern: re.search(pattern, text or "") is not None,
    "Concat": lambda parts, delimiter: delimiter.join(map(str, parts)),
    "delete_key": lambda attributes, key: attributes.pop(key, None),
}


def names_of(metric: Metric, attributes: Attributes | None, to: list[Metric]) -> dict[str, Any]:
    """Names that statements know, of a metric and one of its data points or none."""

    def copy_metric(*, name: str) -> None:
        to.append(deepcopy(metric))
        to[-1].name = name

    def convert_gauge_to_sum(temporality: str, monotonic: bool) -> None:
        assert temporality == "cumulative"
        if metric.kind == "gauge":
            metric.kind = "counter" if monotonic else "updowncounter"

    return {
        **FUNCTIONS,
        "metric": metric,
        "attributes": attributes,
        "copy_metric": copy_metric,
        "datapoint": SimpleNamespace(attributes=attributes),
        "convert_gauge_to_sum": convert_gauge_to_sum,
        "__builtins__": {},
    }


def holds(condition: str, names: dict[str, Any]) -> bool:
    return eval(compiled(f"nil where {condition}")[1], names) is True


def transform(metrics: list[Metric], groups: Iterable[Mapping[str, Any]]) -> None:
    """The transform processor: each group of statements, on metrics or on their data points."""
    for group in groups:
        conditions = group.get("conditions", ())
        for metric in metrics:  # what is copied comes too
            points: list[Attributes | None] = [None]
            if "datapoint." in str(group):
                points = [attributes for attributes, _ in metric.points]
            for names in (names_of(metric, point, metrics) for point in points):
                if conditions and not any(holds(one, names) for one in conditions):
                    continue
                for text in group["statements"]:
                    editor, when = compiled(text)
                    if eval(when, names) is True:
                        exec(editor, names)


def leave_out(metrics: list[Metric], conditions: Iterable[str]) -> None:
    """The filter processor, on data points."""
    for one in metrics:
        one.points = [
            point
            for point in one.points
            if not any(holds(text, names_of(one, point[0], metrics)) for text in conditions)
        ]
