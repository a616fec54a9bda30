"""Alerts about whole jobs: one that hangs, one that has become slower."""

from agent.diagnosis import accounting, job_watch
from agent.diagnosis.advice import hang_advice
from agent.faults.model import CRITICAL, INFO, SAME_NODE, Fault, HiddenBy, gpu_fault, node_fault
from agent.faults.promql import NODE, pick
from agent.faults.records import slowdown
from agent.faults.templates import COUNT, GPU, WHOLE, for_each, list_of, series
from agent.faults.templates import NODE as MACHINE
from agent.faults.thresholds import RuleParameters
from agent.model import State
from agent.sources import nccl

BY_MISSING = (HiddenBy("DgxGpuMissing", SAME_NODE),)
"""A GPU that is lost hangs its job, and the others wait for it."""

LASTS = "2m"
"""Least duration of a hang: a lost GPU is detected by then."""

_HUNG = pick(accounting.STATE, state=State.HUNG)


def hung() -> tuple[Fault, Fault]:
    """A job that stands: with the process that it waits for where that is known, else by GPUs."""
    named = hang_advice("{{ with $labels.pid }}pid {{ . }}{{ else }}each rank{{ end }}")
    gpu = ("instance", "job", "gpu", "uuid")
    count = f" ({{{{ . | value | {WHOLE} }}}})"
    launched = for_each(series(nccl.COLLECTIVES, gpu, {}), gpu, count)
    standing = f"count without (gpu, uuid, state, cause) ({_HUNG} == 1)"
    names = list_of(accounting.STATE, "gpu", "== 1", "instance", "job", state=State.HUNG.value)
    return (
        gpu_fault(
            alert="DgxJobHung",
            when=f"{job_watch.HUNG} == 1",
            severity=CRITICAL,
            hold=LASTS,
            summary="job hangs",
            description=(
                f"{COUNT} process holds up its job (limit 0): pid {{{{ $labels.pid }}}}"
                "{{ with $labels.rank }} (rank {{ . }}){{ end }}"
                "{{ with $labels.host }} of host {{ . }}{{ end }}"
                f" on {GPU} is stopped, sleeps while the others spin, or has launched fewer "
                f"collectives{launched} than they have."
            ),
            do=named,
            labels={"sign": "named"},
            hidden_by=BY_MISSING,
        ),
        node_fault(
            alert="DgxJobHung",
            when=f"{standing} unless on ({NODE}) {job_watch.HUNG}",
            severity=CRITICAL,
            hold=LASTS,
            summary="job hangs",
            description=f"{COUNT} GPUs of {MACHINE} wait for one another, and none works (limit 0):"
            f"{names}. Which process they wait for is not known.",
            do=hang_advice(),
            labels={"sign": "unnamed"},
            hidden_by=BY_MISSING,
        ),
    )


def slower(parameters: RuleParameters) -> Fault:
    """Steps that take longer than in the job's own first hour."""
    limits, record = parameters.thresholds, slowdown(parameters)
    names = list_of(record, "gpu", f">= {limits.slower_share:g}", "instance", "job")
    return node_fault(
        alert="DgxJobSlower",
        when=f"max without (gpu, uuid) ({record.expr}) >= {limits.slower_share:g}",
        severity=INFO,
        hold=limits.slower_window,
        summary="job slower than in its first hour",
        description=(
            f"Steps on GPUs of {MACHINE} take up to "
            "{{ $value | humanizePercentage }} longer than in their job's own first hour (limit "
            f"{limits.slower_share:.0%} for {limits.slower_window}):{names}."
        ),
        do="`/api/v1/jobs` of the agent shows since when, and what changed then.",
    )
