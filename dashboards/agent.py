"""The agent itself: whether it answers, its cost, its absent values and their reasons."""

from agent.sources import agent_health, system
from dashboards.board import BAD, GOOD, NEUTRAL, SHORT, Board, Row
from dashboards.kinds import Column, graph, stat, table, wide
from dashboards.queries import (
    AGENT_CPU,
    AGENT_MEMORY,
    SCRAPE_SECONDS,
    UP,
    Query,
    Value,
    now,
    rate,
    select,
)
from dashboards.scope import ABSENT as ABSENT_VALUES
from dashboards.scope import OF_AGENTS, WHY, board

YES_OR_NO = {
    "0": {"text": "no", "color": BAD, "index": 0},
    "1": {"text": "yes", "color": GOOD, "index": 1},
}

ANSWER = Row(
    "Does every agent answer?",
    (
        stat(
            "Scraped",
            "Whether the last scrape succeeded.",
            now(UP),
            SHORT,
            legend="{{instance}}",
            fields={"mappings": [{"type": "value", "options": YES_OR_NO}]},
            width=12,
            height=6,
        ),
        stat(
            "Seconds since the last tick",
            "How old the agent's newest look at the machine is, by Prometheus' clock: a few "
            "seconds, plus the time since the last scrape.",
            Value(f"time() - {select(agent_health.LAST_TICK)}", "s"),
            NEUTRAL,
            legend="{{instance}}",
            width=12,
            height=6,
        ),
        table(
            "Sources",
            "Sources that do not answer, or did not since the agent started: 0 while they do not.",
            (Column("Up", now(agent_health.SOURCE_UP).smallest(("instance", "source")), SHORT),),
            ascending=True,
            width=24,
            height=7,
            empty="while all sources answer",
        ),
    ),
)

COST = Row(
    "What does it cost?",
    (
        graph(
            "CPU",
            "CPU time of the agent's process per second: 1 is one core. And how long its threads "
            "waited for a core: readings come late then.",
            Query(rate(AGENT_CPU), "{{instance}}"),
            Query(rate(agent_health.PROCESSOR_WAIT), "{{instance}} waits"),
        ),
        graph(
            "Memory",
            "Resident memory of the agent's process.",
            Query(now(AGENT_MEMORY), "{{instance}}"),
        ),
        graph(
            "Scrape",
            "How long Prometheus took to scrape the agent.",
            Query(now(SCRAPE_SECONDS), "{{instance}}"),
        ),
    ),
)

ABSENT = Row(
    "What can it not report, and why?",
    (
        table(
            "Absent values",
            agent_health.ABSENT_VALUES.meaning.replace("`", ""),
            (Column("Values", ABSENT_VALUES),),
            overrides=[WHY, wide("metric", 400), wide("reason", 400)],
            width=24,
        ),
    ),
)

AGENT = ("instance", "version", "python")
MACHINE = ("instance", "title", "product", "system", "driver_version")
VERSIONS = Row(
    "Which version runs where?",
    (
        table(
            "Agents",
            "Versions of the agent, its Python and the driver; what it took its machine for.",
            (
                Column("Agents", now(agent_health.BUILD_INFO).counted(AGENT)),
                Column("Machines", now(system.INFO).counted(MACHINE)),
            ),
            hidden=("Value #A", "Value #B"),
            overrides=[wide("title", 260)],
            width=24,
        ),
    ),
    collapsed=True,
)


def agent_board() -> Board:
    about = "State of the agents: whether they answer, their cost, and absent values."
    return board("dgx-agent", about, ANSWER, COST, ABSENT, VERSIONS, choices=OF_AGENTS)
