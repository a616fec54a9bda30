"""States of GPUs on panels: the same names and colours everywhere."""

from dashboards.board import Json
from dashboards.colours import STATES, name_of
from dashboards.kinds import override


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
