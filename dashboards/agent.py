"""The agent itself: whether it answers, what it costs, which values are absent and why."""

from agent.sources import agent_health
from dashboards.board import BAD, GOOD, NEUTRAL, SHORT, Board, Json, Row
from dashboards.kinds import Column, graph, stat, table, wide, words
from dashboards.queries import (
    AGENT_CPU,
    AGENT_MEMORY,
    SCRAPE_SECONDS,
    SCRAPED,
    UP,
    Query,
    Value,
    now,
    rate,
    select,
)
from dashboards.scope import ABSENT as ABSENT_VALUES
from dashboards.scope import OF_AGENTS, WHY, board

YES_OR_NO: Json = {
    "mappings": [{"type": "value", "options": words((0, "no", BAD), (1, "yes", GOOD))}]
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
            fields=YES_OR_NO,
            width=8,
            height=6,
        ),
        stat(
            "Seconds since the last tick",
            "How old the agent's newest look at the machine is, by Prometheus' clock: a few "
            "seconds, plus the time since the last scrape.",
            Value(f"time() - {select(agent_health.LAST_TICK)}", "s"),
            NEUTRAL,
            legend="{{instance}}",
            width=8,
            height=6,
        ),
        stat(
            "Configuration accepted",
            agent_health.CONFIG_OK.meaning,
            now(agent_health.CONFIG_OK),
            SHORT,
            legend="{{instance}}",
            fields=YES_OR_NO,
            width=8,
            height=6,
        ),
        graph(
            "Sources that do not answer",
            f"Of how many agents. {agent_health.SOURCE_UP.meaning}",
            Query(now(agent_health.SOURCE_UP).where("== 0").counted(("source",)), "{{source}}"),
            empty="while every source answers",
            height=7,
        ),
        table(
            "Sources",
            f"{agent_health.SOURCE_UP.meaning} Those that do not answer first.",
            (Column("Up", now(agent_health.SOURCE_UP).smallest(("instance", "source")), SHORT),),
            ascending=True,
            height=7,
        ),
    ),
)

COST = Row(
    "What does it cost?",
    (
        graph(
            "CPU",
            "CPU time of the agent's process per second: 1 is one core.",
            Query(rate(AGENT_CPU), "{{instance}}"),
            width=8,
        ),
        graph(
            "CPU of reads",
            agent_health.READ_CPU_SECONDS.meaning,
            Query(rate(agent_health.READ_CPU_SECONDS, ("source",)), "{{source}}"),
            stacked=True,
            named=False,
            width=8,
        ),
        graph(
            "Time in reads",
            "Share of time spent in the reads of each source.",
            Query(rate(agent_health.READ_SECONDS, ("source",)), "{{source}}"),
            stacked=True,
            named=False,
            width=8,
        ),
        graph(
            "Memory",
            "Resident memory of the agent's process.",
            Query(now(AGENT_MEMORY), "{{instance}}"),
            width=8,
        ),
        graph(
            "Scrape",
            "How long Prometheus took to scrape the agent.",
            Query(now(SCRAPE_SECONDS), "{{instance}}"),
            width=8,
        ),
        graph(
            "Samples per scrape",
            "Samples that the agent delivered.",
            Query(now(SCRAPED), "{{instance}}"),
            width=8,
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

VERSIONS = Row(
    "Which version runs where?",
    (
        table(
            "Agents",
            "Version of the agent and of its Python.",
            (
                Column(
                    "Agents",
                    now(agent_health.BUILD_INFO).counted(("instance", "version", "python")),
                ),
            ),
            hidden=("Value",),
            width=24,
        ),
    ),
    collapsed=True,
)


def agent_board() -> Board:
    about = "State of the agents: whether they answer, their cost, and absent values."
    return board("dgx-agent", about, ANSWER, COST, ABSENT, VERSIONS, choices=OF_AGENTS)
