"""The fleet: which node loses the most, and what is wrong where. Worst first."""

from agent.diagnosis.accounting import STATE_SECONDS
from agent.model import State
from agent.sources import gpu, nvlink, power, system
from dashboards.board import Board, Row
from dashboards.colours import (
    ANY,
    BAD,
    FULL,
    LOST,
    NEUTRAL,
    PLAIN,
    SHORT,
    SOME,
    WARNING,
    WELL,
)
from dashboards.kinds import graph, stat
from dashboards.queries import (
    UP,
    Query,
    counted,
    either,
    grown,
    least,
    less,
    most,
    now,
    or_zero,
    over,
    rate,
    total,
    where,
)
from dashboards.scope import OF_FLEET, TO_GPU, TO_LINKS, TO_NODE, board
from dashboards.shares import (
    CAUSE,
    DEVICE,
    GPU,
    NODE,
    alerts,
    of_spec,
    saturated,
    since,
    time_in,
)
from dashboards.states import time_graph
from dashboards.tables import Column, coloured_words, matrix, table, wide

QUIET = "when no alerts are firing"
WORST = 20
"""Rows of a worst-first table."""

BY_NODE = ("alertname", "severity", "instance")
SEVERITIES = {"critical": BAD, "warning": WARNING, "info": PLAIN}
"""The worst first, as the table lists them."""

MISSING = less(now(system.GPUS_EXPECTED), now(system.GPUS))
PATHS = {"path": "~nvlink|pcie|hbm|disk|network|infiniband"}

HEALTH = Row(
    "Is anything wrong in the fleet?",
    (
        stat("Nodes", "Agents that answer.", counted(where(now(UP), "== 1"))),
        stat(
            "Nodes that do not answer",
            "Agents whose last scrape failed.",
            or_zero(counted(where(now(UP), "== 0"))),
            ANY,
        ),
        stat("GPUs", "GPUs that answer.", total(now(system.GPUS)), WELL),
        stat(
            "GPUs missing",
            "GPUs that the nodes should have, less those that answer.",
            total(MISSING),
            ANY,
        ),
        stat(
            "GPU time busy",
            "Share of the GPU time observed in this time range in which GPUs worked.",
            time_in(State.BUSY),
            WELL,
        ),
        stat(
            "GPU time starved",
            "Share of the GPU time observed in this time range for which GPUs waited for data, "
            "for the host or for a peer.",
            time_in(State.STARVED),
            LOST,
        ),
    ),
)

LOSSES = Row(
    "Which nodes lose the most GPU time?",
    (
        table(
            "Nodes, most starved first",
            "Shares of the GPU time observed in this time range; fullest path: the longest share "
            "of time for which one data path was saturated. A node leads to its board. Alerts is "
            "empty where none fires.",
            (
                Column("Starved", time_in(State.STARVED, NODE), LOST),
                Column("Held", time_in(State.HELD, NODE), LOST),
                Column("Throttled", time_in(State.THROTTLED, NODE), LOST),
                Column("Busy", time_in(State.BUSY, NODE), NEUTRAL),
                Column("Fullest path", saturated(NODE), FULL),
                Column("GPUs missing", total(MISSING, NODE), ANY),
                Column("Critical", alerts(NODE, "critical"), ANY),
                Column("Alerts", alerts(NODE), SOME),
            ),
            links={"instance": TO_NODE},
            width=24,
        ),
        matrix(
            "Time lost, by node and GPU",
            "Share of the time of each GPU in this range that was not busy, communicating or idle: "
            "starved, throttled, held or hung.",
            over(
                grown(STATE_SECONDS, GPU, state="~starved|throttled|held|hung"),
                grown(STATE_SECONDS, GPU),
            ),
            "instance",
            "gpu",
            steps=LOST,
            width=24,
            height=8,
        ),
        time_graph("Where the fleet's GPU time goes", "all GPU time by state and cause"),
        table(
            "GPUs, most starved first",
            f"The {WORST} largest losses by GPU and cause, as a share of its time in this range. "
            "A GPU leads to its board.",
            (
                Column(
                    "Lost",
                    most(
                        over(
                            grown(STATE_SECONDS, (*GPU, *CAUSE), state=State.STARVED.value),
                            grown(STATE_SECONDS, GPU),
                            on=GPU,
                        ),
                        WORST,
                    ),
                    LOST,
                ),
            ),
            links={"instance": TO_NODE, "gpu": TO_GPU},
            hidden=("state",),
        ),
    ),
)

PATHS_FULL = Row(
    "Which data paths are full?",
    (
        table(
            "Data paths, longest saturated first",
            f"The {WORST} paths that were longest at or above their threshold in this time range, "
            "as a share of the time for which their traffic was known.",
            (Column("Saturated", most(saturated(DEVICE), WORST), FULL),),
            links={"instance": TO_LINKS},
        ),
        table(
            "Degraded paths",
            f"What each path can carry over what its spec sheet says: the {WORST} lowest. Below 1 "
            "it is degraded: a link that is down, a narrow slot, a port at a lower rate.",
            (
                Column(
                    "Of spec",
                    least(of_spec(), WORST),
                    SHORT,
                ),
            ),
            links={"instance": TO_LINKS},
            ascending=True,
        ),
    ),
)


def firing(address: str) -> Row:
    """What fires, the worst first; a name leads to its page of the runbook."""
    runbook = {"alertname": f"{address}#${{__data.fields.alertname}}"} if address else {}
    return Row(
        "Which alerts fire?",
        (
            table(
                "Firing alerts",
                "What fires now on each node, for how many GPUs and devices, and since when. "
                "RUNBOOK.md says what to do about each.",
                (
                    Column(
                        "Alerts", either(*(alerts(BY_NODE, severity) for severity in SEVERITIES))
                    ),
                    Column("Began", either(*(since(BY_NODE, severity) for severity in SEVERITIES))),
                ),
                links={"instance": TO_NODE, **runbook},
                overrides=[coloured_words("severity", SEVERITIES)],
                as_asked=True,
                empty=QUIET,
                width=24,
                height=6,
            ),
        ),
    )


INVENTORY = Row(
    "What is in the fleet, and what does it draw?",
    (
        table(
            "Machines",
            "What each agent took its machine for, and the driver that it found.",
            (
                Column(
                    "Nodes",
                    counted(
                        now(system.INFO),
                        ("instance", "title", "product", "system", "driver_version"),
                    ),
                ),
            ),
            links={"instance": TO_NODE},
            hidden=("Nodes", "Value"),
            overrides=[wide("title", 260)],
            width=14,
        ),
        table(
            "GPU models",
            "GPUs by model.",
            (Column("GPUs", counted(now(gpu.INFO), ("model", "architecture"))),),
            width=10,
        ),
        graph(
            "Power",
            "Power of all GPUs of each node, from their energy counters.",
            Query(rate(power.ENERGY, NODE), "{{instance}}"),
        ),
        graph(
            "NVLink payload sent",
            "Payload that the GPUs of each node sent over NVLink. Where a driver refuses the "
            "counters (V100 from driver 580 on) there is no line.",
            Query(rate(nvlink.TRANSMITTED, NODE), "{{instance}}"),
        ),
    ),
    collapsed=True,
)


def fleet_board(runbook: str = "") -> Board:
    """The alerts lead to the runbook, where it has an address."""
    about = "Which alerts fire, which nodes and GPUs lose time, and which data paths are full."
    rows = HEALTH, firing(runbook), LOSSES, PATHS_FULL, INVENTORY
    return board("dgx-fleet", about, *rows, choices=OF_FLEET)
