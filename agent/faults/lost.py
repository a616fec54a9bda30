"""GPUs that are lost, and the job on each GPU: records that the rules of GPUs share."""

from agent.diagnosis import accounting
from agent.faults.promql import NODE, Recording, of, one
from agent.faults.thresholds import RuleParameters
from agent.sources import gpu, system, workload, xid
from agent.sources.agent_health import LAST_TICK

_GONE = (
    of(accounting.UNOBSERVED_SECONDS)
    .grouped()
    .unless(of(gpu.INFO), "uuid")
    .having(of(system.GPUS) < of(system.GPUS_EXPECTED))
)
"""GPUs that are known and gone: their accounts stay, what describes them has no value. Of a driver
that hangs no GPU is lost: nothing at all has a value then."""

LOST = Recording("instance_gpu:dgx_gpu_info:lost", "")
"""The record of lost GPUs, by its name."""

GONE = _GONE.named(LOST)


def lost(parameters: RuleParameters) -> Recording:
    """Return the record of lost GPUs; it stays as it was while the agent does not answer."""
    before = f"last_over_time({LOST}[{parameters.over('1m')}])"
    return Recording(str(LOST), f"({_GONE}) or ({before} unless on ({NODE}) {LAST_TICK})")


OF_JOB = ("job_id", "user", "partition", "account")
OWNER = "instance_gpu:dgx_gpu_job_info:owner"


def owner(parameters: RuleParameters) -> Recording:
    """Return the record of the job on each GPU: one row a GPU, without names where no job is known
    or several share it, so that a join removes no row."""
    over = parameters.over("5m")
    jobs = f"last_over_time({workload.JOB_INFO}[{parameters.over('1m')}])"
    number = f"count by ({NODE}, uuid) ({one(jobs, *workload.JOB_INFO.labels)})"
    alone = f"{one(jobs, 'uuid', *OF_JOB)} and on ({NODE}, uuid) ({number} == 1)"
    known = " or ".join(
        f"group by ({NODE}, uuid) (last_over_time({metric}[{over}]))"
        for metric in (accounting.UNOBSERVED_SECONDS, xid.XID_ERRORS)
    )
    return Recording(OWNER, f"({alone}) or on ({NODE}, uuid) ({known})")


def owned(expr: str) -> str:
    """PromQL of an alert of a GPU with the labels of its job."""
    return f"({expr}) * on ({NODE}, uuid) group_left (job_id, user) {OWNER}"
