"""Panel types: their keys in the dashboard files, and their JSON in Grafana. A `scope` is a
function that restricts an expression to the selected nodes and GPUs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_uppercase

from msgspec import Struct, field

from agent.faults.monitoring import ABSENT
from agent.model import LOST_STATES
from dashboards import board
from dashboards.board import DATASOURCE, LOOKS, NEUTRAL, PAINTLESS, STEPS, Json

Scope = Callable[[str], str]


def override(name: str, properties: Mapping[str, object], by: str = "byName") -> Json:
    """Return a Grafana override that sets properties of fields with this name, type, or query."""
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": by, "options": name}, "properties": listed}


def worded(label: str, texts: Mapping[str, str], **properties: object) -> Json:
    """Return an override that replaces the values of a label with texts. The keys of `texts` are
    regular expressions, and the first match applies."""
    mappings = [
        {"type": "regex", "options": {"pattern": key, "result": {"text": text, "index": n}}}
        for n, (key, text) in enumerate(texts.items())
    ]
    return override(label, {"mappings": mappings, **properties})


_LOOK_OF_STATES = {
    f"{state.value}/{cause.value}": (colour, board.name_of((state, cause)))
    for (state, cause), colour in board.STATES.items()
} | {"unobserved/": (board.COLOURS["unobserved"], "not observed")}
OF_STATES = [
    override(key, {"color": {"mode": "fixed", "fixedColor": colour}, "displayName": name})
    for key, (colour, name) in _LOOK_OF_STATES.items()
]
"""Overrides that give series named `state/cause` the name and colour of the state and cause."""

Query = tuple[str, str]
"""A query: its legend (or an empty string), and its PromQL expression."""


def _target(name: str, query: Query, kind: str) -> Json:
    legend, expr = query
    return {
        "expr": expr,
        "legendFormat": legend or "__auto",
        "format": "table" if kind == "table" else "time_series",
        "instant": kind != "timeseries",
        "range": kind == "timeseries",
        "refId": name,
        "datasource": DATASOURCE,
        "editorMode": "code",
    }


class Panel(Struct, kw_only=True, forbid_unknown_fields=True):
    """A panel. Its width is in 24ths of the dashboard, and its height in units of 30 px.

    `empty` explains in which cases the panel has no data, such as on certain hardware.
    """

    title: str
    about: str
    unit: str = ""  # a Grafana unit
    width: int = 12
    height: int = 8
    empty: str = ""
    states: bool = False  # series have state names and colours
    reasons: bool = False  # show the `reason` label as text
    more: tuple[Json, ...] = ()  # overrides
    widths: dict[str, int] = {}  # column widths in pixels

    def _made(
        self, kind: str, queries: Sequence[Query], defaults: Json, options: Json, **more: object
    ) -> Json:
        """Return the JSON of the panel in the format of Grafana 10 to 13, without a position."""
        word = "None" if self.empty.startswith("while") else "Empty"
        absent = f"{word} {self.empty}" if self.empty else "Nothing in this time range"
        usual = {"unit": self.unit, "noValue": absent, "thresholds": painted(NEUTRAL)}
        named = zip(ascii_uppercase, queries, strict=False)
        return {
            "type": kind,
            "title": self.title,
            "description": f"{self.about} Empty {self.empty}." if self.empty else self.about,
            "datasource": DATASOURCE,
            "gridPos": {"w": self.width, "h": self.height},
            "transformations": [],
            "targets": [_target(*one, kind) for one in named],
            "options": options,
            "fieldConfig": {
                "defaults": {**usual, **defaults},
                "overrides": [*self._overrides()],
            },
            **more,
        }

    def _overrides(self) -> Iterator[Json]:
        if self.states:
            yield from OF_STATES
        if self.reasons:
            yield worded("reason", ABSENT)
        yield from self.more
        for label, pixels in self.widths.items():
            yield override(label, {"custom.width": pixels})


class Graph(Panel, kw_only=True):
    """Time series, shown as lines or stacked areas."""

    lines: dict[str, str] = {}  # expressions by legend
    limits: dict[str, str] = {}  # dashed lines by legend
    stacked: bool = False
    whole: bool = False  # a share, shown on an axis that ends at 1
    legends: bool = True  # legend below; without it, names are only in tooltips
    figures: bool = False  # legend on the right, with last, mean, and maximum
    every: str = ""  # minimum step; each step ends at its value

    def drawn(self, scope: Scope) -> Json:
        # Stacked shares may slightly exceed 1 because of rounding, and traffic may exceed the limit
        # of a path.
        ends: Json = {"min": 0, "max": 1} if self.whole and self.stacked else {"min": 0}
        if self.unit == "none" or self.figures:
            ends["decimals"] = LOOKS["decimals"].get(self.unit, 1)
        custom = {
            **LOOKS["line"],
            "lineInterpolation": "stepBefore" if self.every else "linear",
            "lineWidth": 0 if self.stacked else 1,
            "fillOpacity": 80 if self.stacked else 0,  # overlapping areas are unreadable
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "axisSoftMax": 1.0 if self.whole else LOOKS["least"].get(self.unit),
        }
        legend: Json = {**LOOKS["legend"], "showLegend": self.legends}
        if self.figures:
            legend = LOOKS["legend_with_figures"]
        queries = [*self.lines.items(), *self.limits.items()]
        return self._made(
            "timeseries",
            [(legend, scope(expr)) for legend, expr in queries],
            {"color": {"mode": "palette-classic"}, "custom": custom, **ends},
            {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
            interval=self.every or None,
        )

    def _overrides(self) -> Iterator[Json]:
        yield from super()._overrides()
        for name in ascii_uppercase[len(self.lines) : len(self.lines) + len(self.limits)]:
            yield override(name, LOOKS["limit_line"], "byFrameRefID")


class OfFigures(Panel, kw_only=True):
    """A panel with a value per series, coloured by thresholds."""

    expr: str
    legend: str = ""
    steps: str = "neutral"

    def _shown(self, kind: str, scope: Scope, defaults: Json, options: Json) -> Json:
        look = {"color": {"mode": "thresholds"}, "thresholds": painted(STEPS[self.steps])}
        query = self.legend, scope(self.expr)
        return self._made(kind, [query], {**look, **decimals(self.unit), **defaults}, options)


class Number(OfFigures, kw_only=True):
    """A panel with one number, or one per series."""

    width: int = 3
    height: int = 3

    def drawn(self, scope: Scope) -> Json:
        plain = STEPS[self.steps] in (NEUTRAL, board.WELL)
        options = {**LOOKS["number"], "colorMode": "none" if plain else "background_solid"}
        options["textMode"] = "value_and_name" if self.legend else "value"
        return self._shown("stat", scope, {}, options)


class Bars(OfFigures, kw_only=True):
    """A panel with a bar per series, for the current value or a value over the time range."""

    most: int = 1

    def drawn(self, scope: Scope) -> Json:
        return self._shown("bargauge", scope, {"min": 0, "max": self.most}, LOOKS["bars"])


def decimals(unit: str) -> Json:
    return {"decimals": LOOKS["decimals"][unit]} if unit in LOOKS["decimals"] else {}


def painted(steps: board.Steps, good: str = board.GOOD) -> Json:
    """Return thresholds as Grafana's JSON, with `good` as the colour of good values."""
    listed = [step | ({"color": good} if step["color"] == board.GOOD else {}) for step in steps]
    return {"mode": "absolute", "steps": listed}


BLANK = override("string", {"noValue": " "}, "byType")
"""Override that leaves cells without a label blank, instead of the text of empty panels."""


class Column(Struct, forbid_unknown_fields=True):
    """A column of values in a table: its expression, unit, and colours."""

    title: str
    expr: str
    unit: str
    steps: str = "neutral"
    absent: str = "-"  # text if the value is missing or NaN
    words: dict[str, str] = field(default_factory=dict)  # texts of values

    def drawn(self) -> Json:
        steps = STEPS[self.steps]
        absent = {"match": "null+nan", "result": {"text": self.absent, "color": PAINTLESS}}
        mappings: list[Json] = [{"type": "special", "options": absent}]
        if self.words:
            options = {value: {"text": word} for value, word in self.words.items()}
            mappings.append({"type": "value", "options": options})
        properties = {
            "unit": self.unit,
            "noValue": self.absent,
            "mappings": mappings,
            **decimals(self.unit),
            "thresholds": painted(steps, PAINTLESS),
            "custom.cellOptions": _cells(steps),
        }
        return override(self.title, properties)


class Table(Panel, kw_only=True):
    """A table with a row for each label set, sorted by the first column, worst value first."""

    columns: tuple[Column, ...]
    links: dict[str, str] = field(default_factory=dict)  # by label: dashboard or URL
    hidden: tuple[str, ...] = ()
    ascending: bool = False
    as_asked: bool = False  # keep the order of the query result
    cells: str = "sm"

    def drawn(self, scope: Scope) -> Json:
        first = self.columns[0]
        worst = {"displayName": first.title, "desc": not self.ascending}
        queries = [("", scope(column.expr)) for column in self.columns]
        options: Json = {"showHeader": True, "cellHeight": self.cells}
        options["sortBy"] = [] if self.as_asked else [worst]
        return self._made(
            "table",
            queries,
            {"thresholds": painted(STEPS[first.steps]), **LOOKS["cells"]},
            options,
            transformations=self._merged(" ".join(expr for _, expr in queries)),
        )

    def _overrides(self) -> Iterator[Json]:
        yield BLANK
        yield from (column.drawn() for column in self.columns)
        for label, to in self.links.items():
            address = to if "/" in to else board.link_to(to)
            yield override(label, {"links": [{"title": "Open", "url": address}]})
        yield from super()._overrides()

    def _merged(self, asked: str) -> list[Json]:
        """Return the Grafana transformations that merge the rows of all queries by their labels."""
        titles = [column.title for column in self.columns]
        values = [f"Value #{n}" for n in ascii_uppercase[: len(titles)]]
        merge: list[Json] = [{"id": "merge", "options": {}}]
        if len(titles) == 1:
            values, merge = ["Value"], []
        labels = [label for label in LOOKS["labels"] if re.search(rf"\b{label}\b", asked)]
        organised = {
            "excludeByName": dict.fromkeys(("Time", "job", *self.hidden), True),
            "renameByName": dict(zip(values, titles, strict=True)),
            "indexByName": {name: place for place, name in enumerate([*labels, *values])},
        }
        return [*merge, {"id": "organize", "options": organised}]


class Matrix(OfFigures, kw_only=True):
    """A table with a row for each value of one label, and a column for each value of another. Cells
    contain coloured values, or 0 if missing. If `cell` is a label, cells contain its values, and
    columns are sorted."""

    width: int = 24
    of: tuple[str, str]
    cell: str = "Value"
    more: tuple[Json, ...] = (BLANK,)

    def drawn(self, scope: Scope) -> Json:
        row, column = self.of
        states = self.cell != "Value"
        cells = {"rowField": row, "columnField": column, "valueField": self.cell}
        cells["emptyValue"] = "empty" if states else "zero"
        order = [{"id": "sortBy", "options": {"sort": [{"field": column}]}}] if states else []
        first = {"renameByName": {f"{row}\\{column}": row}}
        steps = STEPS[self.steps]
        return self._made(
            "table",
            [("", scope(self.expr))],
            {
                "color": {"mode": "thresholds"},
                "mappings": [{"type": "value", "options": STATE_WORDS}] if states else [],
                **decimals(self.unit),
                "thresholds": painted(steps, PAINTLESS),
                "custom": {"align": "center", "cellOptions": _cells(steps, paints=states)},
            },
            {"showHeader": True, "cellHeight": "sm"},
            transformations=[
                *order,
                {"id": "groupingToMatrix", "options": cells},
                {"id": "organize", "options": first},
            ],
        )


STATE_WORDS = {
    f"{state.value}/{cause.value}": {
        "text": board.name_of((state, cause)),
        "color": board.BAD if state in LOST_STATES else PAINTLESS,
    }
    for state, cause in board.STATES
} | {
    "not observed/": {"text": "not observed", "color": board.WARNING},
    "late": {"text": "late: no driver", "color": board.BAD},
    "silent": {"color": board.BAD},
}
"""Texts and colours of cells by `state/cause`. Lost time is red."""


def _cells(steps: board.Steps, *, paints: bool = False) -> Json:
    paints = paints or len(steps) > 1
    return {"type": "color-background", "mode": "basic"} if paints else {"type": "auto"}
