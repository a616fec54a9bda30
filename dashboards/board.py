"""The names, colours, and common settings of all dashboards, and the links between them. Links keep
the time range and the selection."""

from collections.abc import Mapping
from typing import Any

from agent.metrics import beside
from agent.model import Cause, Pair, State

LOOKS: dict[str, Any] = beside(__file__, "looks")
"""Colours and common settings of panels."""

COLOURS: dict[str, str] = LOOKS["colours"]
GOOD, WARNING, BAD = COLOURS["good"], COLOURS["warning"], COLOURS["bad"]
PLAIN = COLOURS["plain"]
PAINTLESS = "transparent"
"""Background colour of good values in tables, so that bad values stand out."""

STATES: dict[Pair, str] = {
    (State(state), Cause(cause)): COLOURS.get(colour, colour)
    for state, causes in LOOKS["states"].items()
    for cause, colour in causes.items()
}


def name_of(pair: Pair) -> str:
    """Return the name of a state and cause in dashboards, such as `starved: disk` or `busy`."""
    state, cause = pair
    word = LOOKS["words"].get(cause, cause.value)
    return state.value if cause is Cause.NONE else f"{state.value}: {word}"


Json = dict[str, Any]
Steps = list[Json]

STEPS: Mapping[str, Steps] = {
    name: [{"color": COLOURS[word], "value": value} for value, word in ((None, lowest), *higher)]
    for name, (lowest, *higher) in LOOKS["steps"].items()
}
"""Thresholds (the lowest is None) with their colours, by the names in the dashboard files."""
NEUTRAL, WELL = STEPS["neutral"], STEPS["well"]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

BOARDS = {"fleet": (), "node": ("instance",), "gpu": ("instance", "gpu"), "agent": ("instance",)}
"""Labels of a table row that a link to a dashboard passes on, by dashboard."""


def link_to(board: str) -> str:
    """Return the URL of a dashboard for a table row's node and GPU. It keeps the time range."""
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in BOARDS[board])
    kept = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${cluster:queryparam}"
    return f"/d/dgx-{board}?{kept}{chosen}"
