"""Time that GPUs lose: waiting, communicating, throttled, held, and for a slow peer."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from agent.diagnosis.advice import ADVICE, OVERLAP, SUMMARIES, peer_advice
from agent.faults.model import (
    INFO,
    SAME_GPU,
    SAME_NODE,
    WARNING,
    Fault,
    HiddenBy,
    Look,
    Seen,
    gpu_fault,
    node_fault,
)
from agent.faults.promql import GPU as ONE_GPU
from agent.faults.promql import NODE, Condition, Recording, one, pick, spoken
from agent.faults.records import (
    VERDICT,
    gpu_time,
    share_of_gpu,
    starved_time,
    waits_share,
    waits_time,
)
from agent.faults.thresholds import RuleParameters
from agent.model import CAUSES, GPU_LABELS, Cause, Figure, GpuKey, Severity, State
from agent.sources import activity, gpu

BY_MISSING = (HiddenBy("DgxGpuMissing", SAME_NODE),)
"""A lost GPU hangs its job, and the others wait for it."""

HELD_OBSERVED = 0.75  # of the window: an agent that has just started has seen a coffee break


class Span(NamedTuple):
    """A window, the record of shares of state and cause over it, and the share that alerts."""

    record: Recording
    window: str
    share: float
    kind: str  # of its findings
    severity: Severity

    @property
    def known(self) -> str:
        """Name of the record of the share of all known causes together."""
        return f"instance_gpu:dgx_gpu_starved_seconds:known_ratio{self.window}"

    @property
    def first(self) -> str:
        """Name of the record of the cause that took most when the share was reached."""
        return f"instance_gpu_cause:dgx_gpu_starved_seconds:first{self.window}"


def quarter(parameters: RuleParameters) -> Span:
    limits = parameters.thresholds
    record = gpu_time(parameters)
    return Span(record, limits.starved_window, limits.starved_share, "starved", WARNING)


def long_spans(parameters: RuleParameters) -> tuple[Span, Span]:
    limits = parameters.thresholds
    hours, day = limits.starved_hours, limits.starved_day
    return (
        Span(
            starved_time(parameters, hours),
            *(hours, limits.starved_hours_share, "starved_hours", WARNING),
        ),
        Span(starved_time(parameters, day), day, limits.starved_day_share, "starved_day", INFO),
    )


def starved_records(parameters: RuleParameters, spans: Span) -> tuple[Recording, ...]:
    """Return the records of the known share of a window, and of that which alerts, with its first
    cause. The first cause stays while the share does: the alert neither restarts nor changes with
    it."""
    causes = pick(spans.record, state=State.STARVED, cause=f"!={Cause.UNKNOWN}")
    enough = f"{spans.known} >= {spans.share:g}"
    if spans.severity is INFO:  # if GPM reports shares to the point
        enough += f" and on ({ONE_GPU}) "
        enough += f"last_over_time({activity.SM_ACTIVE}[{parameters.over('10m')}])"
    most = f"topk by ({ONE_GPU}) (1, sum without (state) ({causes}))"
    before = f"last_over_time({spans.first}[{parameters.over('5m')}])"
    return (
        spans.record,
        Recording(spans.known, f"sum without ({VERDICT}) ({causes})"),
        Recording(
            spans.first,
            f"({enough}) * on ({ONE_GPU}) group_left (cause) "
            f"group by ({ONE_GPU}, cause) ({before} or on ({ONE_GPU}) {most})",
        ),
    )


def starved(parameters: RuleParameters, spans: Span) -> Iterator[Fault]:
    """A GPU waits for known causes, for so much of a window: a rule for each first cause, which
    names the first step, and one finding."""
    time = share_of_gpu(
        parameters, spans.window, state=State.STARVED.value, cause=f"!={Cause.UNKNOWN.value}"
    )
    usual = partial(
        gpu_fault,
        alert="DgxGpuStarved",
        severity=spans.severity,
        hold="1m",
        figure="share",
        unit="ratio",
        state=State.STARVED,
    )
    sentence = f"it waited for {{share:percent}} of the last {spoken(spans.window)} "
    sentence += f"(limit {spans.share:.0%}), most for "
    for cause, name in NAMES.items():
        yield usual(
            when=f'{spans.first}{{cause="{cause}"}}',
            labels={"window": spans.window, "cause": cause.value},
            summary=f"waits for {name}",
            sentence=(f"{sentence}{name}", "; nothing is broken: tell the job's owner"),
            do=ADVICE[State.STARVED, cause],
        )
    yield usual(
        kind=spans.kind,
        look=partial(_first_causes, time, spans.share, gpm=spans.severity is INFO),
        reads=time.asks,
        sentence=(sentence + "{cause}",),
        terms={"cause": lambda found: NAMES[Cause(found.names[0])]},
        do=lambda found: ADVICE[State.STARVED, Cause(found.names[0])],
    )


NAMES = {
    Cause.DISK: "the disk",
    Cause.NETWORK: "the network",
    Cause.CPU: "the CPU",
    Cause.HOST_THREAD: "its launching thread",
    Cause.PCIE: "PCIe",
    Cause.PEER: "a slow peer",
}


def _first_causes(
    time: Condition, least: float, machine: Look, *, gpm: bool = False
) -> Iterator[Seen]:
    """Yield the GPUs that waited so long, each with the cause that took most."""
    gpus: dict[GpuKey, dict[str, float]] = {}
    for row, share in time.rows(machine.samples).items():
        labels = dict(row)
        key = GpuKey(int(labels["gpu"]), labels["uuid"])
        gpus.setdefault(key, {})[labels["cause"]] = share
    for key, causes in sorted(gpus.items()):
        share = sum(causes.values())
        if share < least or (gpm and not machine.samples.value(activity.SM_ACTIVE, *key.labels)):
            continue
        first = max(sorted(causes), key=causes.__getitem__)
        named = (("cause", first),)
        yield Seen(key, "", (Figure("share", share, least, "ratio"),), (first,), labels=named)


def share_fault(
    kind: str, when: Condition, share: float, window: str, words: str, **more: Any
) -> Fault:
    """A GPU spends more than a share of a window in a state."""
    return gpu_fault(
        kind=kind,
        when=when >= share,
        figure="share",
        unit="ratio",
        sentence=(
            f"{words} for {{share:percent}} of the last {spoken(window)} (limit {share:.0%})",
        ),
        **more,
    )


def of_states(parameters: RuleParameters) -> Iterator[Fault]:
    """Faults of the time in a state: waiting without a known cause, or communicating."""
    limits, time = parameters.thresholds, gpu_time(parameters)
    window = limits.starved_window
    unknown = {"state": State.STARVED.value, "cause": Cause.UNKNOWN.value}
    share = share_fault
    yield share(
        "starved_unknown",
        share_of_gpu(parameters, window, **unknown).named(time, **unknown),
        *(limits.starved_share, window),
        words="it waited, cause unknown,",
        alert="DgxGpuStarved",
        severity=INFO,
        hold="1m",
        labels={"window": window},
        summary="starved, cause unknown",
        do=ADVICE[State.STARVED, Cause.UNKNOWN],
        state=State.STARVED,
    )
    sending = {"state": State.COMMUNICATING.value}
    exposed = share_of_gpu(parameters, window, **sending).named(time, **sending)
    yield share(
        "exposed",
        exposed.sum_without("state", "cause"),
        *(limits.exposed_share, window),
        words="it only exchanged data with other GPUs, and computed nothing,",
        alert="DgxExposedCommunication",
        severity=INFO,
        hold="1m",
        summary="only communicates",
        do=f"{OVERLAP}.",
        state=State.COMMUNICATING,
    )


def held_down(parameters: RuleParameters) -> Iterator[Fault]:
    """Clocks that are held down, and GPUs that an idle process holds."""
    limits, share = parameters.thresholds, share_fault
    window = limits.throttled_window
    time = gpu_time(parameters, window)
    for cause in CAUSES[State.THROTTLED]:
        pair = State.THROTTLED, cause
        labels = {"state": State.THROTTLED.value, "cause": cause.value}
        yield share(
            f"throttled_{cause}",
            share_of_gpu(parameters, window, **labels).named(time, **labels),
            *(limits.throttled_share, window),
            words=f"it was {SUMMARIES[pair]}",
            alert="DgxGpuThrottled",
            hold="1m",
            labels={"cause": cause.value},
            summary="throttled",
            do=ADVICE[pair],
            state=State.THROTTLED,
            hidden_by=(HiddenBy("DgxGpuHot", SAME_GPU, ('severity="critical"',)),),
        )
    yield share(
        "held",
        share_of_gpu(parameters, limits.held_window, HELD_OBSERVED, state=State.HELD.value),
        *(limits.held_share, limits.held_window),
        words="it was occupied by an idle process",
        alert="DgxGpuHeldIdle",
        severity=INFO,
        summary="occupied by an idle process",
        do=ADVICE[State.HELD, Cause.NONE],
        state=State.HELD,
    )


def single_gpus(parameters: RuleParameters) -> Recording:
    """Return the record of the index of each GPU that has exactly one."""
    info = one(f"last_over_time({gpu.INFO}[{parameters.over('10m')}])", *GPU_LABELS)
    number = f"count by ({NODE}, uuid) ({info}) == 1"
    return Recording(SINGLE, f"{info} and on ({NODE}, uuid) ({number})")


SINGLE = "instance_gpu:dgx_gpu_info:single"


def unnamed_time(parameters: RuleParameters, spans: Span) -> Recording:
    """Return the record of the share for which a GPU waits for a peer that is not known, or is not
    here."""
    waiting = pick(spans.record, state=State.STARVED, cause=Cause.PEER)
    whole = f"sum without ({VERDICT}) ({waiting})"
    named = f"sum without (culprit) ({waits_time(parameters, spans.window)})"
    name = f"instance_gpu:dgx_gpu_waits_for_unnamed_seconds:ratio{spans.window}"
    return Recording(name, f"({whole} - {named}) or {whole}")


def stragglers(parameters: RuleParameters, spans: Span) -> Iterator[Fault]:
    """The GPU that others of the machine wait for; GPUs that wait for an unknown or absent GPU."""
    waits, unnamed = waits_time(parameters, spans.window), unnamed_time(parameters, spans)
    over = f">= {spans.share:g}"
    number = f"count without (gpu, uuid) ({waits} {over})"
    named = f'label_replace({number}, "uuid", "$1", "culprit", "(.+)")'
    limit = f"each for over {spans.share:.0%} of the last {spoken(spans.window)}"
    yield gpu_fault(
        alert="DgxGpuStraggler",
        when=f"{named} * on ({NODE}, uuid) group_left (gpu) {SINGLE}",
        hold="1m",
        summary="keeps the other GPUs waiting",
        sentence=(f"{{gpus:GPU waits|GPUs wait}} for it, {limit}",),
        figure="gpus",
        do=peer_advice("this GPU"),
        labels={"sign": "named", "window": spans.window},
        hidden_by=BY_MISSING,
    )
    yield node_fault(
        alert="DgxGpuStraggler",
        when=f"count without (gpu, uuid) ({unnamed} {over})",
        hold="1m",
        summary="GPUs wait for a slow one",
        sentence=(f"{{gpus:GPU waits|GPUs wait}} for a slow GPU of their job, {limit}",),
        figure="gpus",
        do="Its place is not known: compare the GPUs of the job, on other hosts too. "
        + peer_advice("the slowest"),
        labels={"sign": "unnamed", "window": spans.window},
        hidden_by=BY_MISSING,
    )


def late_gpus(parameters: RuleParameters, spans: Span) -> Iterator[Fault]:
    """The same as findings: the GPU that others wait for, or the number of those that wait."""
    limit = f"each for over {spans.share:.0%} of the last {spoken(spans.window)}"
    time = waits_share(parameters, spans.window)
    peer = {"state": State.STARVED.value, "cause": Cause.PEER.value}
    waiting = share_of_gpu(parameters, spans.window, **peer)
    kind = spans.kind.replace("starved", "straggler")
    usual = partial(
        Fault,
        alert="DgxGpuStraggler",
        hold="1m",
        state=State.STARVED,
        labels={"window": spans.window},
        hidden_by=BY_MISSING,
    )
    yield usual(
        kind=kind,
        look=partial(_waited_for, time, spans.share),
        reads=time.asks,
        sentence=(f"{{gpus:GPU waits|GPUs wait}} for GPU {{0}}, {limit}",),
        do=peer_advice("the GPU that others wait for"),
    )
    yield usual(
        kind=f"{kind}_unnamed",
        look=partial(_waiting, time, waiting, spans.share),
        reads=time.asks | waiting.asks,
        sentence=(f"{{gpus:GPU waits|GPUs wait}} for a slow GPU of their job, {limit}",),
        do=peer_advice("the slowest GPU of the job, on other hosts too"),
    )


def _waiting(named: Condition, peer: Condition, least: float, machine: Look) -> Iterator[Seen]:
    """Yield the number of GPUs that wait for a peer that is not known."""
    known: dict[str, float] = {}
    for row, share in named.rows(machine.samples).items():
        uuid = dict(row)["uuid"]
        known[uuid] = known.get(uuid, 0.0) + share
    rows = ((dict(row)["uuid"], share) for row, share in peer.rows(machine.samples).items())
    number = sum(share - known.get(uuid, 0.0) >= least for uuid, share in rows)
    if number:
        yield Seen(figures=(Figure("gpus", number, None, "count"),))


def _waited_for(time: Condition, least: float, machine: Look) -> Iterator[Seen]:
    """Yield the GPUs that others of this machine wait for, with the number of those."""
    counts: dict[str, int] = {}
    for row, share in time.rows(machine.samples).items():
        if share >= least:
            culprit = dict(row)["culprit"]
            counts[culprit] = counts.get(culprit, 0) + 1
    indices = {labels["uuid"]: labels["gpu"] for labels in machine.samples.labelled(gpu.INFO)}
    for uuid, number in sorted(counts.items()):
        figures = (Figure("gpus", number, None, "count"),)
        key = GpuKey(int(indices[uuid]), uuid) if uuid in indices else None
        yield Seen(key, "", figures, (indices.get(uuid, uuid),))
