"""Parts that boards share besides panels: their variables, and links that keep time and choice."""

from collections.abc import Callable

from agent.diagnosis.job_watch import PRICE
from agent.faults import monitoring as why
from agent.faults.findings import HARDWARE, monitoring
from agent.faults.fleet import fleet, racks
from agent.faults.model import Fault
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.workload import WORKLOAD
from agent.model import WHAT_LOST, Metric, State
from agent.sources import activity, agent_health, gpu
from agent.sources.allocation import ALLOCATED
from dashboards.board import BAD, PLAIN, STATES, WARNING, Board, Json, Panel, Row, Variable, name_of
from dashboards.kinds import Column, bars, coloured_words, graph, override, table, wide, worded
from dashboards.queries import (
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
    now,
    range_by_cause,
    select,
    since,
    spread,
    time_by_cause,
)

BOARD_TITLES = {
    "dgx-fleet": "DGX Fleet",
    "dgx-node": "DGX Node",
    "dgx-gpu": "DGX GPU",
    "dgx-agent": "DGX Agent",
}
"""Every board: a link leads only to these."""


LABEL_TITLES = {"instance": "Node", "gpu": "GPU"}


def values_of(label: str, metric: Metric, scope: str = "", every: str | None = "") -> Variable:
    """A variable over the values of a label, within the variables before it."""
    query = f"label_values({metric}{scope}, {label})"
    return Variable(label, LABEL_TITLES.get(label, label.capitalize()), query, every)


JOB_VARIABLE = values_of("job", agent_health.BUILD_INFO)
"""Jobs of agents: All selects each of them, and no other target of Prometheus."""

PLACE_VARIABLES = (
    values_of("cluster", UP, '{job=~"$job"}', ".*"),
    values_of("rack", UP, '{job=~"$job", cluster=~"$cluster"}', ".*"),
)
"""Labels that targets may have. All of them also selects targets without such a label: it is
empty."""

NODES = values_of("instance", UP, '{job=~"$job", cluster=~"$cluster", rack=~"$rack"}')
"""Nodes that do not answer are included: Prometheus has `up` of each that it scrapes."""

ONE_NODE = values_of("instance", UP, '{job=~"$job"}', None)
GPUS = values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}', ".+")
OF_NODE = (JOB_VARIABLE, ONE_NODE, GPUS)
"""A board of a node begins with one node; more can be chosen."""

OF_FLEET = (JOB_VARIABLE, *PLACE_VARIABLES, NODES, GPUS)
OF_AGENTS = (JOB_VARIABLE, *PLACE_VARIABLES, NODES)
"""An agent is there even without a GPU, or without a driver that answers."""


def board(uid: str, about: str, *rows: Row, choices: tuple[Variable, ...] = OF_NODE) -> Board:
    places = PLACES_OF_FLEET if choices is OF_FLEET else PLACES_OF_NODES
    return Board(BOARD_TITLES[uid], uid, about, rows, choices, alerts(places=places))


def link_to(uid: str, *labels: str) -> str:
    """The address of a board for the node (and GPU) of a table's row, at the same time."""
    if uid not in BOARD_TITLES:
        raise ValueError(f"{uid} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in labels)
    return f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}{chosen}"


ABSENT = now(agent_health.ABSENT_VALUES).total(("instance", "metric", "reason"))
WHY = worded("reason", why.ABSENT)
RHYTHM = "while no job has steps that can be seen"
TO_NODE = link_to("dgx-node", "instance")
TO_GPU = link_to("dgx-gpu", "instance", "gpu")


ACTIVITY = graph("Activity", activity.ACTIVITY.meaning, *spread(now(activity.ACTIVITY)), whole=True)


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


def time_panels(title: str, widths: tuple[int, int], **match: str) -> tuple[Panel, Panel]:
    """Shares of time by state and cause on each other, of the GPUs that the board shows, and their
    totals, which are the legend."""
    about = "Share of the time of the GPUs chosen. The active share of a starved second is busy."
    over_time, total = widths
    return (
        graph(
            title,
            f"{about} The totals name the colours.",
            Query(time_by_cause(**match), "{{state}}/{{cause}}"),
            stacked=True,
            whole=True,
            overrides=of_states(),
            named=False,
            width=over_time,
            height=10,
        ),
        bars(
            f"{title}, total",
            f"{about} Over all of this time range, from 0.1 % on.",
            Query(range_by_cause(**match), "{{state}}/{{cause}}"),
            overrides=of_states(),
            width=total,
            height=10,
        ),
    )


SEVERITIES = {"critical": BAD, "warning": WARNING, "info": PLAIN}
"""Severities, the worst first, as the table lists them."""

OF_DEVICES = (
    *("alertname", "severity", "instance", "gpu", "path", "device", "link", "direction"),
    *("xid", "do"),
)
DECIDING = ("severity", "window", "sign", "action", "cause", "path", "direction")
"""Labels whose values decide the steps that an alert asks for."""

ON_ITS_PAGE = "Depends on the cause: click the name for its page of the runbook."


def first_steps() -> dict[str, str]:
    """The first step after each alert, by a pattern of its name and of its deciding labels."""
    found = {}
    parameters = RuleParameters(AlertThresholds())
    for group in (*HARDWARE, *WORKLOAD, fleet, racks, monitoring):
        for fault in (rule for rule in group(parameters).rules if isinstance(rule, Fault)):
            labels = {**fault.labels, "severity": str(fault.severity)}
            words = (rf"/{labels[kind]}\b.*" for kind in DECIDING if kind in labels)
            found[f"{fault.alert}{''.join(words)}"] = fault.do if isinstance(fault.do, str) else ""
    return {key: text for key, text in found.items() if text} | {".*": ON_ITS_PAGE}


def firing_alerts(runbook: str, by: Labels = OF_DEVICES, places: str = PLACES_OF_NODES) -> Row:
    """Return the table of firing alerts, the worst first; a name links to its page of the runbook
    if that has an address."""
    links = {"alertname": f"{runbook}#${{__data.fields.alertname}}"} if runbook else {}

    parts = []
    for severity in SEVERITIES:
        firing, began = (
            value.linked("do", "alertname", *DECIDING)
            for value in (alerts(None, severity, places=places), since(severity, places))
        )
        parts.append((_rows("count", firing, firing, by), _rows("min", began, firing, by)))
    counts, begins = (either(*values) for values in zip(*parts, strict=True))
    return Row(
        "Which alerts fire, and what to do?",
        (
            table(
                "Firing alerts",
                "Firing alerts, with the number of GPUs and devices, since when the condition of "
                "the alert holds, and the first step. More than three of one kind share a row. An "
                "alert on a whole rack has no node. A name links to its page of RUNBOOK.md.",
                (Column("Alerts", counts), Column("Alert since", begins)),
                links={"instance": TO_NODE, **links},
                overrides=[
                    coloured_words("severity", SEVERITIES),
                    worded("do", first_steps(), displayName="What to do first", **WRAPPED),
                    *(wide(label, width) for label, width in WIDTHS.items()),
                ],
                as_asked=True,
                empty="while no alert fires",
                width=24,
                height=10,
                cells="lg",
            ),
        ),
    )


def _rows(operator: str, value: Value, firing: Value, by: Labels) -> Value:
    """A row for each alert, but a common row for alerts of many GPUs, devices or links."""
    each = aggregated(operator, value.expr, by)
    rest = tuple(label for label in by if label not in ("gpu", "device", "link"))
    if rest != by:
        on = f"on ({', '.join(rest)})"
        many = f"{aggregated(operator, value.expr, rest)} and {on} {firing.counted(rest).expr} > 3"
        each = f"{many} or {on} {each}"
    return Value(each, value.unit if operator == "min" else "none")


WRAPPED = {"custom.wrapText": True, "custom.cellOptions": {"type": "auto", "wrapText": True}}
"""Settings for Grafana 13, and for versions before it."""

WIDTHS = {"alertname": 215, "severity": 80, "instance": 130, "rack": 80, "gpu": 50, "device": 90}
WIDTHS |= {"path": 85, "direction": 85, "link": 50, "xid": 50, "Alerts": 65, "Alert since": 130}


def goodput(by: Labels, seconds: Callable[[str], Value], peak: Value) -> Panel:
    """`seconds` of each node or GPU within the board's time range that were in a state, or `~`
    some; `peak` is the tensor throughput of the GPUs at work over their possible throughput."""
    whole, lost = (seconds(state) for state in ("~.+", f"~{WHAT_LOST}"))
    spent = whole.total(by)

    def hours(of: Value) -> Value:
        return Value(f"({of.total(by).expr} or 0 * {spent.expr}) / 3600", "short")

    given = aggregated("avg", f"avg_over_time({select(ALLOCATED)}[{RANGE}])", by)
    price = f"max by (instance) ({select(PRICE)})"
    cost = aggregated("sum", f"{lost.expr} / 3600 * on (instance) group_left () {price}", by)
    return table(
        "GPU-hours and goodput",
        "GPU-hours of this time range by what became of them, and their sum. Lost: starved, "
        "throttled, held or hung. Cost: of the hours lost; a node without a price adds nothing. "
        "Given: the share that jobs were given. Of the tensor peak: the tensor throughput while at "
        "work over its peak, an approximate upper bound of MFU. Goodput is the share of the hours "
        "at work times that.",
        (
            Column("Lost", hours(lost)),
            Column("+ at work", hours(seconds(State.BUSY))),
            Column("+ communicating", hours(seconds(State.COMMUNICATING))),
            Column("+ idle", hours(seconds(State.IDLE))),
            Column("= GPU-hours", hours(whole)),
            Column(
                "Cost, where priced",
                Value(cost, "short").or_why(spent),
                absent="no [cost] gpu_hour",
            ),
            Column("Given", Value(given, "percentunit").or_why(spent), absent="no scheduler"),
            Column("Of the tensor peak", peak.or_why(spent), absent="needs Hopper"),
        ),
        width=24,
        height=10 if len(by) > 1 else 4,
    )
