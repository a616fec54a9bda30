"""Alerts for the owner of the job: time that the GPUs lose."""

from collections.abc import Mapping
from typing import NamedTuple

from agent.diagnosis import accounting, job_watch
from agent.diagnosis.advice import (
    ADVICE,
    CHECKPOINT,
    READ_FASTER,
    SUMMARIES,
    hang_advice,
    peer_advice,
)
from agent.faults import places
from agent.faults.model import (
    CRITICAL,
    INFO,
    SAME_GPU,
    SAME_NODE,
    WARNING,
    Fault,
    Group,
    HiddenBy,
    gpu_fault,
    node_fault,
)
from agent.faults.promql import NODE, Recording, one, pick
from agent.faults.records import (
    OFTEN,
    VERDICT,
    gpu_share,
    gpu_time,
    saturation,
    slowdown,
    starved_time,
    waits_time,
)
from agent.faults.templates import (
    COUNT,
    GPU,
    SHARE,
    by_label,
    either,
    for_each,
    list_of,
    series,
    speed_of,
)
from agent.faults.templates import NODE as MACHINE
from agent.faults.thresholds import RuleParameters
from agent.limits import paths
from agent.model import CAUSES, GPU_LABELS, Cause, Severity, State
from agent.sources import activity, allocation, disk, gpu, process

LINKS = "=~nvlink|pcie|infiniband|network"
ONE_LINK = "=~.+:.+"
"""The device of one NVLink among several is gpu0:3, that of all of them together gpu0."""

CURES = {
    "nvlink": ADVICE[State.COMMUNICATING, Cause.NVLINK],
    "pcie": ADVICE[State.STARVED, Cause.PCIE],
    "infiniband": ADVICE[State.COMMUNICATING, Cause.INFINIBAND],
    "network": "Use more ports, or move less: read local copies, compress, save less often.",
}


def _text(parameters: RuleParameters, what: str) -> str:
    limits = parameters.thresholds
    return (
        f"{what} of {{{{ $labels.instance }}}} was full for {SHARE} of the last "
        f"{limits.saturated_window} (limit {limits.saturated_share:.0%} of the time; it can carry "
        f"{speed_of(paths.LIMIT)})."
    )


def link_saturated(parameters: RuleParameters) -> Fault:
    """A wire is full. NVLink only where communication takes time: an all-reduce behind the kernels
    costs nothing. If all NVLinks of a GPU together are full, they are not reported one by one."""
    full = parameters.thresholds.saturated_share
    every = pick(saturation(parameters), path=LINKS)
    nvlink = pick(saturation(parameters), path="nvlink")
    sending = {"state": State.COMMUNICATING, "cause": Cause.NVLINK}
    costs = (
        f"{pick(gpu_time(parameters), **sending)} >= {parameters.thresholds.starved_hours_share:g}"
    )
    together = pick(saturation(parameters), path="nvlink", device="!~.+:.+")
    alone = pick(saturation(parameters), path="nvlink", device=ONE_LINK)
    join = "instance, job, uuid, direction"
    return Fault(
        alert="DgxLinkSaturated",
        when=f"{every} >= {full:g} unless ({alone} and on ({join}) ({together} >= {full:g})) "
        f"unless ({nvlink} unless on ({NODE}, gpu, uuid) ({costs}))",
        hold="1m",
        summary="link at its limit",
        description=_text(
            parameters,
            "{{ $labels.path }} {{ $labels.device }} ({{ $labels.direction }})"
            "{{ with $labels.uuid }} of {{ . }}{{ end }}",
        ),
        do=by_label("path", CURES),
        place=places.PATH,
    )


def disk_saturated(parameters: RuleParameters) -> Fault:
    """A disk or array is full."""
    full = parameters.thresholds.saturated_share
    return Fault(
        alert="DgxDiskSaturated",
        when=f"{pick(saturation(parameters), path='disk')} >= {full:g}",
        hold="1m",
        summary="disk at its limit",
        description=_text(parameters, "Disk {{ $labels.device }} ({{ $labels.direction }})"),
        do=by_label(
            "direction",
            {"read": READ_FASTER, "write": CHECKPOINT, "total": ADVICE[State.STARVED, Cause.DISK]},
        ),
        place=places.PATH,
    )


BY_MISSING = (HiddenBy("DgxGpuMissing", SAME_NODE),)
"""A GPU that is lost hangs its job, and the others wait for it."""

LASTS = "2m"  # the least duration of a hang: a lost GPU is detected by then
_HUNG, _BUSY = (pick(accounting.STATE, state=state) for state in (State.HUNG, State.BUSY))


def hung() -> tuple[Fault, Fault]:
    """A job that stands: with the process that it waits for where that is known, else by GPUs."""
    named = hang_advice("{{ with $labels.pid }}pid {{ . }}{{ else }}each rank{{ end }}")
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
                f" on {GPU} is stopped, or sleeps while the others spin."
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
        do="See when it slowed down (/api/v1/jobs), and what changed then on the board of the GPU.",
    )


TARGET = ("instance", "job")
ONE = (*TARGET, "uuid")
WORTH_NAMING = 0.01  # of the time: a cause that takes less is none to work on

HELD_OBSERVED = 0.75  # of the window: an agent that has just started has seen a coffee break

KNOWN = {"state": State.STARVED.value, "cause": f"!={Cause.UNKNOWN.value}"}


class Span(NamedTuple):
    """A window, the record of shares of state and cause over it, and the share that alerts."""

    record: Recording
    window: str
    share: float


def starved(spans: Span, severity: Severity, over: str, only: str = "") -> Fault:
    """A GPU waits for what is known, for so much of a window, which is `over` in PromQL; `only`
    narrows it to some GPUs."""
    known = f"sum without ({VERDICT}) ({pick(spans.record, **KNOWN)})"
    only = f" and on ({NODE}, gpu, uuid) {only}" if only else ""
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
        cause.value: f" {SUMMARIES[state, cause][0].upper()}{SUMMARIES[state, cause][1:]} for "
        f"{{{{ .Value | humanizePercentage }}}}: {(cures | {Cause.DISK: of_disk})[cause]}"
        for cause in CAUSES[state]
        if cause is not Cause.UNKNOWN
    }
    return for_each(query, ONE, by_label("cause", texts, of=".Labels"))


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
        do="Ask the owner of the job to overlap communication with work, or to communicate less.",
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


def held_down(parameters: RuleParameters) -> tuple[Fault, Fault]:
    """A process keeps a GPU and does nothing; or something holds the clocks down, which does not
    mean running at the power limit at full clocks."""
    limits, causes = parameters.thresholds, CAUSES[State.THROTTLED]
    held = gpu_share(parameters, limits.held_window, least=HELD_OBSERVED, state=State.HELD)
    throttled = gpu_share(parameters, limits.throttled_window, state=State.THROTTLED)
    why = by_label("cause", {c.value: SUMMARIES[State.THROTTLED, c] for c in causes})
    return (
        gpu_fault(
            alert="DgxGpuHeldIdle",
            when=f"{held} >= {limits.held_share:g}",
            severity=INFO,
            summary="occupied by an idle process",
            description=f"{GPU} was occupied by an idle process for {SHARE} of the last "
            f"{limits.held_window} (limit {limits.held_share:.0%}).",
            do=ADVICE[State.HELD, Cause.NONE],
        ),
        gpu_fault(
            alert="DgxGpuThrottled",
            when=f"{throttled} >= {limits.throttled_share:g}",
            hold="1m",
            summary="throttled",
            description=f"{GPU} was {why} for {SHARE} of the last {limits.throttled_window} (limit "
            f"{limits.throttled_share:.0%}).",
            do=by_label("cause", {c.value: ADVICE[State.THROTTLED, c] for c in causes}),
            hidden_by=(HiddenBy("DgxGpuHot", SAME_GPU, ('severity="critical"',)),),
        ),
    )


def unused(parameters: RuleParameters) -> Fault:
    """A job was given a GPU and uses it by no process, not even by one that is not listed here."""
    window, at = parameters.thresholds.unused_window, f"on ({NODE}, gpu, uuid)"
    return gpu_fault(
        alert="DgxGpuAllocatedUnused",
        when=f"{process.PROCESSES} < 1 unless {at} {_BUSY} > 0 and {at} {allocation.ALLOCATED} > 0",
        severity=INFO,
        hold=window,
        summary="given to a job that does not use it",
        description=f"{GPU} is given to a job that has had {{{{ $value }}}} processes on it for "
        f"{window} (limit {window}).",
        do="Ask the owner of the job to request fewer GPUs.",
    )


def straggler(parameters: RuleParameters, spans: Span) -> Fault:
    """The GPU that others of the machine wait for, as the agent names it."""
    waits, over = waits_time(parameters, spans.window), f">= {spans.share:g}"
    number = f"count without (gpu, uuid) ({waits} {over})"
    info = one(f"last_over_time({gpu.INFO}[{parameters.over('10m')}])", *GPU_LABELS)
    single = f"{info} and on ({NODE}, uuid) count by ({NODE}, uuid) ({info}) == 1"
    named = f'label_replace({number}, "uuid", "$1", "culprit", "(.+)")'
    names = list_of(waits, "gpu", over, *TARGET, "culprit")
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
    held, throttled = held_down(parameters)
    with_gpm = f"last_over_time({activity.SM_ACTIVE}[{parameters.over('10m')}])"
    return Group(
        "dgx-workload",
        (
            starved(quarter, WARNING, parameters.over(quarter.window)),
            starved(hours, WARNING, parameters.over(hours.window)),
            starved(day, INFO, parameters.over(day.window), with_gpm),
            starved_cause_unknown(parameters),
            exposed(quarter._replace(share=limits.exposed_share)),
            straggler(parameters, quarter),
            straggler(parameters, hours),
            unnamed_straggler(parameters, quarter),
            unnamed_straggler(parameters, hours),
            *hung(),
            slower(parameters),
            held,
            unused(parameters),
            throttled,
            link_saturated(parameters),
            disk_saturated(parameters),
        ),
        "Work: time that the GPUs lose",
        every=OFTEN,
    )
