"""The kinds of panels: time series, figure, bars."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple, TypedDict, Unpack

from dashboards.board import GOOD, NEUTRAL, PAINTLESS, WELL, Json, Panel, Steps
from dashboards.queries import Query, Value

REDUCED: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}

LEAST: Mapping[str, float] = {"percentunit": 0.1, "none": 4.0}
"""Smallest range of an axis, by its unit: Grafana's axis of zeros alone goes to 100 (10000 %)."""

DECIMALS: Mapping[str, int] = {"percentunit": 1, "none": 0, "short": 2}
"""Decimals of figures, by unit: 0.0193 % is no news, and `increase` makes 1.02 of one error."""

BARS: Json = {
    "sizing": "manual",
    "minVizHeight": 14,
    "maxVizHeight": 26,
    "minVizWidth": 8,
    "namePlacement": "left",
    "text": {"valueSize": 14},
}
"""Sizes in pixels: without them, a bar and its text fill the room, which differs by panel."""


class Shape(TypedDict, total=False):
    """Size of a panel, its text when it is empty, and overrides of single fields."""

    width: int
    height: int
    empty: str
    overrides: Sequence[Json]


def graph(
    title: str,
    about: str,
    *queries: Query,
    stacked: bool = False,
    whole: bool = False,
    named: bool = True,
    peaks: bool = False,
    every: str = "",
    **shape: Unpack[Shape],
) -> Panel:
    """Lines over time, or stacked areas; `whole`: a share, on an axis that goes to 1.

    `named`: a legend below; with a hundred names, the tooltip reports them. `peaks`: a legend
    beside, with the highest value of each. `every` is the least time between two points, for
    metrics that the agent reads less often than Prometheus scrapes it: with it the window of `rate`
    grows.
    """
    units = {query.value.unit for query in queries}
    if len(units) > 1:
        raise ValueError(f"{title}: one axis has one unit, not {sorted(units)}")
    (unit,) = units
    # Stacked shares sum to 1, and a trifle more by rounding; a path can carry more than its limit.
    ends: Json = {"min": 0, "max": 1} if whole and stacked else {"min": 0}
    if unit == "none" or peaks:
        ends["decimals"] = DECIMALS[unit]
    custom = {
        **LINES,
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 80 if stacked else 0,  # eight areas over each other are mud
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "axisSoftMax": 1.0 if whole else LEAST.get(unit),
    }
    legend: Json = {"displayMode": "list", "placement": "bottom", "showLegend": named, "calcs": []}
    if peaks:
        legend = {"displayMode": "table", "placement": "right", "calcs": ["max"]}
        legend |= {"showLegend": True, "sortBy": "Max", "sortDesc": True}
    return Panel(
        *("timeseries", title, about, queries),
        defaults={"color": {"mode": "palette-classic"}, "custom": custom, **ends},
        options={"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        every=every,
        **shape,
    )


LINES: Json = {
    "drawStyle": "line",
    "lineInterpolation": "linear",
    "showPoints": "never",
    "spanNulls": False,
    "axisSoftMin": 0,
}


def stat(
    title: str,
    about: str,
    value: Value,
    steps: Steps = NEUTRAL,
    *,
    legend: str = "",
    fields: Mapping[str, object] | None = None,
    **shape: Unpack[Shape],
) -> Panel:
    """A figure, or a figure for each series, whose colour says how bad it is."""
    return Panel(
        *("stat", title, about, [Query(value, legend)]),
        steps=steps,
        instant=True,
        defaults={"color": {"mode": "thresholds"}, **decimals(value), **(fields or {})},
        options={
            "reduceOptions": REDUCED,
            "orientation": "auto",
            "textMode": "auto",
            "colorMode": "background_solid" if steps not in (NEUTRAL, WELL) else "none",
            "graphMode": "none",
            "justifyMode": "center",
        },
        **(Shape(width=4, height=4) | shape),
    )


def bars(
    title: str,
    about: str,
    query: Query,
    steps: Steps = NEUTRAL,
    most: float = 1,
    **shape: Unpack[Shape],
) -> Panel:
    """A bar for each series, at present or over the board's time range."""
    return Panel(
        *("bargauge", title, about, [query]),
        steps=steps,
        instant=True,
        defaults={"color": {"mode": "thresholds"}, **decimals(query.value), "min": 0, "max": most},
        options={
            "reduceOptions": REDUCED,
            "orientation": "horizontal",
            "displayMode": "basic",
            "valueMode": "text",  # in the colour of text: of its bar it could not be read
            "showUnfilled": True,
            **BARS,
        },
        **shape,
    )


def decimals(value: Value) -> Json:
    return {"decimals": DECIMALS[value.unit]} if value.unit in DECIMALS else {}


def override(name: str, properties: Mapping[str, object]) -> Json:
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


LABEL_ORDER = (
    *("cluster", "rack", "alertname", "severity", "instance", "gpu", "error", "path", "device"),
    *("link", "kind", "xid", "direction", "port", "cause", "title", "product", "system"),
    *("driver_version", "model", "architecture", "uuid", "serial", "pci_bus_id", "vbios_version"),
    *("job_id", "user", "runtime", "metric", "reason", "origin", "source", "version", "python"),
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
"""A label that a row does not have: else its cell shows the text of an empty panel."""


class Column(NamedTuple):
    """A column of a table: a figure with its own unit and colours."""

    title: str
    value: Value
    steps: Steps = NEUTRAL
    absent: str = "-"  # why a row has no figure, or a figure that is no number


def table(
    title: str,
    about: str,
    columns: Sequence[Column],
    *,
    links: Mapping[str, str] | None = None,
    hidden: Sequence[str] = (),
    ascending: bool = False,
    as_asked: bool = False,
    cells: str = "sm",
    **shape: Unpack[Shape],
) -> Panel:
    """A row for each set of labels, the worst of the first column on top; labels may be links.

    `as_asked`: in the order of the query's answer instead.
    """
    worst = {"displayName": columns[0].title, "desc": not ascending}
    links_of = (
        override(label, {"links": [{"title": "Open", "url": url}]})
        for label, url in (links or {}).items()
    )
    more = shape.get("overrides", ())
    return Panel(
        *("table", title, about, [Query(column.value) for column in columns]),
        steps=columns[0].steps,
        instant=True,
        table=True,
        defaults=CELLS,
        options={"showHeader": True, "cellHeight": cells, "sortBy": [] if as_asked else [worst]},
        transformations=_merged(columns, hidden),
        **(shape | Shape(overrides=[BLANK, *map(_column, columns), *links_of, *more])),
    )


def _merged(columns: Sequence[Column], hidden: Sequence[str]) -> list[Json]:
    """A table of all queries: rows by their labels, columns by their titles."""
    single = len(columns) == 1
    values = ["Value"] if single else [f"Value #{n}" for n in ascii_uppercase[: len(columns)]]
    asked = " ".join(column.value.expr for column in columns)
    labels = [label for label in LABEL_ORDER if re.search(rf"\b{label}\b", asked)]
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
        "noValue": column.absent,
        "mappings": [
            {"type": "special", "options": {"match": "nan", "result": {"text": column.absent}}}
        ],
        **decimals(column.value),
        "thresholds": {"mode": "absolute", "steps": _painted(column.steps)},
        "custom.cellOptions": _cells(column.steps),
    }
    return override(column.title, properties)


def _painted(steps: Steps) -> list[Json]:
    return [
        {"color": PAINTLESS if step.colour == GOOD else step.colour, "value": step.value}
        for step in steps
    ]


def _cells(steps: Steps) -> Json:
    return {"type": "color-background", "mode": "basic"} if len(steps) > 1 else {"type": "auto"}


def wide(label: str, pixels: int) -> Json:
    return override(label, {"custom.width": pixels})


def coloured_words(label: str, colours: Mapping[str, str]) -> Json:
    options = {word: {"color": c, "index": n} for n, (word, c) in enumerate(colours.items())}
    properties = {
        "mappings": [{"type": "value", "options": options}],
        "custom.cellOptions": {"type": "color-background", "mode": "basic"},
    }
    return override(label, properties)


def worded(label: str, texts: Mapping[str, str], **properties: object) -> Json:
    """Texts in the place of a label's values; keys are regular expressions, the first counts."""
    mappings = [
        {"type": "regex", "options": {"pattern": key, "result": {"text": text, "index": n}}}
        for n, (key, text) in enumerate(texts.items())
    ]
    return override(label, {"mappings": mappings, **properties})


def matrix(
    title: str,
    about: str,
    value: Value,
    row: str,
    column: str,
    *,
    steps: Steps = NEUTRAL,
    **shape: Unpack[Shape],
) -> Panel:
    """A table of two labels: rows by `row`, columns by `column`, each cell a coloured value, else
    0."""
    grouped = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "zero"}
    first = {"renameByName": {f"{row}\\{column}": row}}
    return Panel(
        *("table", title, about, [Query(value)]),
        steps=steps,
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
        **(Shape(width=24) | shape),
    )
