"""Recording rules: expressions that several rules and people use."""

from typing import NamedTuple, Self

from agent.diagnosis import accounting, gpu_shares, job_watch, pulses
from agent.faults.lost import ALONE, DOUBLED, OF_JOB, ONE_GPU
from agent.faults.model import Group
from agent.faults.promql import (
    NODE,
    REMEMBERED,
    Condition,
    Recording,
    grown,
    increase,
    of,
    one,
    pick,
    rate,
    seconds,
    share_of,
    span,
)
from agent.faults.silence import JOB as JOB_OF_TARGETS
from agent.faults.silence import RARE, UP
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.model import WHAT_LOST, Metric, State, gauge
from agent.sources import activity, disk, gpu, power
from agent.sources.agent_health import LAST_TICK


def recorded(name: str, *labels: str) -> Metric:
    """A record as a metric, for its users: boards, reports, other rules."""
    return gauge(name, "Of recording rules.", "recording rules", labels)


SECONDS_RECORD = recorded(
    "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m", *OF_JOB, "state", "cause"
)
JOULES_RECORD = recorded("instance_job_id:dgx_gpu_energy_joules:increase5m", *OF_JOB)
TENSOR_RECORD = recorded("instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m", *OF_JOB)
SHARED_SECONDS_RECORD = recorded(
    "instance_job_id_state_cause:dgx_gpu_job_seconds:increase5m", *OF_JOB, "state", "cause"
)
SHARED_JOULES_RECORD = recorded("instance_job_id:dgx_gpu_job_joules:increase5m", *OF_JOB)
"""Of the GPUs that several jobs share, whose time the records above count for no job."""
REPORT_EVERY = "5m"
REPORT_STEP = "15s"
"""Precision of a job's begin and end; with rarer scrapes, the interval of the scrapes."""

REPORT_MEMORY = "6m"
"""The longest gap between two samples whose growth is counted."""

VERDICT = "state, cause"


def gpu_time(parameters: RuleParameters, window: str = "") -> Recording:
    window = window or parameters.thresholds.starved_window
    return Recording(
        f"instance_gpu_state_cause:dgx_gpu_state_seconds:ratio_rate{window}",
        str(share_of_gpu(parameters, window)),
    )


def starved_time(parameters: RuleParameters, window: str) -> Recording:
    return Recording(
        f"instance_gpu_cause:dgx_gpu_starved_seconds:ratio_rate{window}",
        str(share_of_gpu(parameters, window, state=State.STARVED)),
    )


def waits_time(parameters: RuleParameters, window: str) -> Recording:
    return Recording(
        f"instance_gpu_culprit:dgx_gpu_waits_for_seconds:ratio_rate{window}",
        str(waits_share(parameters, window)),
    )


def saturation(parameters: RuleParameters) -> Recording:
    window = parameters.thresholds.saturated_window
    return Recording(
        f"instance_path_device_direction:dgx_bandwidth_saturated_seconds:ratio_rate{window}",
        str(saturated(parameters)),
    )


def share_of_gpu(
    parameters: RuleParameters, window: str, least: float = 0.5, /, **labels: str
) -> Condition:
    """The share of the observed time that each GPU spends in these states."""
    part = _growth(parameters, accounting.STATE_SECONDS, window, **labels)
    whole = _growth(parameters, accounting.STATE_SECONDS, window).sum_without("state", "cause")
    return share_of(part, whole, parameters.over(window), VERDICT, least)


def waits_share(parameters: RuleParameters, window: str) -> Condition:
    """The share for which each GPU waits for another."""
    part = _growth(parameters, accounting.WAITS_FOR, window)
    whole = _growth(parameters, accounting.STATE_SECONDS, window).sum_without("state", "cause")
    return share_of(part, whole, parameters.over(window), "culprit")


def saturated(parameters: RuleParameters, **labels: str) -> Condition:
    """The share for which each path was full."""
    window = parameters.thresholds.saturated_window
    part = _growth(parameters, paths.SATURATED, window, **labels)
    whole = _growth(parameters, paths.OBSERVED, window).max_without("direction")
    return share_of(part, whole, parameters.over(window), "direction")


def _growth(
    parameters: RuleParameters, counter: Metric, window: str, /, **labels: str
) -> Condition:
    return grown(counter, window, increase(counter, parameters.over(window), **labels), **labels)


class EventRecords(NamedTuple):
    """The records of a counter whose series may begin with their first event, which no increase
    shows: the series above 0; those that are new within the window; the events within it.

    A series is new when a day before the window knew nothing of it under any number of its GPU, and
    the agent was scraped within the window without it: else each old event would be new after a gap
    between two scrapes, after a GPU was lost and others moved up, or when Prometheus has just
    begun. The agent's scrapes are matched by all labels of the target: scrapes from before a target
    was relabelled do not count. A restart of the agent may end the series. Of a counter over the
    life of a GPU (`of_life`) the scrapes are those with any part of it: a value read a moment after
    the agent's start is as old as the GPU.
    """

    above: Recording
    born: Recording
    events: Recording

    @classmethod
    def of(
        cls, parameters: RuleParameters, counter: Metric, *, of_life: bool = False, **labels: str
    ) -> Self:
        window = parameters.thresholds.event_window
        over, memory = parameters.over(window), parameters.over(REMEMBERED)
        name = f"instance_{'_'.join(counter.labels[2:] or counter.labels)}"
        name += f":{counter.name.removesuffix('_total')}"
        above = Recording(f"{name}:above0", f"{pick(counter, **labels)} > 0")
        kept = [label for label in counter.labels if label != "gpu"]
        parts = ", ".join(counter.parts if of_life else kept)
        new = f"max_over_time({above}[{over}])"
        seen = f"count_over_time({pick(counter, **labels)}[{over}])"
        ticks = f"count_over_time({LAST_TICK}[{over}])"
        if of_life:
            every = f"sum without (gpu) (count_over_time({counter}[{over}]))"
            ticks = f"max without ({parts}) ({every})"
        always = f"sum without (gpu) ({seen} and ignoring (gpu) {new})"
        always += f" >= ignoring ({parts}) group_left () {ticks}"
        old = f"on ({NODE}, {', '.join(kept)}) last_over_time({above}[{memory}] offset {over})"
        born = f"{new} unless {old} unless ignoring (gpu) ({always})"
        grown = f"({increase(counter, over, **labels)} > 0) or {name}:born{window}"
        return cls(
            above,
            Recording(f"{name}:born{window}", born),
            Recording(f"{name}:events{window}", grown),
        )


LONGER = of(pulses.STEP).over(of(job_watch.REFERENCE)).minus(1)
"""The share by which steps take longer than in the first hour of their job."""

SLOWDOWN = Recording("instance_gpu:dgx_gpu_step_seconds:slowdown", str(LONGER), held=True)


OFTEN = "1m"
"""Interval of rules on a quarter of an hour: four times as often costs four times as much, and
reports no important fault earlier."""


AGENTS = Recording(
    "instance_job_uuid_started:dgx_gpu_unobserved_seconds:group",
    f"group by ({NODE}, uuid) ({accounting.UNOBSERVED_SECONDS}) * on ({NODE}) group_left (started) "
    f'count_values by ({NODE}) ("started", {one("process_start_time_seconds")})',
)
"""GPUs by the run of their agent: the start of its process, scraped as this target."""

KNOWN = "instance_job_uuid_started:dgx_gpu_unobserved_seconds:known"
FIRST = "instance_job_started:dgx_agent:first"
NAMES = '"twin", " ", "job", "instance"'
OURS = 1e3
"""Rank of the first target: larger than the number of evaluations for which it is remembered."""


def second_names(parameters: RuleParameters) -> tuple[Recording, ...]:
    """Return the records of targets whose agent is also scraped as another target, and of that
    twin. The first is a target of the usual job, if there is one: rules on targets ask for that. It
    stays first while its scrapes fail now and then, because it was first most often (vmalert reads
    its own record an evaluation later, and VictoriaMetrics takes any of equals). The second stays
    second while neither answers. The record is unknown for an agent that has met no GPU, and absent
    for a target that Prometheus no longer has."""
    memory = parameters.over(RARE)
    targets, first = f"max by ({NODE}, started) ({KNOWN})", f"on ({NODE}, started) {FIRST}"
    before = f"on ({NODE}) group_left () sum by ({NODE}) (count_over_time({FIRST}[{memory}]))"
    now = (
        f"({KNOWN} unless {first}) * on (uuid, started) group_left (twin) "
        f"label_join({KNOWN} and {first}, {NAMES})"
    )
    silent = f"on ({NODE}) {KNOWN} and on (twin) label_join({UP} == 0, {NAMES})"
    ours = f'last_over_time({AGENTS}{{job="{JOB_OF_TARGETS}"}}[{memory}]) * {OURS:g}'
    known = f"({ours} or last_over_time({AGENTS}[{memory}])) and on ({NODE}) up"
    return (
        AGENTS,
        Recording(KNOWN, known),
        Recording(FIRST, f"topk by (started) (1, {targets} + {before} or {targets})"),
        Recording(DOUBLED, f"group by ({NODE}, twin) ({now}) or ({DOUBLED} unless {silent})"),
    )


def by_job(counter: Metric, parameters: RuleParameters, record: Metric) -> Recording:
    """Growth of a counter of GPUs by node and job; a GPU without a job, or shared by several jobs,
    counts for no job, unless the counter is of their shares. It reads no other record, so that it
    can be backfilled alone.

    It adds the growth from sample to sample, and from 0 if the counter has begun again: increase()
    extends its window to the edges, and would give a job all of the five minutes in which it began.
    Windows do not overlap, wherever they begin: Prometheus 2 counts a sample at both ends. Of
    sixteen pairs of state and cause few ever grow: the others are left out, because a report reads
    all.
    """
    step, memory = parameters.over(REPORT_STEP), parameters.over(REPORT_MEMORY)
    before = f"last_over_time({counter}[{memory}] offset {step})"
    grown = f"({counter} - ({before} <= {counter} or {before} * 0))"
    owner = f"({ALONE} or on {ONE_GPU} max by {ONE_GPU} ({gpu.INFO}))"
    owned = f"{grown} * on {ONE_GPU} group_left ({', '.join(OF_JOB)}) {owner}"
    if "job_id" in counter.labels:
        owned = grown
    window = span(seconds(parameters.over(REPORT_EVERY)) - 0.001)
    single = f"{owned} unless on ({NODE}) {DOUBLED}"
    summed = f"sum_over_time(sum without (gpu, uuid) ({single})[{window}:{step}])"
    return Recording(record, f"{summed} > 0")


def report_records(parameters: RuleParameters) -> Group:
    """Return the records that `dgx-telemetry report` sums up; each window follows the last."""
    return Group(
        "dgx-report",
        (
            by_job(accounting.STATE_SECONDS, parameters, SECONDS_RECORD),
            by_job(power.ENERGY, parameters, JOULES_RECORD),
            by_job(activity.TENSOR_SECONDS, parameters, TENSOR_RECORD),
            by_job(gpu_shares.JOB_SECONDS, parameters, SHARED_SECONDS_RECORD),
            by_job(gpu_shares.JOB_JOULES, parameters, SHARED_JOULES_RECORD),
        ),
        every=REPORT_EVERY,
    )


# Fleets: questions about all nodes at once. Records of five minutes follow on each other, so that
# their sums over any range are GPU-seconds: a board of a hundred nodes over a day reads some
# hundred thousand values in the place of a hundred million.
PLACE = "cluster, rack, node"
EVERY = "5m"
JOB = "job_id, user, account"
SAME_JOB = f"cluster, {JOB}"
"""Labels that are the same on all nodes of a job of Slurm: two clusters may use the same number,
and other programs are named by a pid, which programs on other nodes may have too."""

GPU_LOST = recorded(
    "gpu_state_cause:dgx_gpu_lost_seconds:increase5m", "gpu", "uuid", "state", "cause"
)
NODE_SECONDS = recorded("node_state_cause:dgx_gpu_state_seconds:increase5m", "state", "cause")
PATH_SECONDS = recorded("path:dgx_bandwidth_saturated_seconds:increase5m", *paths.LIMIT.labels)
OWN_TIME = recorded("node_job:dgx_gpu_own_time:ratio_rate5m", "job_id", "user", "account")

BUSY_DISK = 0.9
"""Share of the time with a request in flight from which a disk without a limit counts as full."""


def saturated_paths(parameters: RuleParameters) -> Recording:
    """Seconds for which each data path was full; only if there are such seconds. Disks without a
    known limit are paths of the direction `busy`."""
    over = parameters.over(EVERY)
    full = f"{increase(paths.SATURATED, over)} > 0"
    busy = f"({increase(disk.BUSY, over)} and {rate(disk.BUSY, over)} >= {BUSY_DISK:g})"
    limited = f"on ({NODE}, device) {pick(paths.LIMIT, path='disk')}"
    path = f'label_replace({busy} unless {limited}, "path", "disk", "", "")'
    named = f'label_replace({path}, "direction", "busy", "", "")'
    return Recording(PATH_SECONDS, f"{full} or {named}", held=True)


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
