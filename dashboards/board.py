"""Parts of a board: rows that ask questions, panels that answer them, variables, colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent.model import Cause, Pair, State

# Colours were searched so that people with any colour vision distinguish states: busy from starved,
# held from idle. Reds and oranges are kept for causes that starve a GPU or need a person, yellows
# for causes that slow it down: nothing healthy has them.
GOOD, WARNING, BAD = "#0B7A58", "#F8CE2C", "#DE1109"
"""Colours behind text. Grafana writes nearly black on colours brighter than 180 of 255, nearly
white on the rest: on all three that is a contrast of 4.5 to 1 or more. No text has a colour of its
own, for no colour is readable both on Grafana's dark panels and on its light panels.
"""
PAINTLESS = "transparent"
"""Colour behind a good figure of a table: bad figures stand out."""
PLAIN = "#BDBDBD"
DASHED = "#8C8C8C"
"""Colour of the dashed lines of limits: they should not draw attention."""

STATES: dict[Pair, str] = {
    (State.IDLE, Cause.NONE): PLAIN,
    (State.IDLE, Cause.REQUESTS): "#C8F0F8",
    (State.HELD, Cause.NONE): "#B66FC9",
    (State.HUNG, Cause.NONE): "#683040",
    (State.THROTTLED, Cause.THERMAL): "#FDFB7D",
    (State.THROTTLED, Cause.POWER): WARNING,
    (State.THROTTLED, Cause.RELIABILITY): "#F3E584",
    (State.STARVED, Cause.PCIE): "#9A0C07",
    (State.STARVED, Cause.PEER): "#C48A4E",
    (State.STARVED, Cause.DISK): BAD,
    (State.STARVED, Cause.NETWORK): "#FB6306",
    (State.STARVED, Cause.CPU): "#AE3433",
    (State.STARVED, Cause.HOST_THREAD): "#DE9E3C",
    (State.STARVED, Cause.UNKNOWN): "#B04B23",
    (State.COMMUNICATING, Cause.NVLINK): "#1066ED",
    (State.COMMUNICATING, Cause.INFINIBAND): "#4D637E",
    (State.COMMUNICATING, Cause.PCIE): "#343F90",
    (State.BUSY, Cause.NONE): "#12936C",
}


WORDS = {
    Cause.PCIE: "PCIe",
    Cause.CPU: "CPU",
    Cause.HOST_THREAD: "host thread",
    Cause.NVLINK: "NVLink",
    Cause.INFINIBAND: "InfiniBand",
    Cause.UNKNOWN: "cause unknown",
    Cause.REQUESTS: "no requests",
}


def name_of(pair: Pair) -> str:
    """A state and its cause in the words of the boards: `starved: disk`, `busy`."""
    state, cause = pair
    return state.value if cause is Cause.NONE else f"{state.value}: {WORDS.get(cause, cause.value)}"


class Step(NamedTuple):
    """The colour of figures from a value on; None is the lowest."""

    value: float | None
    colour: str


Steps = tuple[Step, ...]

NEUTRAL: Steps = (Step(None, PLAIN),)
WELL: Steps = (Step(None, GOOD),)
STEPS: Mapping[str, Steps] = {
    "neutral": NEUTRAL,
    "part": (Step(None, DASHED),),  # a bar neither good nor bad, darker than its empty part
    "well": WELL,
    # share of GPU time that was lost; from a quarter on an alert reports it
    "lost": (Step(None, GOOD), Step(0.10, WARNING), Step(0.25, BAD)),
    # share of time for which a data path was saturated
    "full": (Step(None, GOOD), Step(0.10, WARNING), Step(0.50, BAD)),
    "any": (Step(None, GOOD), Step(1, BAD)),  # a count of things that should not exist
    "some": (Step(None, GOOD), Step(1, WARNING)),  # a count of things that need attention
    "short": (Step(None, BAD), Step(1, GOOD)),  # found over expected, or 1 for yes
    # degrees Celsius left to the end of the operating range
    "margin": (Step(None, BAD), Step(0, WARNING), Step(3, GOOD)),
    "behind": (Step(None, GOOD), Step(0.04, WARNING)),  # share by which a node holds up its job
}
"""Colours of figures by their name in the files of the boards."""
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
