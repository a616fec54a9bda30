"""Alerts for the owner of the job: time that the GPUs lose."""

from agent.diagnosis import accounting
from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.model import CAUSES, Cause, State
from alerts.jobs import hung, slower
from alerts.model import Alert, Group
from alerts.paths import disk_saturated, link_saturated
from alerts.promql import NODE, pick, rate, share
from alerts.records import VERDICT, gpu_time
from alerts.spans import Terms
from alerts.words import COUNT, GPU, SHARE, by_label, list_of
from alerts.words import NODE as MACHINE


def advice(state: State, *causes: Cause) -> str:
    """What to do about each cause, chosen by the label `cause`."""
    return by_label("cause", {c.value: ADVICE[state, c] for c in causes or CAUSES[state]})


def summaries(state: State) -> str:
    """The words for each cause, chosen by the label `cause`."""
    return by_label("cause", {c.value: SUMMARIES[state, c] for c in CAUSES[state]})


def starved(terms: Terms, cause: str, severity: str) -> Alert:
    """A GPU waits: a known cause costs work, an unknown one may be a notebook."""
    limits = terms.thresholds
    waits = pick(gpu_time(terms), state=State.STARVED, cause=cause)
    return Alert(
        name="DgxGpuStarved",
        expr=f"{waits} >= {limits.starved_share:g}",
        severity=severity,
        hold="1m",
        summary="A GPU waits for its input.",
        description=(
            f"{GPU} was {summaries(State.STARVED)} for {SHARE} of the last "
            f"{limits.starved_window} (limit {limits.starved_share:.0%}). {advice(State.STARVED)}"
        ),
    )


def held(terms: Terms) -> Alert:
    """A process keeps a GPU and does nothing."""
    limits, over = terms.thresholds, terms.over(terms.thresholds.held_window)
    part = rate(accounting.STATE_SECONDS, over, state=State.HELD)
    whole = f"sum without ({VERDICT}) ({rate(accounting.STATE_SECONDS, over)})"
    return Alert(
        name="DgxGpuHeldIdle",
        expr=f"{share(part, whole, but=VERDICT)} >= {limits.held_share:g}",
        severity="info",
        summary="A process holds a GPU and does nothing.",
        description=(
            f"{GPU} was held by a process that did nothing for {SHARE} of the last "
            f"{limits.held_window} (limit {limits.held_share:.0%}). "
            f"{ADVICE[State.HELD, Cause.NONE]}"
        ),
    )


def throttled(terms: Terms) -> Alert:
    """Something holds the clocks down; running at the power limit at full clocks is not meant."""
    limits, over = terms.thresholds, terms.over(terms.thresholds.throttled_window)
    part = rate(accounting.STATE_SECONDS, over, state=State.THROTTLED)
    whole = f"sum without ({VERDICT}) ({rate(accounting.STATE_SECONDS, over)})"
    return Alert(
        name="DgxGpuThrottled",
        expr=f"{share(part, whole, but=VERDICT)} >= {limits.throttled_share:g}",
        severity="warning",
        hold="1m",
        summary="A GPU is slowed down.",
        description=(
            f"{GPU} was {summaries(State.THROTTLED)} for {SHARE} of the last "
            f"{limits.throttled_window} (limit {limits.throttled_share:.0%}). "
            f"{advice(State.THROTTLED)}"
        ),
    )


def stragglers(terms: Terms) -> tuple[Alert, Alert]:
    """The GPU that others wait for, where it can be known: the only one at work that does not wait
    for a peer itself. With two jobs on a machine there are several; then the waiters are named."""
    limit = terms.thresholds.starved_share
    record = gpu_time(terms)
    waiting = {"state": State.STARVED.value, "cause": Cause.PEER.value}
    waiters = f"({pick(record, **waiting)} >= {limit:g})"
    at_work = f"sum without ({VERDICT}) ({pick(record, state='!~idle|held')}) >= 0.5"
    suspects = f"({at_work} unless ignoring ({VERDICT}) {waiters})"
    one = f"(count by ({NODE}) ({suspects}) == 1)"
    number = f"count by ({NODE}) ({waiters})"
    names = list_of(record, "gpu", f">= {limit:g}", "instance", "job", **waiting)
    cure = ADVICE[State.STARVED, Cause.PEER]
    return (
        Alert(
            name="DgxGpuStraggler",
            expr=f"({number} and {one}) * on ({NODE}) group_right () ({suspects} ^ 0)",
            severity="warning",
            hold="1m",
            summary="One GPU keeps the others waiting.",
            description=f"{GPU} is waited for by {COUNT} GPUs of the machine:{names} (each for "
            f"{limit:.0%} of the last {terms.thresholds.starved_window} or more). {cure}",
            labels={"sign": "named"},
        ),
        Alert(
            name="DgxGpuStraggler",
            expr=f"{number} unless {one}",
            severity="warning",
            hold="1m",
            summary="GPUs wait for a slow one.",
            description=f"{COUNT} GPUs of {MACHINE} wait for a slow peer:{names} (each for "
            f"{limit:.0%} of the last {terms.thresholds.starved_window} or more). Which one they "
            f"wait for cannot be told from here: compare the GPUs of their job. {cure}",
            labels={"sign": "unnamed"},
        ),
    )


def workload(terms: Terms) -> Group:
    """What the owner of the job can change."""
    return Group(
        "dgx-workload",
        (
            starved(terms, f"!={Cause.UNKNOWN}", "warning"),
            starved(terms, Cause.UNKNOWN, "info"),
            *stragglers(terms),
            *hung(),
            slower(terms),
            held(terms),
            throttled(terms),
            link_saturated(terms),
            disk_saturated(terms),
        ),
    )
