"""Dashboard components: rows with questions, panels with answers, variables, and colours."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent.model import Cause, Pair, State

LOOKS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("looks.toml").read_text("utf-8"))
"""Colours and common panel settings."""

COLOURS: dict[str, str] = LOOKS["colours"]
GOOD, WARNING, BAD = COLOURS["good"], COLOURS["warning"], COLOURS["bad"]
PLAIN = COLOURS["plain"]
PAINTLESS = "transparent"
"""Background of good values in tables, so that bad values stand out."""

STATES: dict[Pair, str] = {
    (State(state), Cause(cause)): COLOURS.get(colour, colour)
    for state, causes in LOOKS["states"].items()
    for cause, colour in causes.items()
}


def name_of(pair: Pair) -> str:
    """Return the name of a state and its cause in dashboards: `starved: disk`, `busy`."""
    state, cause = pair
    word = LOOKS["words"].get(cause, cause.value)
    return state.value if cause is Cause.NONE else f"{state.value}: {word}"


class Step(NamedTuple):
    """The colour of values at or above a threshold. None stands for the lowest range of values."""

    value: float | None
    colour: str


Steps = tuple[Step, ...]

STEPS: Mapping[str, Steps] = {
    name: (Step(None, COLOURS[lowest]), *(Step(value, COLOURS[name]) for value, name in higher))
    for name, (lowest, *higher) in LOOKS["steps"].items()
}
"""Colour thresholds by name, as used in the dashboard files."""
NEUTRAL, WELL = STEPS["neutral"], STEPS["well"]
Json = dict[str, Any]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer the question in the title of the row."""

    question: str
    panels: Sequence[Json]  # in Grafana's format, without positions
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """A dashboard variable, which stands for one, several, or all values of a label."""

    name: str
    label: str
    query: str
    all: str | None = ""  # value of All: "" for every known value; None for no All


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard, with an annotation at the start of each alert."""

    title: str
    uid: str
    about: str
    rows: Sequence[Row]
    variables: Sequence[Variable]
    alerts: str  # PromQL expression of the annotation
