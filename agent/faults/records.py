"""Recording rules: expressions that several rules and people use."""

from agent.diagnosis import accounting, energy, job_watch, pulses
from agent.faults.model import Group
from agent.faults.monitoring import RARE, UP
from agent.faults.promql import GPU, NODE, Recording, increase, observed_share, one, rate
from agent.faults.thresholds import RuleParameters, span
from agent.faults.values import seconds
from agent.limits import paths
from agent.model import GPU_LABELS, Metric, State
from agent.sources import activity, power, workload

SECONDS_RECORD = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
JOULES_RECORD = "instance_job_id:dgx_gpu_energy_joules:increase5m"
TENSOR_RECORD = "instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m"
STATE_JOULES_RECORD = "instance_job_id_state_cause:dgx_gpu_state_joules:increase5m"
REPORT_EVERY = "5m"
REPORT_STEP = "15s"
"""Precision of a job's begin and end; with rarer scrapes, the interval of the scrapes."""

REPORT_MEMORY = "6m"
"""The longest gap between two samples whose growth is counted."""

STEPS_WINDOW = "5m"
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
    """Return the time of each GPU by state and cause."""
    window = parameters.thresholds.starved_window
    return Recording(
        f"instance_gpu_state_cause:dgx_gpu_state_seconds:ratio_rate{window}",
        gpu_share(parameters, window),
    )


def starved_time(parameters: RuleParameters, window: str) -> Recording:
    """The share of each cause of starving over a long window."""
    return Recording(
        f"instance_gpu_cause:dgx_gpu_starved_seconds:ratio_rate{window}",
        gpu_share(parameters, window, state=State.STARVED),
    )


def waits_time(parameters: RuleParameters, window: str) -> Recording:
    """The share of time for which each GPU waits for each other of the machine."""
    return Recording(
        f"instance_gpu_culprit:dgx_gpu_waits_for_seconds:ratio_rate{window}",
        gpu_share(parameters, window, accounting.WAITS_FOR, "culprit"),
    )


def saturation(parameters: RuleParameters) -> Recording:
    """The share of the time for which each data path was saturated."""
    window = parameters.thresholds.saturated_window
    over = parameters.over(window)
    return Recording(
        f"instance_path_device_direction:dgx_bandwidth_saturated_seconds:ratio_rate{window}",
        observed_share(increase(paths.SATURATED, over), increase(paths.OBSERVED, over), over),
    )


def steps(parameters: RuleParameters) -> Recording:
    """Steps a second of each GPU, as they were counted."""
    return Recording(
        f"instance_gpu:dgx_gpu_steps:rate{STEPS_WINDOW}",
        rate(pulses.STEPS, parameters.over(STEPS_WINDOW)),
    )


def job_steps(parameters: RuleParameters) -> Recording:
    """The same of each job by name, the mean of its GPUs; only where job.info is on."""
    of_each = one(str(steps(parameters)), *GPU_LABELS)
    info = f"last_over_time({workload.JOB_INFO}[{parameters.over(STEPS_WINDOW)}])"
    of_job = f"{of_each} * on ({GPU}) group_right () {info}"
    return Recording(
        f"instance_job:dgx_gpu_steps:rate{STEPS_WINDOW}",
        f"avg without (gpu, uuid) ({of_job})",
    )


def slowdown(_: RuleParameters) -> Recording:
    """Return the record of the share by which steps take longer than in the first hour of their
    job."""
    return Recording(
        "instance_gpu:dgx_gpu_step_seconds:slowdown", f"{pulses.STEP} / {job_watch.REFERENCE} - 1"
    )


OFTEN = "1m"
"""Between two evaluations of what looks at a quarter of an hour: four times as often costs four
times as much, and nothing that matters is reported earlier."""


def records(parameters: RuleParameters) -> Group:
    """Evaluated for all who ask."""
    short = parameters.thresholds.starved_window
    return Group(
        "dgx-records",
        (
            gpu_time(parameters),
            Recording(  # of all GPUs of a machine together
                f"instance_state_cause:dgx_gpu_state_seconds:ratio_rate{short}",
                f"avg without (gpu, uuid) ({gpu_time(parameters)})",
            ),
            waits_time(parameters, short),
            saturation(parameters),
            steps(parameters),
            job_steps(parameters),
            slowdown(parameters),
        ),
        every=OFTEN,
    )


AGENTS = Recording(
    "instance_job_uuid_started:dgx_gpu_unobserved_seconds:group",
    f"group by ({NODE}, uuid) ({accounting.UNOBSERVED_SECONDS}) * on ({NODE}) group_left (started) "
    f'count_values by ({NODE}) ("started", {one("process_start_time_seconds")})',
)
"""GPUs by who reports them: an agent that was started then, scraped as this target."""

FIRST = "instance_job_started:dgx_agent:first"
DOUBLED = "instance_job_twin:up:doubled"
NAMES = '"twin", " ", "job", "instance"'


def second_names(parameters: RuleParameters) -> tuple[Recording, ...]:
    """Targets whose agent is scraped as another target, their twin, too. Which of them is the first
    stays so while its scrapes fail now and then: it was it most often (vmalert reads what it wrote
    an evaluation later, and VictoriaMetrics takes any of equals). Which is the second stays so
    while neither answers. Of an agent that has met no GPU it is not known."""
    memory = parameters.over(RARE)
    known = f"last_over_time({AGENTS}[{memory}])"
    targets, first = f"group by ({NODE}, started) ({known})", f"on ({NODE}, started) {FIRST}"
    before = f"on ({NODE}) group_left () sum by ({NODE}) (count_over_time({FIRST}[{memory}]))"
    now = (
        f"({known} unless {first}) * on (uuid, started) group_left (twin) "
        f"label_join({known} and {first}, {NAMES})"
    )
    silent = f"on ({NODE}) {known} and on (twin) label_join({UP} == 0, {NAMES})"
    return (
        AGENTS,
        Recording(FIRST, f"topk by (started) (1, {targets} + {before} or {targets})"),
        Recording(DOUBLED, f"group by ({NODE}, twin) ({now}) or ({DOUBLED} unless {silent})"),
    )


def once(expr: str) -> str:
    """PromQL without what a second name of the same agent repeats."""
    return f"({expr}) unless on ({NODE}) {DOUBLED}"


JOBS = one(str(workload.JOB_INFO), *workload.JOB_INFO.labels)
ALONE = f"count by ({GPU}) ({JOBS}) == 1"
"""GPUs that one job has for itself."""

OF_JOB = "job_id", "user", "partition", "account"


def by_job(counter: Metric, parameters: RuleParameters, record: str, *more: str) -> Recording:
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
    of_job = one(str(workload.JOB_INFO), *GPU_LABELS, *OF_JOB)
    mine = (
        f"{grown} * on ({GPU}) group_left ({', '.join(OF_JOB)}) ({of_job} and on ({GPU}) {ALONE})"
    )
    rest = f"{grown} unless on ({GPU}) ({ALONE})"
    inside = ", ".join((NODE, *OF_JOB, *more))
    window = span(seconds(parameters.over(REPORT_EVERY)) - 0.001)
    grown_once = once(f"{mine} or {rest}")
    summed = f"sum_over_time(sum by ({inside}) ({grown_once})[{window}:{step}])"
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
            by_job(energy.STATE_JOULES, parameters, STATE_JOULES_RECORD, "state", "cause"),
        ),
        every=REPORT_EVERY,
    )


def long_records(parameters: RuleParameters) -> Group:
    """Return the records over hours: a day of samples is not read each 15 s."""
    hours, day = parameters.thresholds.starved_hours, parameters.thresholds.starved_day
    return Group(
        "dgx-long-records",
        (
            starved_time(parameters, hours),
            starved_time(parameters, day),
            waits_time(parameters, hours),
        ),
        every="2m",
    )
