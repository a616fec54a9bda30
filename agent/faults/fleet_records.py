"""Recording rules of fleets: what boards and alerts ask of all nodes at once.

Those of five minutes follow on each other, so that their sums over any range are GPU-seconds: a
board of a hundred nodes over a day reads some hundred thousand values in the place of a hundred
million.
"""

from agent.diagnosis import accounting
from agent.faults.model import Group
from agent.faults.promql import GPU, NODE, Recording, increase, one, pick, rate
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.model import GPU_LABELS, WHAT_LOST, Cause, State
from agent.sources import disk, infiniband, nvlink, power, workload

PLACE = "cluster, rack, node"
EVERY = "5m"
WINDOW = "5m"
JOB = "job_id, user, account"
SAME_JOB = f"cluster, {JOB}"
"""Alike on all nodes of a job of Slurm: two clusters number jobs alike, and other programs are
called by a pid, which those on other nodes may have too."""

GPU_LOST = "gpu_state_cause:dgx_gpu_lost_seconds:increase5m"
NODE_SECONDS = "node_state_cause:dgx_gpu_state_seconds:increase5m"
PATH_SECONDS = "path:dgx_bandwidth_saturated_seconds:increase5m"
OF_SPEC = "path:dgx_bandwidth_of_spec:ratio"
OWN_TIME = "node_job:dgx_gpu_own_time:ratio_rate5m"
POWER = "rack:dgx_gpu_power_watts:rate5m"
NVLINK = "cluster:dgx_nvlink_transmitted_bytes:rate5m"
INFINIBAND = "cluster:dgx_infiniband_transmitted_bytes:rate5m"
BISECTION = "cluster:dgx_infiniband_bisection_bytes_per_second"


BUSY_DISK = 0.9
"""Share of the time with a request in flight from which a disk without a limit counts as full."""


def saturated_paths(parameters: RuleParameters) -> Recording:
    """Seconds for which each data path was full; only where there are any. Disks without a known
    limit are paths of the direction `busy`."""
    over = parameters.over(EVERY)
    full = f"{increase(paths.SATURATED, over)} > 0"
    busy = f"({increase(disk.BUSY, over)} and {rate(disk.BUSY, over)} >= {BUSY_DISK:g})"
    limited = f"on ({NODE}, device) {pick(paths.LIMIT, path='disk')}"
    path = f'label_replace({busy} unless {limited}, "path", "disk", "", "")'
    return Recording(PATH_SECONDS, f'{full} or label_replace({path}, "direction", "busy", "", "")')


def own_time(parameters: RuleParameters) -> Recording:
    """Share of the time for which the GPUs of a node worked for their job, or waited for what is
    the node's own (disk, CPU, clocks): not for other GPUs, and not idle. In a job in which all
    wait for all, the node that the others wait for has the most."""
    over = parameters.over(WINDOW)
    own = " or ".join(
        rate(accounting.STATE_SECONDS, over, state=state, **cause)
        for state, cause in (
            (f"=~{State.BUSY}|{State.THROTTLED}", {}),
            (State.STARVED.value, {"cause": f"!={Cause.PEER}"}),
        )
    )
    whole = f"sum without (state, cause) ({rate(accounting.STATE_SECONDS, over)}) > 0"
    share = f"sum without (state, cause) ({own}) / ({whole})"
    return Recording(OWN_TIME, f"avg by ({PLACE}, {NODE}, {JOB}) ({of_job(share, parameters)})")


def of_job(value: str, parameters: RuleParameters) -> str:
    """A value of GPUs with what names their job; nothing of a GPU that several share, or had one
    after the other within minutes, or that no scheduler gave which numbers jobs of many nodes."""
    over = parameters.over(WINDOW)
    given = pick(workload.JOB_INFO, job_id="!=", runtime="slurm")
    named = one(f"last_over_time({given}[{over}])", *GPU_LABELS, *JOB.split(", "))
    jobs = one(f"last_over_time({workload.JOB_INFO}[{over}])", *workload.JOB_INFO.labels)
    alone = f"count by ({GPU}) ({jobs}) == 1"
    return f"{value} * on ({GPU}) group_left ({JOB}) ({named} and on ({GPU}) {alone})"


def of_network(parameters: RuleParameters) -> tuple[Recording, ...]:
    """Return the traffic of all nodes, and the capacity of the cluster's network where it is
    known."""
    over = parameters.over(WINDOW)
    known = [
        f'label_replace(vector({figure:.10g}), "cluster", "{name}", "", "")'
        for name, figure in parameters.bisections.items()
    ]
    return (
        Recording(NVLINK, f"sum by (cluster) ({rate(nvlink.TRANSMITTED, over)})"),
        Recording(INFINIBAND, f"sum by (cluster) ({rate(infiniband.TRANSMITTED, over)})"),
        *([Recording(BISECTION, " or ".join(known))] if known else []),
    )


def fleet_records(parameters: RuleParameters) -> Group:
    over = parameters.over(EVERY)
    lost = increase(accounting.STATE_SECONDS, over, state=f"=~{WHAT_LOST}")
    spent = increase(accounting.STATE_SECONDS, over)
    rules = (
        Recording(GPU_LOST, f"{lost} > 0"),
        Recording(NODE_SECONDS, f"sum without (gpu, uuid) ({spent}) > 0"),
        saturated_paths(parameters),
    )
    return Group("dgx-fleet-records", rules, every=EVERY)


def node_records(parameters: RuleParameters) -> Group:
    rules = (
        own_time(parameters),
        # What a data path can carry over what its spec sheet says; only where it is less.
        Recording(OF_SPEC, f"{paths.LIMIT} / {paths.SPEC} < 1"),
        Recording(POWER, f"sum by (cluster, rack) ({rate(power.ENERGY, parameters.over(WINDOW))})"),
        *of_network(parameters),
    )
    return Group("dgx-fleet-nodes", rules, every="1m")


def median(record: str) -> str:
    return f"quantile by ({SAME_JOB}) (0.5, {record})"


def several(record: str, least: int) -> str:
    nodes = f"group by ({SAME_JOB}, instance) ({record})"
    return f"count by ({SAME_JOB}) ({nodes}) >= {least}"
