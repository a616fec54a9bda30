"""States of GPUs on panels: the same names and colours everywhere."""

from dashboards.board import Json, Panel
from dashboards.colours import STATES, name_of
from dashboards.kinds import graph, override
from dashboards.queries import Query
from dashboards.shares import time_by_cause_seen


def of_states() -> list[Json]:
    """Name and colour of every state and cause, for series called `state/cause`."""
    return [
        override(
            f"{state.value}/{cause.value}",
            {
                "color": {"mode": "fixed", "fixedColor": STATES[state, cause]},
                "displayName": name_of((state, cause)),
            },
        )
        for state, cause in STATES
    ]


def time_graph(title: str, whose: str, width: int = 12, height: int = 8) -> Panel:
    """Shares of time by state and cause on each other, of the GPUs that the board shows."""
    return graph(
        title,
        f"Share of {whose}. The active share of a starved second counts as busy.",
        Query(time_by_cause_seen(), "{{state}}/{{cause}}"),
        stacked=True,
        whole=True,
        overrides=of_states(),
        width=width,
        height=height,
    )
