"""All dashboards as files, created with grafanalib. Only this module imports grafanalib and
corrects its output.

grafanalib 0.7.1 provides the outer structure: dashboards, targets, variables, and links. Its panels
use layouts of Grafana 6 to 8, its thresholds start with the string "null" (so colours never
change), its graphs are limited to 100 points, and its schema version triggers migrations that
overwrite these settings. Therefore, this package writes panels in the format of Grafana 10 to 13,
and drops obsolete parts.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from grafanalib import core

from agent.faults.thresholds import AlertThresholds
from dashboards.board import BAD, DATASOURCE, LOOKS, Board, Json, Row, Variable
from dashboards.read import board
from dashboards.scope import BOARDS

SCHEMA_VERSION = 41
TAG = "dgx-telemetry"
COLUMNS = 24


def text_of(board: Board) -> str:
    """Return a dashboard as JSON."""
    made = core.Dashboard(
        title=board.title,
        uid=board.uid,
        description=board.about,
        tags=[TAG],
        editable=True,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        refresh="30s",
        time=core.Time("now-1h", "now"),
        timezone="browser",
        schemaVersion=SCHEMA_VERSION,
        panels=_placed(board.rows),
        templating=core.Templating(
            [_kept(SOURCE, LOOKS["of_variable"]), *map(_template, board.variables)]
        ),
        annotations=core.Annotations(
            [
                {
                    "name": "Alerts",
                    "datasource": DATASOURCE,
                    "enable": True,
                    "expr": board.alerts,
                    "iconColor": BAD,
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{instance}} {{gpu}}{{device}}",
                    "tagKeys": "severity",
                }
            ]
        ),
        links=[
            core.DashboardLink(
                title="DGX boards", tags=[TAG], asDropdown=True, includeVars=True, keepTime=True
            )
        ],
    )
    kept = _kept(made.to_json_data(), LOOKS["of_board"])
    raw = json.loads(json.dumps(kept, default=lambda value: value.to_json_data()))
    return json.dumps(_without_nulls(raw), indent=2, sort_keys=True) + "\n"


def _kept(made: Mapping[str, Any], keys: Collection[str]) -> Json:
    return {key: value for key, value in made.items() if key in keys}


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Return the rows from top to bottom. An open row is followed by its panels, and a collapsed
    row contains its panels."""
    out: list[Json] = []
    top, ids = 0, count(1)
    for row in rows:
        title = {
            "type": "row",
            "id": next(ids),
            "title": row.question,
            "collapsed": row.collapsed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        inside, bottom = _flow(row.panels, top + 1, ids)
        out += [title | {"panels": inside}] if row.collapsed else [title, *inside]
        top = top + 1 if row.collapsed else bottom
    return out


def _flow(panels: Sequence[Json], top: int, ids: Iterator[int]) -> tuple[list[Json], int]:
    """Place panels from left to right, in as many lines as necessary. Return the panels and the
    bottom of the last line."""
    out = []
    left = tallest = 0
    for panel in panels:
        size = panel["gridPos"]
        if left + size["w"] > COLUMNS:
            top, left, tallest = top + tallest, 0, 0
        out.append({**panel, "id": next(ids), "gridPos": {**size, "x": left, "y": top}})
        left, tallest = left + size["w"], max(tallest, size["h"])
    return out, top + tallest


SOURCE = core.Template(
    name="datasource", label="Data source", type="datasource", query="prometheus"
).to_json_data()


def _template(variable: Variable) -> Json:
    """Return a variable. Its values are refreshed when the time range changes, because nodes come
    and go. Without an All option, the first value is selected initially."""
    made = core.Template(
        name=variable.name,
        label=variable.label,
        query=variable.query,
        dataSource=DATASOURCE,
        includeAll=variable.all is not None,
        multi=True,
        allValue=variable.all or None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_NUMERIC_ASC if variable.name == "gpu" else core.SORT_ALPHA_ASC,
    ).to_json_data()
    kept = {**_kept(made, LOOKS["of_variable"]), "definition": variable.query}
    if variable.all is None:
        return kept
    return {**kept, "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}


def _without_nulls(value: Any) -> Any:
    """Remove nulls, because they override Grafana's defaults. Keep nulls in threshold steps."""
    if isinstance(value, Mapping):
        return {
            k: v if k == "steps" else _without_nulls(v) for k, v in value.items() if v is not None
        }
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value


def files(book: str = AlertThresholds().runbook) -> dict[str, str]:
    """Return all generated files of this package, as text by relative path. `book` is the runbook
    URL, as it is in alerts."""
    of_row = book.replace("{{$labels.", "${__data.fields.").replace("}}", "}")  # Grafana's syntax
    runbook = of_row if "://" in of_row else ""
    return {f"grafana/dashboards/dgx-{name}.json": text_of(board(name, runbook)) for name in BOARDS}
