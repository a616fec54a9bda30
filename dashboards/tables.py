"""Panels of rows and columns, and of things that are joined."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from dashboards.board import Json, Panel
from dashboards.colours import NEUTRAL, Steps
from dashboards.kinds import override
from dashboards.queries import Query, Value, told


class Column(NamedTuple):
    """A column of a table: a figure with its own unit and colours."""

    title: str
    value: Value
    steps: Steps = NEUTRAL


def table(
    title: str,
    about: str,
    columns: Sequence[Column],
    *,
    links: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
    ascending: bool = False,
    empty: str = "",
    width: int = 12,
    height: int = 8,
) -> Panel:
    """A row for each set of labels, the worst of the first column on top; labels may be links."""
    return Panel(
        "table",
        title,
        about,
        [Query(column.value) for column in columns],
        width,
        height,
        columns[0].steps,
        empty,
        instant=True,
        table=True,
        defaults={
            "unit": "string",  # of labels: else GPU 3 would read 300 % beside a share
            "color": {"mode": "thresholds"},
            "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
        },
        options={
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": columns[0].title, "desc": not ascending}],
        },
        overrides=[
            *map(_column, columns),
            *(_link(label, url) for label, url in (links or {}).items()),
        ],
        transformations=_merged(columns, hidden),
    )


def _merged(columns: Sequence[Column], hidden: Sequence[str]) -> list[Json]:
    """One table of all queries: rows by their labels, columns by their titles."""
    single = len(columns) == 1
    values = ["Value"] if single else [f"Value #{name}" for name in ascii_uppercase]
    organised = {
        "excludeByName": dict.fromkeys(("Time", "job", *hidden), True),
        "renameByName": dict(zip(values, (column.title for column in columns), strict=False)),
        "indexByName": {},
    }
    merge = [] if single else [{"id": "merge", "options": {}}]
    return [*merge, {"id": "organize", "options": organised}]


def _column(column: Column) -> Json:
    steps = [{"color": step.colour, "value": step.value} for step in column.steps]
    coloured = {"type": "color-text" if len(steps) > 1 else "auto"}
    properties = {
        "unit": column.value.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom.cellOptions": coloured,
    }
    return override(column.title, properties)


def _link(label: str, url: str) -> Json:
    return override(label, {"links": [{"title": "Open", "url": url}]})


def node_graph(title: str, about: str, nodes: Value, edges: Value, *, empty: str = "") -> Panel:
    """Things and what joins them; the series bring the labels id, title, source and target."""
    return Panel(
        "nodeGraph",
        title,
        about,
        [Query(told(nodes, "mainstat")), Query(told(edges, "mainstat"))],
        12,
        12,
        NEUTRAL,
        empty,
        instant=True,
        table=True,
        options={"nodes": {"mainStatUnit": "none"}, "edges": {"mainStatUnit": "none"}},
        names=("nodes", "edges"),
    )


def matrix(
    title: str, about: str, value: Value, row: str, column: str, *, empty: str = ""
) -> Panel:
    """A table of two labels: one down, one across, the value where they meet."""
    grouped = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "empty"}
    return Panel(
        "table",
        title,
        about,
        [Query(value)],
        12,
        12,
        NEUTRAL,
        empty,
        instant=True,
        table=True,
        defaults={"custom": {"align": "center", "cellOptions": {"type": "auto"}}},
        options={"showHeader": True, "cellHeight": "sm"},
        transformations=[{"id": "groupingToMatrix", "options": grouped}],
    )
