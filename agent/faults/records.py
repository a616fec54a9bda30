"""Recording rules: expressions that several rules and people use."""

from agent.diagnosis import accounting, job_watch, pulses
from agent.faults.lost import OF_JOB, OWNER
from agent.faults.model import Group
from agent.faults.promql import (
    NODE,
    Condition,
    Recording,
    grown,
    increase,
    observed_share,
    of,
    one,
    pick,
    rate,
    seconds,
    share_of,
)
from agent.faults.silence import RARE, UP
from agent.faults.thresholds import RuleParameters, span
from agent.limits import paths
from agent.model import WHAT_LOST, Metric, State, gauge
from agent.sources import activity, disk, power


def recorded(name: str, *labels: str) -> Metric:
    """A record as a metric, for those that ask for it: boards, reports, other rules."""
    return gauge(name, "Of recording rules.", "recording rules", labels)


SECONDS_RECORD = recorded(
    "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m", *OF_JOB, "state", "cause"
)
JOULES_RECORD = recorded("instance_job_id:dgx_gpu_energy_joules:increase5m", *OF_JOB)
TENSOR_RECORD = recorded("instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m", *OF_JOB)
REPORT_EVERY = "5m"
REPORT_STEP = "15s"
"""Precision of a job's begin and end; with rarer scrapes, the interval of the scrapes."""

REPORT_MEMORY = "6m"
"""The longest gap between two samples whose growth is counted."""

VERDICT = "state, cause"


def gpu_share(
    parameters: RuleParameters,
    window: str,
    counter: Metric = accounting.STATE_SECONDS,
    but: str = VERDICT,
    least: float = 0.5,
    **labels: str,
) -> str:
    """Growth of a counter of each GPU as a share of its time that was observed."""
    over = parameters.over(window)
    whole = f"sum without ({VERDICT}) ({increase(accounting.STATE_SECONDS, over)})"
    return observed_share(increase(counter, over, **labels), whole, over, but, least)


def gpu_time(parameters: RuleParameters) -> Recording:
    window = parameters.thresholds.starved_window
    return Recording(
        f"instance_gpu_state_cause:dgx_gpu_state_seconds:ratio_rate{window}",
        gpu_share(parameters, window),
    )


def starved_time(parameters: RuleParameters, window: str) -> Recording:
    return Recording(
        f"instance_gpu_cause:dgx_gpu_starved_seconds:ratio_rate{window}",
        gpu_share(parameters, window, state=State.STARVED),
    )


def waits_time(parameters: RuleParameters, window: str) -> Recording:
    return Recording(
        f"instance_gpu_culprit:dgx_gpu_waits_for_seconds:ratio_rate{window}",
        gpu_share(parameters, window, accounting.WAITS_FOR, "culprit"),
    )


def share_of_gpu(
    parameters: RuleParameters, window: str, least: float = 0.5, text: str = "", /, **labels: str
) -> Condition:
    """The share of the time observed that each GPU spends in these states; `text` is its record."""
    counter, over = accounting.STATE_SECONDS, parameters.over(window)
    part = grown(counter, window, increase(counter, over, **labels), **labels)
    whole = grown(counter, window, increase(counter, over)).sum_without("state", "cause")
    if not text:
        whole_text = f"({whole} >= {least * seconds(over):g})"
        text = f"{part} / ignoring ({VERDICT}) group_left () {whole_text}"
    return share_of(part, whole, window, text, least)


def waits_share(parameters: RuleParameters, window: str) -> Condition:
    """The share for which each GPU waits for another."""
    part = grown(accounting.WAITS_FOR, window, str(accounting.WAITS_FOR))
    whole = grown(accounting.STATE_SECONDS, window, "").sum_without("state", "cause")
    return share_of(part, whole, window, str(waits_time(parameters, window)))


def saturated(parameters: RuleParameters, **labels: str) -> Condition:
    """The share for which each path was full."""
    window = parameters.thresholds.saturated_window
    over = parameters.over(window)
    part = grown(paths.SATURATED, window, increase(paths.SATURATED, over), **labels)
    whole = grown(paths.OBSERVED, window, increase(paths.OBSERVED, over)).max_without("direction")
    return share_of(part, whole, window, observed_share(str(part), str(whole), over, "direction"))


def saturation(parameters: RuleParameters) -> Recording:
    window = parameters.thresholds.saturated_window
    name = f"instance_path_device_direction:dgx_bandwidth_saturated_seconds:ratio_rate{window}"
    return Recording(name, str(saturated(parameters)))


LONGER = of(pulses.STEP).over(of(job_watch.REFERENCE)).minus(1)
"""The share by which steps take longer than in the first hour of their job."""

SLOWDOWN = Recording("instance_gpu:dgx_gpu_step_seconds:slowdown", str(LONGER))


OFTEN = "1m"
"""Between two evaluations of what looks at a quarter of an hour: four times as often costs four
times as much, and nothing that matters is reported earlier."""


AGENTS = Recording(
    "instance_job_uuid_started:dgx_gpu_unobserved_seconds:group",
    f"group by ({NODE}, uuid) ({accounting.UNOBSERVED_SECONDS}) * on ({NODE}) group_left (started) "
    f'count_values by ({NODE}) ("started", {one("process_start_time_seconds")})',
)
"""GPUs by who reports them: an agent that was started then, scraped as this target."""

KNOWN = "instance_job_uuid_started:dgx_gpu_unobserved_seconds:known"
FIRST = "instance_job_started:dgx_agent:first"
DOUBLED = "instance_job_twin:up:doubled"
NAMES = '"twin", " ", "job", "instance"'


def second_names(parameters: RuleParameters) -> tuple[Recording, ...]:
    """Targets whose agent is scraped as another target, their twin, too. Which of them is the first
    stays so while its scrapes fail now and then: it was it most often (vmalert reads its own record
    an evaluation later, and VictoriaMetrics takes any of equals). Which is the second stays so
    while neither answers. Of an agent that has met no GPU it is not known; of a target that
    Prometheus no longer has, nothing."""
    memory = parameters.over(RARE)
    targets, first = f"group by ({NODE}, started) ({KNOWN})", f"on ({NODE}, started) {FIRST}"
    before = f"on ({NODE}) group_left () sum by ({NODE}) (count_over_time({FIRST}[{memory}]))"
    now = (
        f"({KNOWN} unless {first}) * on (uuid, started) group_left (twin) "
        f"label_join({KNOWN} and {first}, {NAMES})"
    )
    silent = f"on ({NODE}) {KNOWN} and on (twin) label_join({UP} == 0, {NAMES})"
    return (
        AGENTS,
        Recording(KNOWN, f"last_over_time({AGENTS}[{memory}]) and on ({NODE}) up"),
        Recording(FIRST, f"topk by (started) (1, {targets} + {before} or {targets})"),
        Recording(DOUBLED, f"group by ({NODE}, twin) ({now}) or ({DOUBLED} unless {silent})"),
    )


def once(expr: str) -> str:
    """PromQL without what a second name of the same agent repeats."""
    return f"({expr}) unless on ({NODE}) {DOUBLED}"


def by_job(counter: Metric, parameters: RuleParameters, record: Metric, *more: str) -> Recording:
    """Growth of a counter of GPUs by node and job; that of a GPU which several jobs share, or none
    has, goes to no job.

    From sample to sample, and from 0 where the counter has begun again, which sums up to what it
    has grown: increase() draws its window out to the edges, and would give a job all of the five
    minutes in which it began. Windows do not overlap, wherever they begin: Prometheus 2 counts a
    sample at both ends. Of sixteen pairs of state and cause few ever grow: what did not is left
    out, for a report reads all there is.
    """
    step, memory = parameters.over(REPORT_STEP), parameters.over(REPORT_MEMORY)
    before = f"last_over_time({counter}[{memory}] offset {step})"
    grown = f"({counter} - {before} >= 0 or {counter} and {before})"
    owned = f"{grown} * on ({NODE}, uuid) group_left ({', '.join(OF_JOB)}) {OWNER}"
    inside = ", ".join((NODE, *OF_JOB, *more))
    window = span(seconds(parameters.over(REPORT_EVERY)) - 0.001)
    summed = f"sum_over_time(sum by ({inside}) ({once(owned)})[{window}:{step}])"
    return Recording(record, f"{summed} > 0")


def report_records(parameters: RuleParameters) -> Group:
    """Return the records that `dgx-telemetry report` sums up; each window follows on the last
    one."""
    return Group(
        "dgx-report",
        (
            by_job(accounting.STATE_SECONDS, parameters, SECONDS_RECORD, "state", "cause"),
            by_job(power.ENERGY, parameters, JOULES_RECORD),
            by_job(activity.TENSOR_SECONDS, parameters, TENSOR_RECORD),
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
"""Alike on all nodes of a job of Slurm: two clusters number jobs alike, and other programs are
called by a pid, which those on other nodes may have too."""

GPU_LOST = recorded(
    "gpu_state_cause:dgx_gpu_lost_seconds:increase5m", "gpu", "uuid", "state", "cause"
)
NODE_SECONDS = recorded("node_state_cause:dgx_gpu_state_seconds:increase5m", "state", "cause")
PATH_SECONDS = recorded("path:dgx_bandwidth_saturated_seconds:increase5m", *paths.LIMIT.labels)
OWN_TIME = recorded("node_job:dgx_gpu_own_time:ratio_rate5m", "job_id", "user", "account")

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
