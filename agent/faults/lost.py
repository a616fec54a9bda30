"""GPUs that are lost, and the job on each GPU: records that the rules of GPUs share."""

from agent.diagnosis import accounting
from agent.faults.promql import NODE, Recording, of
from agent.faults.thresholds import RuleParameters
from agent.sources import agent_health, ecc, gpu, system, workload, xid
from agent.sources.agent_health import LAST_TICK

_GONE = (
    of(accounting.UNOBSERVED_SECONDS)
    .grouped()
    .unless(of(gpu.INFO), "uuid")
    .having(of(system.GPUS) < of(system.GPUS_EXPECTED))
)
"""GPUs that are known and gone: their accounts stay, the metrics that describe them have no value.
If the driver hangs no GPU is lost: no metric has a value then."""

LOST = Recording("instance_gpu:dgx_gpu_info:lost", "")
"""The record of lost GPUs, by its name."""

GONE = _GONE.named(LOST)


def remembered(record: Recording | str, parameters: RuleParameters) -> str:
    """PromQL for the last value of a record of targets that are known but do not answer."""
    last = f"last_over_time({record}[{parameters.over('1m')}])"
    return f"({last} and on ({NODE}) up unless on ({NODE}) {LAST_TICK})"


def lost(parameters: RuleParameters) -> Recording:
    """Return the record of lost GPUs; it stays as it was while the agent does not answer."""
    return Recording(str(LOST), f"({_GONE}) or {remembered(LOST, parameters)}")


OF_JOB = ("job_id", "user", "partition", "account")
OWNER = "instance_gpu:job_info:owner"
ONE_GPU = f"({NODE}, uuid)"
ALONE = f"{workload.JOB_INFO} and on {ONE_GPU} count by {ONE_GPU} ({workload.JOB_INFO}) == 1"
"""The job of each GPU that has exactly one."""

REPORTED = (
    *(gpu.INFO, accounting.UNOBSERVED_SECONDS, xid.XID_ERRORS, ecc.ERRORS, ecc.REMAP_FAILURE),
    *(agent_health.GPU_READ_SECONDS, agent_health.GPU_READ_FAILURES),
)
"""Each GPU with an alert that names a job has a series of these; a GPU that answers, of `info`."""


def owner(parameters: RuleParameters) -> Recording:
    """Return the record of the job on each GPU: a row per GPU, without names if no job is known or
    several share it, so that a join removes no row but those of the second name of an agent. It
    stays as it was while the agent does not answer, for another job would begin an alert anew."""
    known = " or ".join(map(str, REPORTED))
    rest = f"on {ONE_GPU} group by {ONE_GPU} ({known})"
    last = remembered(OWNER, parameters)
    return Recording(OWNER, once(f"{ALONE} or on {ONE_GPU} {last} or {rest}"))


def owned(expr: str) -> str:
    """PromQL for an alert of a GPU with the labels of its job."""
    return f"({expr}) * on ({NODE}, uuid) group_left (job_id, user) {OWNER}"


DOUBLED = "instance:up:doubled"
"""Record of the targets whose agent is also scraped as another target, and of that twin."""


def once(expr: str) -> str:
    """PromQL without the rows that a second name of the same agent repeats."""
    return f"({expr}) unless on ({NODE}) {DOUBLED}"
