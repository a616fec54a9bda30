"""Helpers for tests of boards: the boards as JSON, their panels and queries, their variables."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from dashboards.build import files
from tests.support.prometheus import Prometheus, Series

Json = dict[str, Any]


@cache
def boards() -> Mapping[str, Json]:
    """Every board that is built, by its uid."""
    built = (json.loads(text) for text in files().values())
    return {board["uid"]: board for board in built}


class Asked(NamedTuple):
    """One query of one panel."""

    board: str
    panel: Json
    target: Json

    @property
    def place(self) -> tuple[str, str, str]:
        return self.board, self.panel["title"], self.target["refId"]

    def __str__(self) -> str:
        return "/".join(self.place)


def panels(board: Json) -> Iterator[Json]:
    """All panels of a board that ask Prometheus, also those inside collapsed rows."""
    yield from (panel for panel in everything(board) if panel["type"] not in {"row", "text"})


def everything(board: Json) -> Iterator[Json]:
    """All panels of a board and its rows, also those inside collapsed rows."""
    for panel in board["panels"]:
        yield from (panel, *panel.get("panels", ()))


def rows(board: Json) -> list[Json]:
    return [panel for panel in board["panels"] if panel["type"] == "row"]


def queries() -> list[Asked]:
    return [
        Asked(uid, panel, target)
        for uid, board in boards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def shown(
    prometheus: Prometheus,
    asked: Asked,
    instance: str,
    windows: Mapping[str, str],
    at: float | None = None,
) -> list[Series]:
    """Return the data of a panel of one node at a time, or now; `windows` are Grafana's own
    variables."""
    places = {"cluster": ".*", "rack": ".*"}
    variables = {"job": "dgx-telemetry", "instance": instance, "gpu": ".+", **places, **windows}
    expr = substituted(asked.target["expr"], **variables)
    if asked.target["instant"]:
        return prometheus.now(expr, at)
    until = at or time.time()
    return prometheus.over(expr, until - 3, until, 3)


def substituted(expr: str, **values: str) -> str:
    """A query as Grafana would send it; a variable without a value is an error."""

    def value(match: re.Match[str]) -> str:
        return values[match[1].strip("{}")]

    return re.sub(r"\$([a-z_]\w*|\{\w+\})", value, expr)


EVERYTHING = dict.fromkeys(("job", "instance", "gpu"), ".+") | {"cluster": ".*", "rack": ".*"}
"""The variables with All chosen: not each machine has a cluster and a rack."""


def plain(expr: str) -> str:
    """A query that a parser of PromQL reads."""
    return substituted(expr, **EVERYTHING, __rate_interval="1m", __range="1h")


def colour_at(steps: list[Json], value: float) -> str:
    """The colour that Grafana gives a value: that of the last step at or below it."""
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return str(reached[-1]["color"])


def colour_of(asked: Asked, value: float) -> str | None:
    """The colour that a value of this query has on its panel; None where colours mean lines."""
    defaults = asked.panel["fieldConfig"]["defaults"]
    kind = asked.panel["type"]
    own = of_column(asked, "thresholds")
    if own is not None:
        return colour_at(own["steps"], value)
    if kind in {"stat", "bargauge", "table"}:
        return colour_at(defaults["thresholds"]["steps"], value)
    return None


def unit_of(asked: Asked) -> str:
    """Grafana's unit of what a query yields."""
    return str(of_column(asked, "unit") or asked.panel["fieldConfig"]["defaults"]["unit"])


def of_column(asked: Asked, name: str) -> Any:
    """A property of the table's column that this query fills; None where it has none."""
    title = column_of(asked)
    for override in asked.panel["fieldConfig"]["overrides"]:
        if title and override["matcher"] == {"id": "byName", "options": title}:
            return {p["id"]: p["value"] for p in override["properties"]}.get(name)
    return None


def column_of(asked: Asked) -> str | None:
    """The title of the table's column that this query fills."""
    for transformation in asked.panel["transformations"]:
        renamed = transformation["options"].get("renameByName", {})
        value = f"Value #{asked.target['refId']}"
        if asked.panel["type"] == "table" and (value in renamed or "Value" in renamed):
            return str(renamed.get(value, renamed.get("Value")))
    return None
