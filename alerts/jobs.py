"""Alerts about whole jobs: one that hangs, one that has become slower."""

from agent.diagnosis import accounting, job_watch
from agent.diagnosis.advice import hang_advice
from agent.model import State
from agent.sources import nccl
from alerts import places
from alerts.model import Alert
from alerts.parameters import RuleParameters
from alerts.promql import NODE, pick
from alerts.records import slowdown
from alerts.words import COUNT, GPU, WHOLE, for_each, list_of, series
from alerts.words import NODE as MACHINE

LASTS = "2m"
"""How long a hang must last: a GPU that was lost is shown by then."""


def hung() -> tuple[Alert, Alert]:
    """A job that stands: with the process that it waits for where that is known, else by GPUs."""
    named = hang_advice("{{ with $labels.pid }}pid {{ . }}{{ else }}each rank{{ end }}")
    gpu = ("instance", "job", "gpu", "uuid")
    count = f" ({{{{ . | value | {WHOLE} }}}})"
    launched = for_each(series(nccl.COLLECTIVES, gpu, {}), gpu, count)
    state = pick(accounting.STATE, state=State.HUNG)
    names = list_of(accounting.STATE, "gpu", "== 1", "instance", "job", state=State.HUNG.value)
    return (
        Alert(
            name="DgxJobHung",
            expr=f"{job_watch.HUNG} == 1",
            severity="critical",
            hold=LASTS,
            summary="job hangs",
            description=(
                f"{COUNT} process holds up its job (limit 0): pid {{{{ $labels.pid }}}}"
                "{{ with $labels.rank }} (rank {{ . }}){{ end }}"
                "{{ with $labels.host }} of host {{ . }}{{ end }}"
                f" on {GPU} is stopped, sleeps while the others spin, or has launched fewer "
                f"collectives{launched} than they have. {named}"
            ),
            labels={"sign": "named"},
            place=places.GPU,
        ),
        Alert(
            name="DgxJobHung",
            expr=f"count by ({NODE}) ({state} == 1) unless on ({NODE}) {job_watch.HUNG}",
            severity="critical",
            hold=LASTS,
            summary="job hangs",
            description=(
                f"{COUNT} GPUs of {MACHINE} wait for one another, and none works (limit 0):{names}."
                f" Which process they wait for is not known. {hang_advice()}"
            ),
            labels={"sign": "unnamed"},
            place=places.NODE,
        ),
    )


def slower(parameters: RuleParameters) -> Alert:
    """Steps that take longer than in the job's own first hour."""
    limits, record = parameters.thresholds, slowdown(parameters)
    names = list_of(record, "gpu", f">= {limits.slower_share:g}", "instance", "job")
    return Alert(
        name="DgxJobSlower",
        expr=f"max by ({NODE}) ({record}) >= {limits.slower_share:g}",
        severity="info",
        hold=limits.slower_window,
        summary="job slower than in its first hour",
        description=(
            f"Steps on GPUs of {MACHINE} take up to "
            "{{ $value | humanizePercentage }} longer than in their job's own first hour (limit "
            f"{limits.slower_share:.0%} for {limits.slower_window}):{names}. `/api/v1/jobs` of the "
            "agent says since when, and what changed then."
        ),
        place=places.NODE,
    )
