"""The fleet: the node that loses the most, and the faults with their places. Worst first."""

from agent.diagnosis.accounting import STATE_SECONDS
from agent.diagnosis.job_watch import HUNG
from agent.faults.records import (
    GPU_LOST,
    NODE_SECONDS,
    OWN_TIME,
    PATH_SECONDS,
    SECONDS_RECORD,
    TENSOR_RECORD,
)
from agent.model import WHAT_LOST, State
from agent.sources import system
from agent.sources.workload import JOB_INFO
from dashboards.board import ANY, FULL, GOOD, LOST, SOME, WARNING, WELL, Board, Row, Step
from dashboards.kinds import Column, graph, matrix, stat, table
from dashboards.queries import (
    CAUSE,
    DEVICE,
    GPU,
    NODE,
    PLACES_OF_FLEET,
    RATE,
    UP,
    Labels,
    Query,
    Value,
    alerts,
    either,
    now,
    select,
    summed,
)
from dashboards.scope import (
    OF_FLEET,
    TO_GPU,
    TO_NODE,
    board,
    firing_alerts,
    goodput,
    of_states,
)

WORST = 20
"""Rows of a worst-first table."""

OF_PLACES = ("alertname", "severity", "rack", "instance", "path", "direction", "xid", "do")

MISSING = now(system.GPUS_EXPECTED).less(now(system.GPUS))

LOSING = f"~{WHAT_LOST}"
SHOWN = 50
"""Nodes in a table of the worst: nobody reads more of a fleet of thousands."""


def part(state: str, by: Labels) -> Value:
    return summed(NODE_SECONDS, by, state=state).over(summed(NODE_SECONDS, by))


def hours(state: str) -> Value:
    return Value(f"{summed(NODE_SECONDS, NODE, state=state).expr} / 3600", "short")


HELD_UP = Value(
    f"count by (instance) (rate({select(STATE_SECONDS, state='hung')}[{RATE}]) > 0.5 or "
    f"rate({select(STATE_SECONDS, state='starved', cause='peer')}[{RATE}]) > 0.5)",
    "none",
)
"""GPUs that have waited for others of their job most of the time, up to now."""

PEAK = summed(TENSOR_RECORD).over(summed(SECONDS_RECORD, state=State.BUSY))
"""Both from the same group of rules: other groups are evaluated at other times."""


BY_CAUSE = (
    summed(NODE_SECONDS, (*NODE, *CAUSE), state=LOSING)
    .labelled("cause", "held", "state", "held")
    .labelled("cause", "hung", "state", "hung")
)
SPENT = Value(select(NODE_SECONDS), "s")
STARVED = summed(GPU_LOST, (*GPU, *CAUSE), state=State.STARVED.value)
LOST_SHARE = either(part(LOSING, NODE), Value(f"0 * {summed(NODE_SECONDS, NODE).expr}", ""))

OBSERVED = Value(f"{summed(NODE_SECONDS, NODE).expr} / {now(system.GPUS).total(NODE).expr}", "s")
"""Seconds for which the GPUs of a node were observed, on average."""

FULL_PATHS = Value(
    f"clamp_max({summed(PATH_SECONDS, DEVICE).over(OBSERVED, on=NODE).expr}, 1)", "percentunit"
)


HEALTH_ROW = Row(
    "Is anything wrong in the fleet?",
    (
        stat("Nodes", "Agents that answer.", now(UP).where("== 1").counted(), width=3),
        stat(
            "Nodes silent",
            "Agents whose last scrape failed; without nodes taken out of the inventory.",
            now(UP).number("== 0"),
            ANY,
            width=3,
        ),
        stat("GPUs", "GPUs that answer.", now(system.GPUS).total(), WELL, width=3),
        stat(
            "GPUs missing",
            "GPUs that the nodes should have, less those that answer.",
            MISSING.total(),
            ANY,
            width=3,
        ),
        stat(
            "GPU time starved",
            "Share of the GPU time observed in this time range for which GPUs waited for data, "
            "for the host or for a peer.",
            summed(NODE_SECONDS, (), state=State.STARVED).or_zero().over(summed(NODE_SECONDS, ())),
            LOST,
            width=12,
        ),
    ),
)


def _urgent() -> Value:
    """Critical alerts of each node; nodes with as many are in order: nodes with other alerts first,
    then by their loss. The display cuts off the parts below 1."""
    none = f"0 * ({LOST_SHARE.expr})"
    critical, others = (
        f"({alerts(NODE, severity).expr} or {none})" for severity in ("critical", "warning")
    )
    score = f"{critical} + 0.3 * ({others} > bool 0) + 0.1 * ({LOST_SHARE.expr})"
    return Value(f"sort_desc(topk({WORST}, {score}))", "none")


def first_of(value: Value) -> Value:
    return value.among(Value(f"topk({WORST}, {_urgent().expr})", ""), NODE)


LOOK_FIRST = Row(
    "Which node first?",
    (
        table(
            "Look here first",
            f"The {WORST} nodes that need attention most: those with critical alerts, then those "
            "with warnings, then those that lose most. Lost time and exposed communication, which "
            "is not lost, are GPU-hours within this time range. GPUs held up: hung, or waiting for "
            "a peer, now. A node leads to its board.",
            (
                Column("Critical", _urgent(), ANY),
                Column("Alerts", first_of(alerts(NODE)), SOME),
                Column("Lost GPU-hours", first_of(hours(LOSING))),
                Column("Of its time", first_of(part(LOSING, NODE)), LOST),
                Column("GPUs held up", first_of(HELD_UP)),
                Column("Exposed GPU-hours", first_of(hours(State.COMMUNICATING))),
                Column("GPUs missing", first_of(MISSING.total(NODE)), ANY),
            ),
            links={"instance": TO_NODE},
            as_asked=True,
            width=24,
        ),
    ),
)

LOSSES = Row(
    "Which nodes lose the most GPU time?",
    (
        matrix(
            "Time lost, by node and cause",
            f"Share of the GPU time of the {SHOWN} nodes that lose the most, by cause, the largest "
            "single loss first: starved "
            "(disk, network, pcie, cpu, host_thread, peer, unknown), throttled (thermal, power, "
            "reliability), held or hung.",
            BY_CAUSE.over(summed(NODE_SECONDS, NODE), on=NODE)
            .among(LOST_SHARE.most(SHOWN), NODE)
            .descending(),
            "instance",
            "cause",
            steps=LOST,
            width=24,
            height=8,
        ),
        graph(
            "Where the fleet's GPU time goes",
            "Share of all GPU time by state and cause, every five minutes. The active share of a "
            "starved second counts as busy.",
            Query(
                SPENT.total(CAUSE).over(SPENT.total(), on=()).linked("account", *CAUSE),
                "{{state}}/{{cause}}",
            ),
            stacked=True,
            whole=True,
            every="5m",
            overrides=of_states(),
        ),
        table(
            "GPUs, most starved first",
            f"The {WORST} largest losses by GPU and cause, as a share of its time in this range. "
            "A GPU leads to its board.",
            (Column("Lost", STARVED.over(OBSERVED, on=NODE).most(WORST), LOST),),
            links={"instance": TO_NODE, "gpu": TO_GPU},
            hidden=("state",),
            empty="while no GPU starves",
        ),
    ),
)

NUMBERED = "~slurm|kubernetes"
"""Runtimes that give a job the same name on all of its nodes: others use a pid on one node."""

OF_JOB: Labels = ("job_id", "user", "account")
MEDIAN = f"quantile by ({', '.join(OF_JOB)}) (0.5, {select(OWN_TIME)})"
LAG = Value(f"{now(OWN_TIME).largest(OF_JOB).expr} - {MEDIAN}", "percentunit")
HUNG_RANKS = now(HUNG).with_labels_of(
    JOB_INFO, ("instance", "job", "gpu", "uuid"), OF_JOB, runtime=NUMBERED
)
BEHIND = (Step(None, GOOD), Step(0.04, WARNING))
"""Share by which a node holds up its job."""

JOBS = Row(
    "Which jobs over several nodes are slow or hang?",
    (
        table(
            "Jobs on the most nodes",
            "Jobs of Slurm or Kubernetes by the nodes that they are on, joined by their number, "
            "user and account. Behind: by how much the GPUs of the slowest node have more of their "
            "own work than those of the median node, while the others wait for it; from 4 % on "
            "DgxNodeSlow names the node.",
            (
                Column("Nodes", now(OWN_TIME).counted(OF_JOB)),
                Column("GPUs", now(JOB_INFO, runtime=NUMBERED).counted(OF_JOB)),
                Column("Behind", LAG, BEHIND),
                Column("Hung ranks", HUNG_RANKS.counted(OF_JOB), ANY),
            ),
            empty="unless [job] info is on and Slurm or Kubernetes runs jobs; others stand on the "
            "board of their node, with [job] info too",
            width=24,
        ),
    ),
)

PATHS_FULL = Row(
    "Which data paths are full?",
    (
        table(
            "Data paths, longest saturated first",
            f"The {WORST} paths that were longest at or above their threshold in this time range, "
            "as a share of the time for which the GPUs of their node were observed.",
            (Column("Saturated", FULL_PATHS.most(WORST), FULL),),
            width=24,
            links={"instance": TO_NODE},
            empty="while no path is full",
        ),
    ),
)


def fleet_board(runbook: str = "") -> Board:
    about = "Which alerts fire, which nodes and GPUs lose time, and which data paths are full."
    fires = firing_alerts(runbook, OF_PLACES, PLACES_OF_FLEET)
    hours_of = goodput((), lambda which: summed(NODE_SECONDS, NODE, state=which), PEAK)
    comes = Row("What comes of the GPU-hours?", (hours_of,))
    rows = HEALTH_ROW, LOOK_FIRST, fires, comes, LOSSES, JOBS, PATHS_FULL
    return board("dgx-fleet", about, *rows, choices=OF_FLEET)
