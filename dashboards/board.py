"""Parts of a board: rows that ask questions, panels that answer them, variables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from dashboards.colours import NEUTRAL, Steps
from dashboards.queries import Query, Value

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it asks, how it looks. Width in 24ths of the board, height in units of 30 px.

    `empty` names the hardware or the situation in which there is nothing to show.
    """

    kind: str
    title: str
    about: str
    queries: Sequence[Query]
    width: int = 12
    height: int = 8
    steps: Steps = NEUTRAL
    empty: str = ""
    instant: bool = False
    table: bool = False
    defaults: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()
    names: Sequence[str] = tuple(ascii_uppercase)  # of the queries: refIds
    every: str = ""  # the least time between two points, as Grafana writes it: 2m

    @property
    def description(self) -> str:
        return f"{self.about} Empty {self.empty}." if self.empty else self.about

    @property
    def without_data(self) -> str:
        """Text in place of missing data."""
        return f"Empty {self.empty}" if self.empty else "Nothing in this time range"

    @property
    def unit(self) -> str:
        """The unit of the first query; the others of a panel share it, or bring overrides."""
        return self.queries[0].value.unit


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question, which is the title."""

    question: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board: the values of a label, one, several or all."""

    name: str
    label: str
    query: str
    all: str | None = ""  # what All stands for: "" each value that is there; None: there is no All


@dataclass(frozen=True, slots=True)
class Board:
    """One board. The annotation marks when alerts began."""

    title: str
    uid: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    alerts: Value
