"""Alerts for the owner of the job: time that the GPUs lose."""

from collections.abc import Mapping
from typing import NamedTuple

from agent.diagnosis.advice import ADVICE, CHECKPOINT, READ_FASTER, SUMMARIES, peer_advice
from agent.faults.jobs import BY_MISSING, hung, slower
from agent.faults.model import (
    INFO,
    SAME_GPU,
    WARNING,
    Fault,
    Group,
    HiddenBy,
    gpu_fault,
    node_fault,
)
from agent.faults.paths import disk_saturated, link_saturated
from agent.faults.promql import NODE, Recording, one, pick
from agent.faults.records import OFTEN, VERDICT, gpu_share, gpu_time, starved_time, waits_time
from agent.faults.templates import COUNT, GPU, SHARE, by_label, either, for_each, list_of, series
from agent.faults.templates import NODE as MACHINE
from agent.faults.thresholds import RuleParameters
from agent.model import CAUSES, GPU_LABELS, Cause, Severity, State
from agent.sources import activity, allocation, disk, gpu, process

TARGET = ("instance", "job")
ONE = (*TARGET, "uuid")
JOINED = ("instance", "job", "culprit")
WORTH_NAMING = 0.01
"""Share of the time below which a cause is none to work on."""

HELD_OBSERVED = 0.75
"""Share of the window from which a GPU counts as held: an agent that has just started has seen no
more than a coffee break."""

KNOWN = {"state": State.STARVED.value, "cause": f"!={Cause.UNKNOWN.value}"}


class Span(NamedTuple):
    """A window, the record of shares of state and cause over it, and the share that alerts."""

    record: Recording
    window: str
    share: float


def summaries(state: State) -> str:
    """The words for each cause, chosen by the label `cause`."""
    return by_label("cause", {c.value: SUMMARIES[state, c] for c in CAUSES[state]})


def starved(spans: Span, severity: Severity, over: str, only: str = "") -> Fault:
    """A GPU waits for what is known, for so much of a window, which is `over` in PromQL; `only`
    narrows it to some GPUs."""
    known = f"sum without ({VERDICT}) ({pick(spans.record, **KNOWN)})"
    return gpu_fault(
        alert="DgxGpuStarved",
        when=f"{known} >= {spans.share:g}{only}",
        severity=severity,
        hold="1m",
        summary="waits for its input",
        description=f"{GPU} waited for {SHARE} of the last {spans.window} (limit "
        f"{spans.share:.0%}).{_first_causes(spans, KNOWN, over)}",
        labels={"window": spans.window},
    )


def _first_causes(spans: Span, labels: Mapping[str, str], over: str) -> str:
    """The two causes that take most of a state, each with what to do about it: of the disk by
    whether the machine wrote or read more."""
    query = f"sort_desc(topk(2, {series(spans.record, ONE, labels)} >= {WORTH_NAMING:g}))"
    written, read = (
        f"sum(increase({series(metric, TARGET, {})}[{over}]))"
        for metric in (disk.WRITTEN_BYTES, disk.READ_BYTES)
    )
    known = either(f"{read} >= 0", TARGET, READ_FASTER, ADVICE[State.STARVED, Cause.DISK])
    of_disk = either(f"{written} > {read}", TARGET, CHECKPOINT, known)
    state = State(labels["state"])
    cures = {cause: ADVICE[state, cause] for cause in CAUSES[state]}
    texts = {
        cause.value: f" {_sentence(SUMMARIES[state, cause])} for "
        f"{{{{ .Value | humanizePercentage }}}}: {(cures | {Cause.DISK: of_disk})[cause]}"
        for cause in CAUSES[state]
        if cause is not Cause.UNKNOWN
    }
    return for_each(query, ONE, by_label("cause", texts, of=".Labels"))


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def exposed(spans: Span) -> Fault:
    """A GPU does nothing but exchange data with others, for so much of a window. That is no time
    lost: it is what a job of several GPUs costs, and may be made less."""
    sending = {"state": State.COMMUNICATING.value}
    return gpu_fault(
        alert="DgxExposedCommunication",
        when=f"sum without ({VERDICT}) ({pick(spans.record, **sending)}) >= {spans.share:g}",
        severity=INFO,
        hold="1m",
        summary="communicates and does nothing else",
        description=f"{GPU} did nothing but exchange data with other GPUs for {SHARE} of the last "
        f"{spans.window} (limit {spans.share:.0%}).{_first_causes(spans, sending, spans.window)}",
    )


def starved_cause_unknown(parameters: RuleParameters) -> Fault:
    """A GPU waits, and nothing explains it: a notebook waits too."""
    limits = parameters.thresholds
    waits = pick(gpu_time(parameters), state=State.STARVED, cause=Cause.UNKNOWN)
    return gpu_fault(
        alert="DgxGpuStarved",
        when=f"{waits} >= {limits.starved_share:g}",
        severity=INFO,
        hold="1m",
        summary="starved, cause unknown",
        description=f"{GPU} waited for {SHARE} of the last {limits.starved_window}, cause unknown "
        f"(limit {limits.starved_share:.0%}).",
        do=ADVICE[State.STARVED, Cause.UNKNOWN],
        labels={"window": limits.starved_window},
    )


def held(parameters: RuleParameters) -> Fault:
    """A process keeps a GPU and does nothing."""
    limits = parameters.thresholds
    part = gpu_share(parameters, limits.held_window, least=HELD_OBSERVED, state=State.HELD)
    return gpu_fault(
        alert="DgxGpuHeldIdle",
        when=f"{part} >= {limits.held_share:g}",
        severity=INFO,
        summary="occupied by an idle process",
        description=(
            f"{GPU} was occupied by an idle process for {SHARE} of the last "
            f"{limits.held_window} (limit {limits.held_share:.0%})."
        ),
        do=ADVICE[State.HELD, Cause.NONE],
    )


def unused(parameters: RuleParameters) -> Fault:
    """A job was given a GPU and has no process on it."""
    window = parameters.thresholds.unused_window
    return gpu_fault(
        alert="DgxGpuAllocatedUnused",
        when=f"{process.PROCESSES} == 0 and on ({NODE}, gpu, uuid) {allocation.ALLOCATED} == 1",
        severity=INFO,
        hold=window,
        summary="given to a job that does not use it",
        description=f"{GPU} is given to a job that has had {{{{ $value }}}} processes on it for "
        f"{window} (limit {window}). Ask the owner of the job to request fewer GPUs.",
    )


def throttled(parameters: RuleParameters) -> Fault:
    """Something holds the clocks down; running at the power limit at full clocks is not meant."""
    limits = parameters.thresholds
    part = gpu_share(parameters, limits.throttled_window, state=State.THROTTLED)
    return gpu_fault(
        alert="DgxGpuThrottled",
        when=f"{part} >= {limits.throttled_share:g}",
        hold="1m",
        summary="throttled",
        description=(
            f"{GPU} was {summaries(State.THROTTLED)} for {SHARE} of the last "
            f"{limits.throttled_window} (limit {limits.throttled_share:.0%})."
        ),
        do=by_label(
            "cause", {c.value: ADVICE[State.THROTTLED, c] for c in CAUSES[State.THROTTLED]}
        ),
        hidden_by=(HiddenBy("DgxGpuHot", SAME_GPU, ('severity="critical"',)),),
    )


def straggler(parameters: RuleParameters, spans: Span) -> Fault:
    """The GPU that others of the machine wait for, as the agent names it."""
    waits = f"{waits_time(parameters, spans.window)} >= {spans.share:g}"
    number = f"count without (gpu, uuid) ({waits})"
    info = one(f"last_over_time({gpu.INFO}[{parameters.over('10m')}])", *GPU_LABELS)
    single = f"{info} and on ({NODE}, uuid) count by ({NODE}, uuid) ({info}) == 1"
    named = f'label_replace({number}, "uuid", "$1", "culprit", "(.+)")'
    names = list_of(waits_time(parameters, spans.window), "gpu", f">= {spans.share:g}", *JOINED)
    return gpu_fault(
        alert="DgxGpuStraggler",
        when=f"{named} * on ({NODE}, uuid) group_left (gpu) ({single})",
        hold="1m",
        summary="keeps the other GPUs waiting",
        description=f"{GPU} is waited for by {COUNT} GPUs of the machine:{names} (limit "
        f"{spans.share:.0%} of the last {spans.window}, each).",
        do=peer_advice("this GPU"),
        labels={"sign": "named", "window": spans.window},
        hidden_by=BY_MISSING,
    )


def unnamed_straggler(parameters: RuleParameters, spans: Span) -> Fault:
    """GPUs wait for a peer that is not known, or is not here."""
    waiting = {"state": State.STARVED.value, "cause": Cause.PEER.value}
    whole = f"sum without ({VERDICT}) ({pick(spans.record, **waiting)})"
    named = f"sum without (culprit) ({waits_time(parameters, spans.window)})"
    names = list_of(spans.record, "gpu", f">= {spans.share:g}", "instance", "job", **waiting)
    return node_fault(
        alert="DgxGpuStraggler",
        when=f"count without (gpu, uuid) ((({whole} - {named}) or {whole}) >= {spans.share:g})",
        hold="1m",
        summary="GPUs wait for a slow one",
        description=f"{COUNT} GPUs of {MACHINE} wait for a slow peer:{names} (limit "
        f"{spans.share:.0%} of the last {spans.window}, each).",
        do="The one that they wait for is not known here: compare the GPUs of their job, on other "
        f"hosts too. {peer_advice('the slowest')}",
        labels={"sign": "unnamed", "window": spans.window},
        hidden_by=BY_MISSING,
    )


def workload(parameters: RuleParameters) -> Group:
    """Return the rules on what the owner of the job can change."""
    limits = parameters.thresholds
    quarter = Span(gpu_time(parameters), limits.starved_window, limits.starved_share)
    hours, day = (
        Span(starved_time(parameters, window), window, share)
        for window, share in (
            (limits.starved_hours, limits.starved_hours_share),
            (limits.starved_day, limits.starved_day_share),
        )
    )
    with_gpm = f"last_over_time({activity.SM_ACTIVE}[{parameters.over('10m')}])"
    return Group(
        "dgx-workload",
        (
            starved(quarter, WARNING, parameters.over(quarter.window)),
            starved(hours, WARNING, parameters.over(hours.window)),
            starved(
                day,
                INFO,
                parameters.over(day.window),
                f" and on ({NODE}, gpu, uuid) {with_gpm}",
            ),
            starved_cause_unknown(parameters),
            exposed(quarter._replace(share=limits.exposed_share)),
            straggler(parameters, quarter),
            straggler(parameters, hours),
            unnamed_straggler(parameters, quarter),
            unnamed_straggler(parameters, hours),
            *hung(),
            slower(parameters),
            held(parameters),
            unused(parameters),
            throttled(parameters),
            link_saturated(parameters),
            disk_saturated(parameters),
        ),
        "Work: time that the GPUs lose",
        every=OFTEN,
    )
