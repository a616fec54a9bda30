"""Panels of rows and columns, and of things that are joined."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from dashboards.board import Json, Panel
from dashboards.colours import GOOD, NEUTRAL, PAINTLESS, Steps
from dashboards.kinds import decimals, override
from dashboards.queries import Query, Value

LABELS = (
    *(
        "cluster",
        "rack",
        "alertname",
        "severity",
        "instance",
        "gpu",
        "path",
        "device",
        "link",
        "direction",
        "port",
        "cause",
    ),
    *("title", "product", "system", "driver_version", "model", "architecture", "uuid", "serial"),
    *("pci_bus_id", "vbios_version", "job_id", "user", "runtime", "metric", "reason"),
    *("origin", "source", "version", "python"),
)
"""Order of the label columns, left of the figures; the others follow by alphabet."""


CELLS: Json = {
    "unit": "string",  # of labels: else GPU 3 would read 300 % beside a share
    "color": {"mode": "thresholds"},
    "custom": {
        "align": "auto",
        "cellOptions": {"type": "auto"},
        "minWidth": 50,  # columns share the panel: at Grafana's 150 the figures fall off it
    },
}


BLANK: Json = {
    "matcher": {"id": "byType", "options": "string"},
    "properties": [{"id": "noValue", "value": " "}],
}
"""A label that a row does not have: else its cell shows what is said of an empty panel."""


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
    overrides: Sequence[Json] = (),
    ascending: bool = False,
    as_asked: bool = False,
    empty: str = "",
    width: int = 12,
    height: int = 8,
) -> Panel:
    """A row for each set of labels, the worst of the first column on top; labels may be links.

    `as_asked`: in the order in which the query has its answer, instead.
    """
    worst = {"displayName": columns[0].title, "desc": not ascending}
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
        defaults=CELLS,
        options={
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [] if as_asked else [worst],
        },
        overrides=[
            BLANK,
            *map(_column, columns),
            *(_link(label, url) for label, url in (links or {}).items()),
            *overrides,
        ],
        transformations=_merged(columns, hidden),
    )


def _merged(columns: Sequence[Column], hidden: Sequence[str]) -> list[Json]:
    """One table of all queries: rows by their labels, columns by their titles."""
    single = len(columns) == 1
    values = ["Value"] if single else [f"Value #{n}" for n in ascii_uppercase[: len(columns)]]
    asked = " ".join(column.value.expr for column in columns)
    labels = [label for label in LABELS if re.search(rf"\b{label}\b", asked)]
    organised = {
        "excludeByName": dict.fromkeys(("Time", "job", *hidden), True),
        "renameByName": dict(zip(values, (column.title for column in columns), strict=False)),
        "indexByName": {name: place for place, name in enumerate([*labels, *values])},
    }
    merge = [] if single else [{"id": "merge", "options": {}}]
    return [*merge, {"id": "organize", "options": organised}]


def _column(column: Column) -> Json:
    properties = {
        "unit": column.value.unit,
        "noValue": "-",
        **decimals(column.value),
        "thresholds": {"mode": "absolute", "steps": _painted(column.steps)},
        "custom.cellOptions": _cells(column.steps),
    }
    return override(column.title, properties)


def _painted(steps: Steps) -> list[Json]:
    """Return the colours of a table's cells; good values have none."""
    return [
        {"color": PAINTLESS if step.colour == GOOD else step.colour, "value": step.value}
        for step in steps
    ]


def _cells(steps: Steps) -> Json:
    return {"type": "color-background", "mode": "basic"} if len(steps) > 1 else {"type": "auto"}


def wide(label: str, pixels: int) -> Json:
    """A column of long texts; the others share what it leaves."""
    return override(label, {"custom.width": pixels})


def coloured_words(label: str, colours: Mapping[str, str]) -> Json:
    """A column whose few words have colours."""
    options = {word: {"color": c, "index": n} for n, (word, c) in enumerate(colours.items())}
    properties = {
        "mappings": [{"type": "value", "options": options}],
        "custom.cellOptions": {"type": "color-background", "mode": "basic"},
    }
    return override(label, properties)


def _link(label: str, url: str) -> Json:
    return override(label, {"links": [{"title": "Open", "url": url}]})


def matrix(
    title: str,
    about: str,
    value: Value,
    row: str,
    column: str,
    *,
    steps: Steps = NEUTRAL,
    empty: str = "",
    width: int = 12,
    height: int = 12,
) -> Panel:
    """A table of two labels: one down, one across, the value where they meet, on its colour; 0
    where there is none."""
    grouped = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "zero"}
    first = {"renameByName": {f"{row}\\{column}": row}}
    return Panel(
        "table",
        title,
        about,
        [Query(value)],
        width,
        height,
        steps,
        empty,
        instant=True,
        table=True,
        defaults={
            "color": {"mode": "thresholds"},
            **decimals(value),
            "thresholds": {"mode": "absolute", "steps": _painted(steps)},
            "custom": {"align": "center", "cellOptions": _cells(steps)},
        },
        options={"showHeader": True, "cellHeight": "sm"},
        transformations=[
            {"id": "groupingToMatrix", "options": grouped},
            {"id": "organize", "options": first},
        ],
    )
