"""Panels and boards through grafanalib: the only file that imports it, and mends its output.

grafanalib 0.7.1 writes an old schema version, and its empty defaults override Grafana's own.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grafanalib import core

from agent.model import Metric

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 41
"""Older ones run migrations in Grafana that overwrite what is set here."""

UNITS = {"ratio": "percentunit", "watts": "watt", "celsius": "celsius", "bytes": "bytes"}
"""Grafana's unit by the unit that ends a metric's name."""

OBSOLETE = ("rows", "sharedCrosshair", "hideControls", "style", "__inputs")


def time_series(metric: Metric, expression: str, legend: str, grid: core.GridPos) -> Any:
    """A panel of one metric over time, with its meaning and unit from the declaration."""
    return core.TimeSeries(
        title=metric.name,
        description=metric.help,
        dataSource=DATASOURCE,
        targets=[core.Target(expr=expression, legendFormat=legend, refId="A", intervalFactor=1)],
        unit=UNITS.get(metric.name.removesuffix("_total").rsplit("_", 1)[-1], "short"),
        gridPos=grid,
        maxDataPoints=None,
    )


def position(row: int, column: int) -> core.GridPos:
    """Two panels a row, eight units high."""
    return core.GridPos(h=8, w=12, x=12 * column, y=8 * row)


def board(title: str, uid: str, panels: Sequence[Any]) -> str:
    """The text of a dashboard's JSON."""
    datasource = core.Template(
        name="datasource", label="Data source", type="datasource", query="prometheus"
    )
    made = core.Dashboard(
        title=title,
        uid=uid,
        panels=list(panels),
        templating=core.Templating([datasource]),
        editable=False,
    ).auto_panel_ids()
    raw = json.loads(json.dumps(made.to_json_data(), default=_encoded))
    mended = {key: value for key, value in _without_nulls(raw).items() if key not in OBSOLETE}
    return json.dumps({**mended, "schemaVersion": SCHEMA_VERSION}, indent=2, sort_keys=True) + "\n"


def _encoded(value: Any) -> Any:
    return value.to_json_data()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
