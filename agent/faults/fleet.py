"""Alerts of fleets: a rack that is gone, a node slower than its like."""

from agent.diagnosis import accounting
from agent.faults import places
from agent.faults.lost import once
from agent.faults.model import CRITICAL, Fault, Group, node_fault
from agent.faults.promql import GPU, NODE, Recording, one, pick, rate, seconds, span, spoken
from agent.faults.records import EVERY, JOB, OFTEN, OWN_TIME, PLACE, SAME_JOB
from agent.faults.silence import IN_SERVICE
from agent.faults.thresholds import RuleParameters
from agent.model import GPU_LABELS, Cause, State
from agent.sources import workload

SOONER = 30.0
"""Seconds by which a rack is reported before its nodes: the silencing alert must be there first."""

LEAST_NODES = 3
"""Nodes of a job that are compared: with two it is not known which is slow."""


def own_time(parameters: RuleParameters) -> tuple[Recording, Recording]:
    """Return the records of the job of each GPU that one scheduled job has for itself, and of the
    share of the time for which the GPUs of a node worked for their job, or waited for the node's
    own parts (disk, CPU, clocks): not for other GPUs, and not idle. If all GPUs of a job wait for
    each other, the node that the others wait for has the most. A GPU has no record if several jobs
    share it, or had it one after the other within minutes, or if its scheduler does not number jobs
    of many nodes."""
    over = parameters.over(EVERY)
    own = " or ".join(
        rate(accounting.STATE_SECONDS, over, state=state, **cause)
        for state, cause in (
            (f"=~{State.BUSY}|{State.THROTTLED}", {}),
            (State.STARVED.value, {"cause": f"!={Cause.PEER}"}),
        )
    )
    whole = f"sum without (state, cause) ({rate(accounting.STATE_SECONDS, over)}) > 0"
    share = f"sum without (state, cause) ({own}) / ({whole})"
    given = pick(workload.JOB_INFO, job_id="!=", runtime="slurm")
    named = one(f"last_over_time({given}[{over}])", *GPU_LABELS, *JOB.split(", "))
    jobs = one(f"last_over_time({workload.JOB_INFO}[{over}])", *workload.JOB_INFO.labels)
    alone = f"count by ({GPU}) ({jobs}) == 1"
    of_job = f"{share} * on ({GPU}) group_left ({JOB}) {SCHEDULED}"
    return (
        Recording(SCHEDULED, f"{named} and on ({GPU}) ({alone})"),
        Recording(OWN_TIME, f"avg by ({PLACE}, {NODE}, {JOB}) ({of_job})"),
    )


SCHEDULED = "instance_gpu:dgx_gpu_job_info:scheduled5m"


NODE_TIMES = "cluster_job:dgx_gpu_own_time:median"
SLOWER = "node_job:dgx_gpu_own_time:above_median"


def slow_records(_: RuleParameters) -> tuple[Recording, Recording]:
    """Return the records of the median node of each job of three or more nodes, and of the time of
    each node above it."""
    each = f"max by ({SAME_JOB}, instance) ({once(str(OWN_TIME))})"  # however often it is scraped
    median, nodes = f"quantile by ({SAME_JOB}) (0.5, {each})", f"count by ({SAME_JOB}) ({each})"
    above = f"{OWN_TIME} - on ({SAME_JOB}) group_left () {NODE_TIMES}"
    return (
        Recording(NODE_TIMES, f"{median} and on ({SAME_JOB}) {nodes} >= {LEAST_NODES}"),
        Recording(SLOWER, above),
    )


NODES, SILENT_NODES = "cluster_rack:up:nodes", "cluster_rack:up:silent_nodes"


def rack_records() -> tuple[Recording, Recording]:
    """Return the records of the nodes of each rack, and of those that do not answer."""
    racked = IN_SERVICE.replace("}", ', rack!=""}')
    all_of, silent = (
        f"count by (cluster, rack) (group by (cluster, rack, instance) ({nodes}))"
        for nodes in (racked, f"{racked} == 0")
    )
    return Recording(NODES, all_of), Recording(SILENT_NODES, silent)


def node_missing(parameters: RuleParameters) -> Fault:
    """Half of a rack does not answer: this is one fault, not many. Nodes without a rack share no
    switch."""
    hold = span(seconds(parameters.thresholds.silent_for) - SOONER)
    return Fault(
        alert="DgxNodeMissing",
        when=f"{SILENT_NODES} >= 2 and {SILENT_NODES} / {NODES} >= 0.5",
        severity=CRITICAL,
        summary="half of its nodes do not answer",
        sentence=(
            "{nodes:.0f} nodes of rack {{{{ $labels.rack }}}}"
            "{{{{ with $labels.cluster }}}} of cluster {{{{ . }}}}{{{{ end }}}} have not answered "
            f"for {spoken(hold)} (limit half of the rack)",
        ),
        figure="nodes",
        do="Look at its power, its switch and the way to it before you look at any node.",
        hold=hold,
        labels={"sign": "rack"},
        place=places.RACK,
    )


def node_slow(parameters: RuleParameters) -> Fault:
    """A node that the others of its job wait for."""
    share = parameters.thresholds.slower_node_share
    return node_fault(
        alert="DgxNodeSlow",
        when=f"{SLOWER} >= {share:g}",
        summary="slows down its job",
        sentence=(
            "it slows down job {{{{ $labels.job_id }}}}: its GPUs were at work for {share:whole} "
            f"more of the last 5 min than those of the job's median node (limit {share:.0%})",
        ),
        figure="share",
        do="Run `dgx-telemetry once` there; look at its other alerts: clocks, heat, disks, ports. "
        "If you cannot mend it, tell the owner of the job, and drain the node.",
        hold="2m",
    )


def fleet(parameters: RuleParameters) -> Group:
    """Return the rules that need many nodes."""
    rules = (*own_time(parameters), *slow_records(parameters), node_slow(parameters))
    return Group("dgx-fleet", rules, "Fleet: faults that only many nodes show", OFTEN)


def racks(parameters: RuleParameters) -> Group:
    """Return the rules on racks."""
    return Group("dgx-racks", (*rack_records(), node_missing(parameters)))
