"""Parts of a board: rows that ask questions, panels that answer them, variables, colours."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent.model import Cause, Pair, State

LOOKS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("looks.toml").read_text("utf-8"))
"""Colours, and settings of panels that never change."""

COLOURS: dict[str, str] = LOOKS["colours"]
GOOD, WARNING, BAD = COLOURS["good"], COLOURS["warning"], COLOURS["bad"]
PLAIN = COLOURS["plain"]
PAINTLESS = "transparent"
"""Colour behind a good figure of a table: bad figures stand out."""

STATES: dict[Pair, str] = {
    (State(state), Cause(cause)): COLOURS.get(colour, colour)
    for state, causes in LOOKS["states"].items()
    for cause, colour in causes.items()
}


def name_of(pair: Pair) -> str:
    """A state and its cause in the words of the boards: `starved: disk`, `busy`."""
    state, cause = pair
    word = LOOKS["words"].get(cause, cause.value)
    return state.value if cause is Cause.NONE else f"{state.value}: {word}"


class Step(NamedTuple):
    """The colour of figures from a value on; None is the lowest."""

    value: float | None
    colour: str


Steps = tuple[Step, ...]

STEPS: Mapping[str, Steps] = {
    name: (Step(None, COLOURS[lowest]), *(Step(value, COLOURS[name]) for value, name in higher))
    for name, (lowest, *higher) in LOOKS["steps"].items()
}
"""Colours of figures by their name in the files of the boards."""
NEUTRAL, WELL = STEPS["neutral"], STEPS["well"]
Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question, which is the title."""

    question: str
    panels: Sequence[Json]  # as Grafana reads them, but for their places
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a board: a value of a label, several or all."""

    name: str
    label: str
    query: str
    all: str | None = ""  # the meaning of All: "" each value that is there; None: there is no All


@dataclass(frozen=True, slots=True)
class Board:
    """A board. The annotation marks when alerts began."""

    title: str
    uid: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    alerts: str  # the expression of the annotation
