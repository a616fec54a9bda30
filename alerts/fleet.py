"""Alerts of fleets: nodes that are gone, a node slower than its like, the odd one out."""

from agent.model import Metric, gauge
from agent.sources import activity, infiniband, temperature
from agent.sources.agent_health import BUILD_INFO
from alerts import places
from alerts.agent import IN_SERVICE, JOB, UP
from alerts.fleet_records import OWN_TIME, PLACE, median, of_job, several
from alerts.model import Alert, Group, Recording
from alerts.parameters import RuleParameters, span
from alerts.promql import NODE, increase, pick
from alerts.records import job_steps
from alerts.values import seconds
from alerts.words import COUNT, GPU, SHARE, list_of
from alerts.words import NODE as MACHINE

SCRAPED: Metric = gauge("up", "1 where the last scrape succeeded.", "Prometheus")
SILENT = f"{IN_SERVICE} == 0"
OF_RACK, OF_CLUSTER = "cluster, rack", "cluster"
SOONER = 30.0
"""Seconds by which a rack is told before its nodes are, and a cluster before its racks: what
silences must be there first."""

LEAST_NODES = 3
"""Nodes of a job that are compared: of two nobody knows which is slow and which is fast."""

HALF = 0.45
"""From this share on it is the rhythm that was read at twice its length."""

WARMER, LEAST_GPUS = 8, 4
"""Degrees above the median of the GPUs at the same place of at least so many nodes of a job: under
another load a GPU is warmer by right."""

WORSE, LEAST_ERRORS = 10, 10
"""Times as many errors an hour as the middle port of the cluster has, and at least so many."""

WHERE = "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"


def nodes_missing(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """Half of a rack, or of a cluster of several racks, does not answer: one fault, not many."""
    silent_for = parameters.thresholds.silent_for
    hold, first = (span(seconds(silent_for) - n * SOONER) for n in (1, 2))
    names = list_of(SCRAPED, "instance", "== 0", "cluster", "rack", job=JOB, drained="")
    in_rack, in_cluster = f"count by ({OF_RACK})", f"count by ({OF_CLUSTER})"
    share = "{share} ({silent}) >= 2 and {share} ({silent}) / {share} ({all}) >= 0.5"
    racked = IN_SERVICE.replace("}", ', rack!=""}')  # nodes of no rack have no switch in common
    rack = share.format(share=in_rack, silent=f"{racked} == 0", all=racked)
    cluster = share.format(share=in_cluster, silent=SILENT, all=IN_SERVICE)
    racks = f"{in_cluster} ({in_rack} ({UP})) > 1"
    look = "Look at its power, its switch and the way to it, before you look at any node."
    return (
        Alert(
            "DgxNodeMissing",
            rack,
            "critical",
            "nodes of a rack do not answer",
            f"{COUNT} nodes of rack {{{{ $labels.rack }}}}{WHERE} have not answered for {hold} "
            f"(limit half of the rack):{names}. {look}",
            hold=hold,
            labels={"sign": "rack"},
            place=places.RACK,
        ),
        Alert(
            "DgxNodeMissing",
            f"{cluster} and {racks}",
            "critical",
            "nodes of several racks do not answer",
            f"{COUNT} nodes{WHERE} have not answered for {first} (limit half of the cluster). "
            f"{look}",
            hold=first,
            labels={"sign": "cluster"},
        ),
    )


def node_removed(parameters: RuleParameters) -> Alert:
    """A node that was asked within the hour, and is no target any more: somebody took it out."""
    window = "1h"
    known = f"group by ({PLACE}, {NODE}) (last_over_time({UP}[{parameters.over(window)}]))"
    return Alert(
        "DgxNodeMissing",
        f"{known} unless on ({NODE}) {UP}",
        "info",
        "node was taken out of the inventory",
        f"{MACHINE} is no target of Prometheus any more, and was one within the last {window} "
        f"(limit {window}). It has not failed: whoever keeps the inventory took it out. If nobody "
        "did, check what generates the list.",
        hold="2m",
        labels={"sign": "removed"},
        place=places.NODE,
    )


def node_slow(parameters: RuleParameters) -> tuple[Alert, Alert]:
    """A node slower than its like under the same job: the others wait for it, or make more
    steps."""
    share, job = parameters.thresholds.slower_node_share, "{{ $labels.job_id }}"
    steps = pick(job_steps(parameters), job_id="!=")
    joined = "on (cluster, job_id) group_left ()"
    own = f"{OWN_TIME} - {joined} {median(OWN_TIME)}"
    fewer = f"1 - {steps} / {joined} ({median(steps)} > 0)"
    cure = (
        "Look at what else this node reports: clocks, heat, its disks, its ports; then take it out "
        "of the job."
    )
    return (
        Alert(
            "DgxNodeSlow",
            f"({own}) >= {share:g} and {several_on(OWN_TIME)}",
            "warning",
            "node slower than its like",
            f"{MACHINE} holds up job {job}: its GPUs worked, or waited for this node itself, for "
            f"{SHARE} more of the last 5m than those of the middle one of the job's nodes (limit "
            f"{share:.0%}); the others wait for it meanwhile. {cure}",
            hold="2m",
            labels={"sign": "waited_for"},
            place=places.NODE,
        ),
        Alert(
            "DgxNodeSlow",
            f"({fewer}) >= {share:g} < {HALF:g} and {several_on(steps)}",
            "warning",
            "node slower than its like",
            f"{MACHINE} makes {SHARE} fewer steps a second in job {job} than the middle one of the "
            f"job's nodes (limit {share:.0%}). {cure}",
            hold="2m",
            labels={"sign": "steps"},
            place=places.NODE,
        ),
    )


def several_on(record: str) -> str:
    """Only of jobs on enough nodes."""
    return f"on (cluster, job_id) {several(record, LEAST_NODES)}"


def warmer(parameters: RuleParameters) -> Alert:
    """A GPU at work, warmer than those at its place in the other nodes of its job."""
    busy = f"{activity.ACTIVITY} >= {parameters.thresholds.loaded_share:g}"
    working = f"({temperature.TEMPERATURE} and on ({NODE}, gpu, uuid) ({busy}))"
    degrees, like = of_job(working), "cluster, job_id, gpu"
    middle = f"quantile by ({like}) (0.5, {degrees})"
    enough = f"count by ({like}) ({degrees}) >= {LEAST_GPUS}"
    return Alert(
        "DgxGpuHot",
        f"{degrees} - on ({like}) group_left () {middle} >= {WARMER} and on ({like}) {enough}",
        "info",
        "warmer than its peers",
        f"{GPU} is {COUNT} degrees warmer than the middle one of the GPUs at its place in the "
        f"nodes of job {{{{ $labels.job_id }}}} (limit {WARMER}). Look at dust, fans and heat sink "
        "before it has to slow down.",
        hold="5m",
        labels={"sign": "peers"},
        place=places.GPU,
    )


def worse_port(parameters: RuleParameters) -> Alert:
    """A port with more errors than its peers, long before it has too many."""
    hourly = f"round(sum by ({PLACE}, {NODE}, device, port) ({_errors(parameters)}))"
    usual = f"quantile by (cluster) (0.5, {hourly})"
    many = f"count by (cluster) ({hourly}) >= {LEAST_GPUS}"
    return Alert(
        "DgxInfinibandErrors",
        f"{hourly} >= {LEAST_ERRORS} and {hourly} > on (cluster) group_left () {WORSE} * {usual} "
        f"and on (cluster) {many}",
        "info",
        "more InfiniBand errors than its peers",
        f"Port {{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {MACHINE} had {COUNT} errors in "
        f"the last 1h (limit {LEAST_ERRORS}, and {WORSE} times those of the middle port of "
        "the cluster). Plan to clean or replace its cable.",
        hold="10m",
        labels={"sign": "peers"},
        place=places.PORT,
    )


def _errors(parameters: RuleParameters) -> str:
    kinds = "=~symbol_error|link_error_recovery|local_link_integrity_errors"
    return increase(infiniband.ERRORS, parameters.over("1h"), kind=kinds)


def versions(_: RuleParameters) -> Alert:
    """Agents of several versions for so long that it is no upgrade any more."""
    kinds = f"count by (cluster, version) ({BUILD_INFO})"
    names = list_of(Recording(str(BUILD_INFO), ""), "version", "", "cluster", job=JOB)
    return Alert(
        "DgxAgentVersions",
        f"count by (cluster) ({kinds}) > 1",
        "info",
        "agents of several versions",
        f"{COUNT} versions of the agent run{WHERE} (limit 1 for 6h):{names}. Metrics and their "
        "meaning may differ: bring the rest up to the newest.",
        hold="6h",
    )


def fleet(parameters: RuleParameters) -> Group:
    """What only many nodes together show."""
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
    )
