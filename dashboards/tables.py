"""Panel types for tables: rows with labels and values, or a matrix of two labels."""

import re
from collections.abc import Iterator
from string import ascii_uppercase

from msgspec import Struct, field

from agent.model import LOST_STATES
from dashboards import board
from dashboards.board import BAD, LOOKS, PAINTLESS, STATES, STEPS, WARNING, Json, Steps
from dashboards.kinds import OfFigures, Panel, Scope, decimals, override, painted

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
        return self._made(
            "table",
            queries,
            {"thresholds": painted(STEPS[first.steps]), **LOOKS["cells"]},
            {
                "showHeader": True,
                "cellHeight": self.cells,
                "sortBy": [] if self.as_asked else [worst],
            },
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
        "color": BAD if state in LOST_STATES else PAINTLESS,
    }
    for state, cause in STATES
} | {
    "not observed/": {"text": "not observed", "color": WARNING},
    "late": {"text": "late: no driver", "color": BAD},
    "silent": {"color": BAD},
}
"""Texts and colours of cells by `state/cause`. Lost time is red."""


def _cells(steps: Steps, *, paints: bool = False) -> Json:
    paints = paints or len(steps) > 1
    return {"type": "color-background", "mode": "basic"} if paints else {"type": "auto"}
