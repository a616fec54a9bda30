"""Dashboard components: rows with questions, panels with answers, variables, and colours."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent.model import Cause, Pair, State

LOOKS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("looks.toml").read_text("utf-8"))
"""Colours and constant panel settings."""

COLOURS: dict[str, str] = LOOKS["colours"]
GOOD, WARNING, BAD = COLOURS["good"], COLOURS["warning"], COLOURS["bad"]
PLAIN = COLOURS["plain"]
PAINTLESS = "transparent"
"""Background of good values in a table, so that bad values stand out."""

STATES: dict[Pair, str] = {
    (State(state), Cause(cause)): COLOURS.get(colour, colour)
    for state, causes in LOOKS["states"].items()
    for cause, colour in causes.items()
}


def name_of(pair: Pair) -> str:
    """Return the dashboard name of a state and its cause: `starved: disk`, `busy`."""
    state, cause = pair
    word = LOOKS["words"].get(cause, cause.value)
    return state.value if cause is Cause.NONE else f"{state.value}: {word}"


class Step(NamedTuple):
    """The colour of values from a threshold; None is the lowest threshold."""

    value: float | None
    colour: str


Steps = tuple[Step, ...]

STEPS: Mapping[str, Steps] = {
    name: (Step(None, COLOURS[lowest]), *(Step(value, COLOURS[name]) for value, name in higher))
    for name, (lowest, *higher) in LOOKS["steps"].items()
}
"""Colour thresholds by their name in the dashboard files."""
NEUTRAL, WELL = STEPS["neutral"], STEPS["well"]
Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer the question in the row's title."""

    question: str
    panels: Sequence[Json]  # in Grafana's format, except for their positions
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A dashboard variable: a label value, several values, or all values."""

    name: str
    label: str
    query: str
    all: str | None = ""  # value of All: "" for every existing value; None for no All option


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard with an annotation that marks when alerts started."""

    title: str
    uid: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    alerts: str  # PromQL expression of the annotation
