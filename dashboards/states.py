"""States of GPUs on panels: the same names and colours everywhere."""

from agent.diagnosis.accounting import STATE
from dashboards.board import Json, Panel
from dashboards.colours import CODES, STATES, name_of
from dashboards.kinds import override, timeline
from dashboards.queries import Query, Value, select


def verdict_timeline() -> Panel:
    """What each GPU did when it was scraped."""
    return timeline(
        "State of each GPU",
        "What each GPU did when it was scraped, and what starved it. What happened in between is "
        "counted, and shown as shares of time.",
        Query(verdicts(), "{{instance}} GPU {{gpu}}"),
        state_names(),
    )


def verdicts() -> Value:
    """For each GPU the code of its state and cause now."""
    coded = (
        f"{code} * {select(STATE, state=pair[0].value, cause=pair[1].value)}"
        for pair, code in CODES.items()
    )
    return Value(f"sum by (instance, gpu) ({' or '.join(coded)})", "none")


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


def state_names() -> Json:
    """What a timeline of verdict codes says at each number."""
    return {
        str(code): {"text": name_of(pair), "color": STATES[pair], "index": code}
        for pair, code in CODES.items()
    }
