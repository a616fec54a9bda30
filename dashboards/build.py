"""Builds all dashboards from the files in `boards/`, with grafanalib. A row has a question as its
title, and panels that answer it with PromQL. Several dashboards may refer to a panel in
`shared.toml` by name. Only this module imports grafanalib. It also corrects grafanalib's output.

grafanalib 0.7.1 provides the outer structure: dashboards, targets, variables, and links. Its panels
have layouts of Grafana 6 to 8, its thresholds start with the string "null" (so colours never
change), its graphs are limited to 100 points, and its schema version triggers migrations that
overwrite these settings. Therefore, this package writes panels itself, in the format of Grafana 10
to 13, and drops obsolete parts.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from grafanalib import core
from msgspec import Struct, convert

from agent.faults.declarations import declared
from agent.faults.model import PAGES, Fault
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.metrics import beside
from dashboards.alerts import Advice, firing_alerts
from dashboards.board import BAD, BOARDS, DATASOURCE, LOOKS, Json
from dashboards.kinds import Bars, Graph, Matrix, Number, Scope, Table
from dashboards.promql import GIVEN, METRICS, PLACES_OF_FLEET, PLACES_OF_NODES, scoped

COLUMNS = 24
KINDS: dict[str, type[Graph | Number | Bars | Table | Matrix]] = {
    "graph": Graph,
    "stat": Number,
    "bars": Bars,
    "table": Table,
    "matrix": Matrix,
}
"""Panel types by key. The key's value in a dashboard file is the title of the panel."""


class RowTable(Struct, forbid_unknown_fields=True):
    """A row of panels. If `firing_alerts` has labels, the row has a table of alerts by them."""

    question: str
    panel: tuple[Json, ...] = ()
    collapsed: bool = False
    firing_alerts: tuple[str, ...] = ()
    rank: str = "WHOSE"  # order of nodes, highest first
    only: str = ""  # more matchers of these alerts
    height: int = 7  # height of the panel with firing alerts


class BoardTable(Struct, forbid_unknown_fields=True):
    """The contents of a dashboard file."""

    title: str
    about: str
    variables: tuple[str, ...]
    row: tuple[RowTable, ...]
    define: dict[str, str] = {}  # names in expressions; {*} stands for the matchers


def _file(name: str) -> dict[str, Any]:
    return beside(__file__, f"boards/{name}")


def text_of(name: str, advice: Advice) -> str:
    """Return a dashboard as JSON. It has an annotation at the start of each alert."""
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
            panels.append(firing_alerts(advice, row.firing_alerts, alerts, row.rank, row.height))
        rows.append((row, panels))
    marked = {"datasource": DATASOURCE, "expr": scoped("ALERTS", places=places), "iconColor": BAD}
    variables = map(_variable, found.variables)
    made = core.Dashboard(
        title=found.title,
        uid=f"dgx-{name}",
        description=found.about,
        time=core.Time("now-1h", "now"),
        panels=_placed(rows),
        templating=core.Templating([LOOKS["datasource"], *variables]),
        annotations=core.Annotations([LOOKS["annotation"] | marked]),
        **LOOKS["board"],
    ).to_json_data()
    kept = {key: value for key, value in made.items() if key in LOOKS["of_board"]}
    raw = json.loads(json.dumps(kept, default=lambda value: value.to_json_data()))
    return json.dumps(_without_nulls(raw), indent=2, sort_keys=True) + "\n"


def _panel(asked: Json, scope: Scope) -> Json:
    """Return a panel's JSON. In its description, replace `{METRIC}` with the metric's meaning."""
    if "text" in asked:
        return _text(asked)
    (kind,) = asked.keys() & KINDS.keys()
    title = asked.pop(kind)
    about = re.sub(r"\{(\w+)\}", lambda name: METRICS[name[1]].meaning, asked["about"])
    return convert({**asked, "title": title, "about": about}, KINDS[kind]).drawn(scope)


def _text(asked: Json) -> Json:
    """Return a text panel's JSON with its own text, or with the page of the alert in its title."""
    title, size = asked["text"], {"w": asked["width"], "h": asked["height"]}
    content = asked.get("content") or (PAGES / f"{title}.md").read_text(encoding="utf-8")
    shown = {"mode": "markdown", "content": content}
    return {"type": "text", "title": title, "gridPos": size, "options": shown}


def _placed(rows: Iterable[tuple[RowTable, Sequence[Json]]]) -> list[Json]:
    """Return the JSON of rows and panels with positions. Rows go from top to bottom, and panels of
    a row from left to right. Those of an open row follow it. A collapsed row contains its own."""
    out: list[Json] = []
    bottom, ids = 0, count(1)
    for row, panels in rows:
        title = {
            "type": "row",
            "id": next(ids),
            "title": row.question,
            "collapsed": row.collapsed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": bottom},
            "panels": [],
        }
        inside: list[Json] = []
        top, left, tallest = bottom + 1, 0, 0
        for panel in panels:
            size = panel["gridPos"]
            if left + size["w"] > COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            inside.append({**panel, "id": next(ids), "gridPos": {**size, "x": left, "y": top}})
            left, tallest = left + size["w"], max(tallest, size["h"])
        out += [title | {"panels": inside}] if row.collapsed else [title, *inside]
        bottom = bottom + 1 if row.collapsed else top + tallest
    return out


def _variable(name: str) -> Json:
    """Return a variable's JSON. Without an option `All`, its first value is selected at first."""
    variable: Json = LOOKS["variable"] | LOOKS["variables"][name]
    given = {"datasource": DATASOURCE, "definition": variable["query"]}
    everything = {"current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return variable | given | (everything if variable["includeAll"] else {})


def _without_nulls(value: Any) -> Any:
    """Return JSON without nulls, which override Grafana's defaults. Keep nulls in thresholds."""
    if isinstance(value, Mapping):
        known = {key: one for key, one in value.items() if one is not None}
        return {k: one if k == "steps" else _without_nulls(one) for k, one in known.items()}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value


USUAL = AlertThresholds()


def files(book: str = USUAL.runbook, faults: Sequence[Fault] = ()) -> dict[str, str]:
    """Return a dict that maps the relative path of each generated dashboard to its text. `book` is
    the URL of the runbook, as in alerts. `faults` are those with alerts; by default, all of them
    with default thresholds."""
    usual = (fault for group in declared(RuleParameters(USUAL)).groups for fault in group.faults)
    of_row = book.replace("{{$labels.", "${__data.fields.").replace("}}", "}")  # Grafana's syntax
    advice = of_row if "://" in of_row else "", faults or [*usual]
    return {f"grafana/dashboards/dgx-{name}.json": text_of(name, advice) for name in BOARDS}
