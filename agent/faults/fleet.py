"""Alerts of fleets: nodes that are gone, a node slower than its like, the odd one out."""

from agent.faults import places
from agent.faults.model import (
    CRITICAL,
    INFO,
    SAME_GPU,
    SAME_PORT,
    Fault,
    Group,
    HiddenBy,
    gpu_fault,
    node_fault,
)
from agent.faults.monitoring import IN_SERVICE, JOB, SILENT, UP
from agent.faults.promql import NODE, Recording, increase, pick
from agent.faults.records import OWN_TIME, PLACE, SAME_JOB, job_steps, median, of_job, several
from agent.faults.templates import COUNT, GPU, SHARE, list_of
from agent.faults.templates import NODE as MACHINE
from agent.faults.thresholds import RuleParameters, span
from agent.faults.values import seconds
from agent.model import Metric, gauge
from agent.sources import activity, infiniband, temperature
from agent.sources.agent_health import BUILD_INFO

SCRAPED: Metric = gauge("up", "1 if the last scrape succeeded.", "Prometheus")
OF_RACK, OF_CLUSTER = "cluster, rack", "cluster"
SOONER = 30.0
"""Seconds by which a rack is reported before its nodes, and a cluster before its racks: what
silences must be there first."""

LEAST_NODES = 3
"""Nodes of a job that are compared: of two it is not known which is slow."""

HALF = 0.45
"""Share from which a longer step counts as the same rhythm, read at twice its length."""

WARMER, LEAST_GPUS = 8, 4
"""Degrees above the median of the GPUs at the same place of at least so many nodes of a job: under
another load a GPU is warmer by right."""

WORSE, LEAST_ERRORS = 10, 10
"""Times as many errors an hour as the middle port of the cluster has, and at least so many."""

WHERE = "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"


def nodes_missing(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """Half of a rack, or of a cluster of several racks, does not answer: one fault, not many."""
    silent_for = parameters.thresholds.silent_for
    hold, first = (span(seconds(silent_for) - n * SOONER) for n in (1, 2))
    names = list_of(SCRAPED, "instance", "== 0", "cluster", "rack", job=JOB, drained="")
    in_rack, in_cluster = f"count by ({OF_RACK})", f"count by ({OF_CLUSTER})"
    part = "{share} (group by (cluster, rack, instance) ({silent}))"
    all_of = "{share} (group by (cluster, rack, instance) ({all}))"
    share = f"{part} >= 2 and {part} / {all_of} >= 0.5"
    racked = IN_SERVICE.replace("}", ', rack!=""}')  # nodes of no rack have no switch in common
    rack = share.format(share=in_rack, silent=f"{racked} == 0", all=racked)
    cluster = share.format(share=in_cluster, silent=SILENT, all=IN_SERVICE)
    racks = f"{in_cluster} ({in_rack} ({UP})) > 1"
    look = "Look at its power, its switch and the way to it, before you look at any node."
    return (
        Fault(
            alert="DgxNodeMissing",
            when=rack,
            severity=CRITICAL,
            summary="nodes of a rack do not answer",
            description=f"{COUNT} nodes of rack {{{{ $labels.rack }}}}{WHERE} have not answered "
            f"for {hold} (limit half of the rack):{names}.",
            do=look,
            hold=hold,
            labels={"sign": "rack"},
            place=places.RACK,
            hidden_by=(HiddenBy("DgxNodeMissing", ("cluster",), ('sign="cluster"',)),),
        ),
        Fault(
            alert="DgxNodeMissing",
            when=f"{cluster} and {racks}",
            severity=CRITICAL,
            summary="nodes of several racks do not answer",
            description=f"{COUNT} nodes{WHERE} have not answered for {first} (limit half of the "
            "cluster).",
            do=look,
            hold=first,
            labels={"sign": "cluster"},
        ),
    )


def node_removed(parameters: RuleParameters) -> Fault:
    """A node that was asked within the hour, and is no target any more: somebody took it out."""
    window = "1h"
    known = f"group by ({PLACE}, {NODE}) (last_over_time({UP}[{parameters.over(window)}]))"
    return node_fault(
        alert="DgxNodeMissing",
        when=f"{known} unless on ({NODE}) {UP}",
        severity=INFO,
        summary="node was taken out of the inventory",
        description=f"{MACHINE} is no longer a target of Prometheus, and was one within the last "
        f"{window} (limit {window}).",
        do="It has not failed: it was taken out of the inventory. If that is wrong, check what "
        "generates the list.",
        hold="2m",
        labels={"sign": "removed"},
    )


def node_slow(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """A node slower than its like under the same job: the others wait for it, or make more
    steps."""
    share, job = parameters.thresholds.slower_node_share, "{{ $labels.job_id }}"
    steps = pick(job_steps(parameters), job_id="!=", runtime="slurm")
    joined = f"on ({SAME_JOB}) group_left ()"
    own = f"{OWN_TIME} - {joined} {median(OWN_TIME)}"
    fewer = f"1 - {steps} / {joined} ({median(steps)} > 0)"
    cure = (
        "Look at what else this node reports: clocks, heat, its disks, its ports; then take it out "
        "of the job."
    )
    return (
        node_fault(
            alert="DgxNodeSlow",
            when=f"({own}) >= {share:g} and {several_on(OWN_TIME)}",
            summary="node slower than its like",
            description=f"{MACHINE} holds up job {job}: its GPUs worked, or waited for this node "
            f"itself, for {SHARE} more of the last 5m than those of the job's median node (limit "
            f"{share:.0%}); the others wait for it meanwhile.",
            do=cure,
            hold="2m",
            labels={"sign": "waited_for"},
        ),
        node_fault(
            alert="DgxNodeSlow",
            when=f"({fewer}) >= {share:g} < {HALF:g} and {several_on(steps)}",
            summary="node slower than its like",
            description=f"{MACHINE} makes {SHARE} fewer steps a second in job {job} than the job's "
            f"median node (limit {share:.0%}).",
            do=cure,
            hold="2m",
            labels={"sign": "steps"},
        ),
    )


def several_on(record: Metric | str) -> str:
    return f"on ({SAME_JOB}) {several(record, LEAST_NODES)}"


def warmer(parameters: RuleParameters) -> Fault:
    """A GPU at work, warmer than those at its place in the other nodes of its job."""
    busy = f"{activity.ACTIVITY} >= {parameters.thresholds.loaded_share:g}"
    working = f"({temperature.TEMPERATURE} and on ({NODE}, gpu, uuid) ({busy}))"
    degrees, like = of_job(working, parameters), f"{SAME_JOB}, gpu"
    middle = f"quantile by ({like}) (0.5, {degrees})"
    enough = f"count by ({like}) ({degrees}) >= {LEAST_GPUS}"
    return gpu_fault(
        alert="DgxGpuHot",
        when=f"{degrees} - on ({like}) group_left () {middle} >= {WARMER} and on ({like}) {enough}",
        severity=INFO,
        summary="warmer than its peers",
        description=f"{GPU} is {COUNT} degrees warmer than the median of the GPUs at its place in "
        f"the nodes of job {{{{ $labels.job_id }}}} (limit {WARMER}).",
        do="Check dust, fans and heat sink before it has to slow down.",
        hold="5m",
        labels={"sign": "peers"},
        hidden_by=(HiddenBy("DgxGpuHot", SAME_GPU, ('severity="critical"',)),),
    )


def worse_port(parameters: RuleParameters) -> Fault:
    """A port with more errors than its peers, long before it has too many."""
    hourly = f"round(sum by ({PLACE}, {NODE}, device, port) ({_errors(parameters)}))"
    usual = f"quantile by (cluster) (0.5, {hourly})"
    many = f"count by (cluster) ({hourly}) >= {LEAST_GPUS}"
    return Fault(
        alert="DgxInfinibandErrors",
        when=f"{hourly} >= {LEAST_ERRORS} "
        f"and {hourly} > on (cluster) group_left () {WORSE} * {usual} and on (cluster) {many}",
        severity=INFO,
        summary="more InfiniBand errors than its peers",
        description=f"Port {{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {MACHINE} had "
        f"{COUNT} errors in the last 1h (limit {LEAST_ERRORS}, and {WORSE} times those of the "
        "median port of the cluster).",
        do="Plan to clean or replace its cable.",
        hold="10m",
        labels={"sign": "peers"},
        place=places.PORT,
        hidden_by=(
            HiddenBy("DgxInfinibandFlapping", SAME_PORT),
            HiddenBy("DgxInfinibandErrors", SAME_PORT, ('sign="errors"',)),
        ),
    )


def _errors(parameters: RuleParameters) -> str:
    kinds = "=~symbol_error|link_error_recovery|local_link_integrity_errors"
    return increase(infiniband.ERRORS, parameters.over("1h"), kind=kinds)


def versions(parameters: RuleParameters) -> Fault:
    """Agents of several versions for so long that it is no upgrade any more."""
    known = f"last_over_time({BUILD_INFO}[{parameters.over('10m')}])"
    kinds = f"count by (cluster, version) ({known})"
    names = list_of(Recording(str(BUILD_INFO), ""), "version", "", "cluster", job=JOB)
    return Fault(
        alert="DgxAgentVersions",
        when=f"count by (cluster) ({kinds}) > 1",
        severity=INFO,
        summary="agents of several versions",
        description=f"{COUNT} versions of the agent run{WHERE} (limit 1 for 6h):{names}.",
        do="Metrics and their meaning may differ: bring the rest up to the newest.",
        hold="6h",
    )


def fleet(parameters: RuleParameters) -> Group:
    """Return the rules that need many nodes."""
    return Group(
        "dgx-fleet",
        (
            *nodes_missing(parameters),
            node_removed(parameters),
            *node_slow(parameters),
            warmer(parameters),
            worse_port(parameters),
            versions(parameters),
        ),
        "Fleet: what only many nodes show",
    )
