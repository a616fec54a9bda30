"""Reads dashboards from their files in `boards/`: rows with questions, and panels that answer them
with PromQL. Several dashboards may refer to a panel in `shared.toml` by name."""

import re
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from agent.faults.model import PAGES
from dashboards.alerts import firing_alerts
from dashboards.board import Board, Json, Row
from dashboards.kinds import Bars, Graph, Number, Scope
from dashboards.promql import GIVEN, METRICS, PLACES_OF_FLEET, PLACES_OF_NODES, scoped
from dashboards.scope import VARIABLES
from dashboards.tables import Matrix, Table

FOLDER = Path(__file__).parent / "boards"
Kind = type[Graph | Number | Bars | Table | Matrix]
KINDS: dict[str, Kind] = {
    "graph": Graph,
    "stat": Number,
    "bars": Bars,
    "table": Table,
    "matrix": Matrix,
}
"""Panel type, by the key that contains its title."""


class RowTable(Struct, forbid_unknown_fields=True):
    """A row. `firing_alerts` contains the labels of its panel with firing alerts."""

    question: str
    panel: tuple[Json, ...] = ()
    collapsed: bool = False
    firing_alerts: tuple[str, ...] = ()
    rank: str = "WHOSE"  # order of nodes, highest first
    only: str = ""  # more matchers of these alerts
    height: int = 7  # height of the panel with firing alerts


class BoardTable(Struct, forbid_unknown_fields=True):
    """A dashboard file."""

    title: str
    about: str
    variables: tuple[str, ...]
    row: tuple[RowTable, ...]
    define: dict[str, str] = {}  # names in expressions; {*} stands for the matchers


def _file(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def board(name: str, runbook: str = "") -> Board:
    """Return a dashboard; `runbook` is the URL of the runbook."""
    found, shared = convert(_file(name), BoardTable), _file("shared")
    scope = partial(scoped, definitions={**GIVEN, **shared.pop("define"), **found.define})
    places = PLACES_OF_FLEET if "rack" in found.variables else PLACES_OF_NODES
    rows = []
    for row in found.row:
        panels = [
            _panel({**shared.get(one.pop("shared", ""), {}), **one}, scope) for one in row.panel
        ]
        if row.firing_alerts:
            alerts = partial(scope, places=places + row.only)
            panels.append(firing_alerts(runbook, row.firing_alerts, alerts, row.rank, row.height))
        rows.append(Row(row.question, panels, row.collapsed))
    variables = [VARIABLES[one] for one in found.variables]
    marked = scoped("ALERTS", places=places)
    return Board(found.title, f"dgx-{name}", found.about, rows, variables, marked)


def _text(asked: Json) -> Json:
    """Return a text panel with its content, or with the runbook page of the alert in its title."""
    title, size = asked["text"], {"w": asked["width"], "h": asked["height"]}
    content = asked.get("content") or (PAGES / f"{title}.md").read_text(encoding="utf-8")
    shown = {"mode": "markdown", "content": content}
    return {"type": "text", "title": title, "gridPos": size, "options": shown}


def _panel(asked: Json, scope: Scope) -> Json:
    """Return a panel. Metric names in braces in its description are replaced by their meanings."""
    if "text" in asked:
        return _text(asked)
    (kind,) = asked.keys() & KINDS.keys()
    title = asked.pop(kind)
    about = re.sub(r"\{(\w+)\}", lambda name: METRICS[name[1]].meaning, asked["about"])
    return convert({**asked, "title": title, "about": about}, KINDS[kind]).drawn(scope)
