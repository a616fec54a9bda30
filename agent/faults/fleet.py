"""Alerts of fleets: a rack that is gone, a node slower than its like."""

from agent.faults import places
from agent.faults.model import CRITICAL, Fault, Group, node_fault
from agent.faults.monitoring import IN_SERVICE, JOB
from agent.faults.promql import seconds
from agent.faults.records import OWN_TIME, SAME_JOB, once
from agent.faults.templates import COUNT, SHARE, list_of
from agent.faults.templates import NODE as MACHINE
from agent.faults.thresholds import RuleParameters, span
from agent.model import Metric, gauge

SCRAPED: Metric = gauge("up", "1 if the last scrape succeeded.", "Prometheus")
SOONER = 30.0
"""Seconds by which a rack is reported before its nodes: what silences must be there first."""

LEAST_NODES = 3
"""Nodes of a job that are compared: of two it is not known which is slow."""


def node_missing(parameters: RuleParameters) -> Fault:
    """Half of a rack does not answer: one fault, not many. Nodes of no rack have no switch in
    common."""
    hold = span(seconds(parameters.thresholds.silent_for) - SOONER)
    racked = IN_SERVICE.replace("}", ', rack!=""}')
    silent, known = (
        f"count by (cluster, rack) (group by (cluster, rack, instance) ({nodes}))"
        for nodes in (f"{racked} == 0", racked)
    )
    names = list_of(SCRAPED, "instance", "== 0", "cluster", "rack", job=JOB, drained="")
    return Fault(
        alert="DgxNodeMissing",
        when=f"{silent} >= 2 and {silent} / {known} >= 0.5",
        severity=CRITICAL,
        summary="nodes of a rack do not answer",
        description=f"{COUNT} nodes of rack {{{{ $labels.rack }}}}"
        "{{ with $labels.cluster }} of cluster {{ . }}{{ end }} have not answered for "
        f"{hold} (limit half of the rack):{names}.",
        do="Look at its power, its switch and the way to it, before you look at any node.",
        hold=hold,
        labels={"sign": "rack"},
        place=places.RACK,
    )


def node_slow(parameters: RuleParameters) -> Fault:
    """A node that the others of its job wait for."""
    share = parameters.thresholds.slower_node_share
    each = f"max by ({SAME_JOB}, instance) ({once(str(OWN_TIME))})"  # however often it is scraped
    median, nodes = f"quantile by ({SAME_JOB}) (0.5, {each})", f"count by ({SAME_JOB}) ({each})"
    return node_fault(
        alert="DgxNodeSlow",
        when=f"({OWN_TIME} - on ({SAME_JOB}) group_left () {median}) >= {share:g} "
        f"and on ({SAME_JOB}) {nodes} >= {LEAST_NODES}",
        summary="node slower than its like",
        description=f"{MACHINE} holds up job {{{{ $labels.job_id }}}}: its GPUs worked, or waited "
        f"for this node itself, for {SHARE} more of the last 5m than those of the job's median "
        f"node (limit {share:.0%}); the others wait for it meanwhile.",
        do="Look at what else this node reports: clocks, heat, its disks, its ports; then take it "
        "out of the job.",
        hold="2m",
    )


def fleet(parameters: RuleParameters) -> Group:
    """Return the rules that need many nodes."""
    rules = node_missing(parameters), node_slow(parameters)
    return Group("dgx-fleet", rules, "Fleet: what only many nodes show")
