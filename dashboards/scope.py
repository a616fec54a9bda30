"""Parts that boards share besides panels: their variables, and links that keep time and choice."""

from collections.abc import Callable

from agent.diagnosis.job_watch import PRICE
from agent.model import WHAT_LOST, Metric, State
from agent.sources import gpu
from agent.sources.agent_health import BUILD_INFO
from agent.sources.allocation import ALLOCATED
from dashboards.board import BAD, PLAIN, STATES, WARNING, Board, Json, Panel, Row, Variable, name_of
from dashboards.kinds import Column, coloured_words, graph, override, table
from dashboards.queries import (
    NODE,
    PLACES_OF_FLEET,
    PLACES_OF_NODES,
    RANGE,
    UP,
    Labels,
    Query,
    Value,
    aggregated,
    alerts,
    either,
    select,
    since,
    time_by_cause_seen,
)

TITLES = {
    "dgx-fleet": "DGX Fleet",
    "dgx-node": "DGX Node",
    "dgx-gpu": "DGX GPU",
    "dgx-links": "DGX Links",
    "dgx-input-pipeline": "DGX Input pipeline",
    "dgx-agent": "DGX Agent",
}
"""Every board: a link leads only to one of these."""


LABELS = {"instance": "Node", "gpu": "GPU"}


def values_of(label: str, metric: Metric, scope: str = "", every: str | None = "") -> Variable:
    """A variable over the values of a label, within the variables before it."""
    query = f"label_values({metric}{scope}, {label})"
    return Variable(label, LABELS.get(label, label.capitalize()), query, every)


JOB = values_of("job", BUILD_INFO)
"""Jobs of agents: All is each of them, and no other target of Prometheus."""

PLACES = (
    values_of("cluster", UP, '{job=~"$job"}', ".*"),
    values_of("rack", UP, '{job=~"$job", cluster=~"$cluster"}', ".*"),
)
"""Labels that targets may have. All of them is also a target without: such a label is empty."""

NODES = values_of("instance", UP, '{job=~"$job", cluster=~"$cluster", rack=~"$rack"}')
"""Also nodes that do not answer: Prometheus has `up` of each that it scrapes."""

ONE_NODE = values_of("instance", UP, '{job=~"$job"}', None)
GPUS = values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}', ".+")
OF_NODE = (JOB, ONE_NODE, GPUS)
"""A board of a node begins with one; more can be chosen."""

OF_FLEET = (JOB, *PLACES, NODES, GPUS)
OF_AGENTS = (JOB, *PLACES, NODES)
"""An agent is there also where there is no GPU, or no driver that answers."""


def board(uid: str, about: str, *rows: Row, choices: tuple[Variable, ...] = OF_NODE) -> Board:
    places = PLACES_OF_FLEET if choices is OF_FLEET else PLACES_OF_NODES
    return Board(TITLES[uid], uid, about, rows, choices, alerts(places=places))


def link_to(uid: str, *labels: str) -> str:
    """The address of a board for the node (and GPU) of a table's row, at the same time."""
    if uid not in TITLES:
        raise ValueError(f"{uid} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in labels)
    return f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}{chosen}"


RHYTHM = "while no job has steps that can be seen"
TO_NODE = link_to("dgx-node", "instance")
TO_GPU = link_to("dgx-gpu", "instance", "gpu")
TO_LINKS = link_to("dgx-links", "instance")


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


SEVERITIES = {"critical": BAD, "warning": WARNING, "info": PLAIN}
"""The worst first, as the table lists them."""

OF_DEVICES = ("alertname", "severity", "instance", "gpu", "device", "link")
QUIET = "when no alerts are firing"


def firing_alerts(
    runbook: str, by: Labels = OF_DEVICES, places: str = PLACES_OF_NODES, height: int = 6
) -> Row:
    """Return the table of firing alerts, the worst first; a name links to its page of the runbook
    if that has an address."""
    links = {"alertname": f"{runbook}#${{__data.fields.alertname}}"} if runbook else {}
    return Row(
        "Which alerts fire?",
        (
            table(
                "Firing alerts",
                "Firing alerts, with the number of GPUs and devices and the start. An alert on a "
                "whole rack has no node. A name links to its page of RUNBOOK.md.",
                (
                    Column("Alerts", either(*(alerts(by, s, places=places) for s in SEVERITIES))),
                    Column("Alert since", either(*(since(by, s, places) for s in SEVERITIES))),
                ),
                links={"instance": TO_NODE, **links},
                overrides=[coloured_words("severity", SEVERITIES)],
                as_asked=True,
                empty=QUIET,
                width=24,
                height=height,
            ),
        ),
    )


def goodput_row(by: Labels, seconds: Callable[[str], Value], peak: Value) -> Row:
    """`seconds` of each node within what the board shows that were in a state, or `~` some; `peak`
    is the tensor throughput of those at work over what it could be."""
    whole, worked, lost = (seconds(state) for state in ("~.+", State.BUSY, f"~{WHAT_LOST}"))
    share = worked.total(by).over(whole.total(by)).expr
    given = aggregated("avg", f"avg_over_time({select(ALLOCATED)}[{RANGE}])", by)
    priced = f"{lost.expr} / 3600 * on (instance) group_left () max by (instance) ({select(PRICE)})"
    at_work = f"clamp_max({share} / on ({', '.join(by)}) ({given} > 0) or {share}, 1)"
    return Row(
        "What comes of the GPU-hours?",
        (
            table(
                "Goodput",
                "Share of the GPU-hours of this time range that jobs were given (only if Slurm or "
                "the kubelet reports it), share of those in which GPUs worked, tensor "
                "throughput meanwhile over its peak (an upper bound of MFU; Hopper and newer). "
                "Their product is goodput. Lost: starved, throttled, held or hung; its cost where "
                "[cost] gpu_hour is configured.",
                (
                    Column("GPU-hours", Value(f"{whole.total(by).expr} / 3600", "short")),
                    Column("Given", Value(given, "percentunit")),
                    Column("At work", Value(at_work, "percentunit")),
                    Column("Of the tensor peak", peak),
                    Column("Lost GPU-hours", Value(f"{lost.total(by).expr} / 3600", "short")),
                    Column("Cost of lost", Value(aggregated("sum", priced, by), "short")),
                ),
                width=24,
                height=4 if by != NODE else 5,
            ),
        ),
    )
