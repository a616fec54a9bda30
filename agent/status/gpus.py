"""The status of a GPU at a tick: its verdict, lost time, figures, and processes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from agent import model
from agent.diagnosis.advice import ALERTS, OF_PAIR, OF_PEER, SUMMARIES, advice, severity
from agent.diagnosis.state_seconds import LEADER_WINDOW
from agent.diagnosis.thresholds import Thresholds
from agent.faults.findings import action, by_kind
from agent.faults.hiding import alert_labels
from agent.faults.monitoring import ABSENT
from agent.faults.watch import ActiveFault
from agent.jobs.job import PEER, Job, WatchedJobs, percent
from agent.model import Cause, Fact, GpuIdentity, Pair, Reason, Snapshot, State, Verdict
from agent.series import SampleStore
from agent.sources import activity
from agent.sources import instances as mig
from agent.status.findings import grave, is_fault
from agent.status.gpu_figures import figures, instances, largest, processes
from agent.status.history import BESIDE, COSTS, SPAN, History
from agent.status.jobs import hang_action
from agent.status.model import FindingStatus, GpuFigures, GpuStatus, Level
from agent.status.source import StatusSource
from agent.status.words import LEVEL, UNANSWERED, began, fact_text, pair_name

UNKNOWN: Pair = (State.STARVED, Cause.UNKNOWN)

STANDS = 20.0
"""Seconds after which the current loss is shown, even if an earlier loss took more time."""

SETTLES = 30.0
"""Seconds of a job, or of the agent, before which only a current loss of a known cause is shown:
what a job does first differs from what it does later."""

UNCLEAR = "inactive, cause not known yet"

BASIS = {
    "gpm": "Judged by GPM: activity of the engines and of the multiprocessors.",
    "nvml": "Judged by NVML's utilization, which counts copies and spinning too, and by power.",
}


SILENT = "the driver does not respond"


class Loss(NamedTuple):
    """A loss of GPU time in the last minutes (`Judged.window`): its state and cause, its share of
    that time, and the seconds since it began."""

    pair: Pair
    share: float
    seconds: float


class Judged(NamedTuple):
    """The state of a GPU in a tick. `pair` is its state and cause. If they are unknown, `reason`
    and `why` explain this. `beside` is the largest recent loss, or None if that is small."""

    identity: GpuIdentity
    pair: Pair | None
    seconds: float  # duration of the state, or time since the GPU was lost
    reason: Reason | None = None
    why: str = ""
    detail: str = ""  # details that `why` omits
    sound: bool = False  # the lack of a verdict is expected
    verdict: Verdict | None = None
    job: Job | None = None
    share: float | None = None  # share of the window spent in `pair`
    beside: Loss | None = None
    window: int = 0  # length of the window in seconds; 0 for the last 10 s
    unclear: bool = False  # time is lost, but the window is too short to say to what
    do: str = ""

    @property
    def number(self) -> int:
        return self.identity.index

    @property
    def lost(self) -> bool:
        return self.reason is Reason.LOST

    @property
    def waits_for(self) -> int | None:
        late = self.verdict.waits_for if self.verdict else None
        return late.index if late else None

    @property
    def loss(self) -> Pair | None:
        """The state and cause to which the GPU's first step applies."""
        return self.shown(self.beside.pair if self.beside else None)

    def stood(self, pair: Pair | None) -> float:
        """Return the number of seconds since the current state began. If `pair` is not the current
        state but the largest recent loss, return the number of seconds since that loss began."""
        past = self.pair != pair and self.beside and self.beside.pair == pair
        return self.beside.seconds if past and self.beside else self.seconds

    def shown(self, main: Pair | None) -> Pair | None:
        """Return the state and cause to show: the current loss if it has lasted 20 s, or else the
        largest recent loss. If no time is lost now, return the current state, unless the recent
        loss is `main`, usually the largest recent loss of all such GPUs."""
        if self.pair is None or self.beside is None:
            return self.pair
        if not costs(self.pair):
            return main if self.beside.pair == main else self.pair
        stands = self.seconds >= STANDS or not costs(self.beside.pair)
        return self.pair if stands else self.beside.pair


class SeenTick(NamedTuple):
    """Data about a tick, shared by the functions that build the parts of the status."""

    snapshot: Snapshot
    source: StatusSource
    jobs: WatchedJobs
    silent: bool  # the driver does not respond, so no figures are shown
    gpus: Sequence[Judged]
    findings: Sequence[FindingStatus]
    of_gpus: Mapping[str, tuple[FindingStatus, ...]]  # by UUID
    full: bool  # a link is at its limit


def costs(pair: Pair) -> bool:
    """Return whether time in this state counts as lost."""
    return pair[0] in model.LOST_STATES


def judged(
    source: StatusSource, history: History, snapshot: Snapshot, jobs: WatchedJobs
) -> list[Judged]:
    """Return the state of every GPU, sorted by index."""
    inventory = source.inventory
    on = {gpu.uuid: job for job in jobs.running for gpu in job.receipt.gpus}
    divided = {labels["uuid"] for labels in source.samples.labelled(mig.INSTANCE_INFO)}
    found = []
    for one in sorted((*inventory.gpus, *inventory.unmet), key=lambda one: one.index):
        verdict, job = snapshot.verdicts.get(one.key), on.get(one.uuid)
        if one.uuid in inventory.lost:
            stood = snapshot.at - inventory.lost[one.uuid]
            do = str(by_kind(source.thresholds)["gpus_missing"].do)
            found.append(Judged(one, None, stood, Reason.LOST, "lost", job=job, do=do))
        elif verdict is None:
            kept = history.gpus.get(one.uuid)
            stood = snapshot.at - max(kept.judged, history.oldest) if kept else 0.0
            reason, detail = _why_not(one, source.samples, snapshot)
            lacks = Judged(one, None, stood, reason, "cannot be judged", job=job, detail=detail)
            if one.uuid in divided:
                lacks = Judged(one, None, stood, Reason.MIG, "divided by MIG", "", True, job=job)
            found.append(lacks)
        else:
            found.append(_judged(one, verdict, job, history, source))
    steps: dict[int | None, str] = {gpu.number: gpu.do for gpu in found}
    late = {gpu.number: gpu.waits_for for gpu in found if gpu.loss == PEER}
    of = {n: OF_PEER.format(one, step) for n, one in late.items() if (step := steps.get(one))}
    return [gpu._replace(do=of.get(gpu.number, gpu.do)) for gpu in found]


def _judged(
    gpu: GpuIdentity, verdict: Verdict, job: Job | None, history: History, source: StatusSource
) -> Judged:
    held = source.diagnosis.configuration.current[Thresholds].held_after + LEADER_WINDOW
    low = (p for p, n in verdict.shares.items() if p[0] is State.THROTTLED and n >= COSTS)
    pair = next(low, verdict.pair)
    hang = job.hang if job and pair[0] is State.HUNG else None
    shares, known = window(history, gpu.uuid, verdict, job)
    kept, now = history.gpus.get(gpu.uuid), source.samples.now
    longest = job.receipt.watched if job else now

    def large(loss: Pair, least: float) -> float:
        first = kept.large.get((loss, least), (now,))[0] if kept else now
        return min(now - first, longest)  # exclude the previous job

    stood = large(pair, COSTS) if pair != verdict.pair else min(now - verdict.since, longest)
    lost = None if pair[0] in (State.IDLE, State.HELD, State.HUNG) else costly(shares)
    early = known < max(SETTLES, held if lost and lost[0] == UNKNOWN else 0.0)
    beside = Loss(*lost, large(lost[0], BESIDE)) if lost and not early else None
    found = Judged(
        gpu,
        pair,
        max(hang.seconds, stood) if hang else stood,
        verdict=verdict,
        job=job,
        share=shares.get(pair),
        beside=beside,
        window=known,
        unclear=early and bool(lost) and (pair == UNKNOWN or not costs(pair)),
    )
    return found._replace(do="" if found.unclear else first_step(found, found.loss or pair))


def first_step(gpu: Judged, loss: Pair) -> str:
    """Return the advice that all outputs show for this loss (a state and cause) on this GPU."""
    if loss[0] is State.HUNG and gpu.job and gpu.job.hang:
        return hang_action(gpu.job.hang)
    return advice(gpu.verdict, loss) if gpu.verdict else ""


def finding_step(fault: ActiveFault, gpus: Mapping[str, Judged]) -> str:
    """Return the first step for a fault. For lost time, it depends on the cause of the loss."""
    finding, of = fault.finding, fault.finding.fault
    gpu = gpus.get(finding.gpu.uuid) if finding.gpu else None
    if not gpu or not gpu.verdict or not of.state or of.alert != ALERTS[of.state][0]:
        return action(finding)
    cause, shares = alert_labels(finding).get("cause"), gpu.verdict.shares
    pairs = [pair for pair in OF_PAIR if pair[0] is of.state and cause in (None, pair[1])]
    pair = max(pairs, key=lambda pair: shares.get(pair, 0.0))
    return gpu.do if pair == gpu.loss else first_step(gpu, pair)


def window(
    history: History, uuid: str, verdict: Verdict, job: Job | None
) -> tuple[Mapping[Pair, float], int]:
    """Return a GPU's time shares by state and cause, and the seconds with a known state that they
    cover: the last 15 minutes or, if shorter, those of its job. If 0, they cover the last 10 s."""
    if (kept := history.gpus.get(uuid)) is not None:
        watched = job.receipt.watched if job else SPAN
        shares, known = kept.window(history.newest or 0, max(1, int(watched)))
        if known:
            return shares, known
    return verdict.shares, 0


def costly(shares: Mapping[Pair, float]) -> tuple[Pair, float] | None:
    """Return the state and cause of the largest loss, and its share. Return None if it is small."""
    lost = [
        (share, pair)
        for pair, share in shares.items()
        if pair[0] in (State.STARVED, State.THROTTLED, State.COMMUNICATING)
        and share >= BESIDE * (2 if pair[0] is State.COMMUNICATING else 1)
    ]
    share, pair = max(lost, default=(0.0, None))
    return (pair, share) if pair else None


def _why_not(gpu: GpuIdentity, samples: SampleStore, snapshot: Snapshot) -> tuple[Reason, str]:
    absence = samples.absence(activity.ACTIVITY, *gpu.key.labels)
    absence = absence or snapshot.unjudged.get(gpu.key)
    if absence is None:
        return (Reason.UNKNOWN, "") if gpu.uuid else (Reason.NOT_ANSWERING, SILENT)
    late = absence.reason in (Reason.STALLED, Reason.NOT_ANSWERING)
    no_value = f"no activity value, {ABSENT[absence.reason]}"
    words = SILENT if late else no_value
    detail = absence.detail if absence.reason is not Reason.NOT_ANSWERING else ""
    return absence.reason, f"{words} ({detail})" if detail else words


def gpu_statuses(seen: SeenTick) -> Iterator[GpuStatus]:
    """Yield the status of each GPU, sorted by index."""
    samples, jobs = seen.source.samples, seen.jobs.running
    on, divided = processes(seen.snapshot), instances(samples)
    named = {pid: job.receipt.name for job in jobs if job.receipt.name for pid in job.pids}
    for gpu in seen.gpus:
        uuid = gpu.identity.uuid
        who = on.get(uuid, ()) if not gpu.lost else ()
        yield replace(
            _gpu_status(gpu, seen),
            figures=GpuFigures() if seen.silent else figures(gpu.identity.key.labels, samples),
            who=largest(who, named),
            processes=who,
            instances=divided.get(uuid, ()),
        )


def _gpu_status(gpu: Judged, seen: SeenTick) -> GpuStatus:
    """Return the status of a GPU without its figures, processes, and instances."""
    key, at = gpu.identity.key, seen.snapshot
    whole, told = not (seen.silent or gpu.lost), gpu.lost or not seen.silent
    verdict = gpu.verdict if whole else None
    shares = verdict.shares if verdict else {}
    own = seen.of_gpus.get(key.uuid, ())
    level = LEVEL[severity(gpu.pair)] if gpu.pair and whole and not gpu.unclear else None
    text = _text(gpu)
    hang = gpu.job.hang if gpu.job else None
    awaited = next((c for c in hang.culprits if c.gpu == key), None) if hang else None
    return GpuStatus(
        gpu=gpu.number,
        uuid=key.uuid,
        model=gpu.identity.model,
        lost=gpu.lost,
        faulty=not gpu.lost and any(map(is_fault, own)),
        level=Level.CRITICAL if gpu.lost or grave(own) else level,
        state=gpu.pair[0] if gpu.pair and whole else None,
        cause=gpu.pair[1] if gpu.pair and whole else None,
        text=text if whole or gpu.lost else UNANSWERED,
        since=began(at, gpu.seconds) if verdict or gpu.lost else None,
        gaps_seconds=round(verdict.gaps) if verdict else 0,
        why=(*reasons(gpu), *slowed(gpu)) if verdict or (told and gpu.pair is None) else (),
        doubts=tuple(map(fact_text, verdict.doubts)) if verdict else (),
        do=gpu.do if gpu.do and told and gpu.do not in {one.do for one in own} else None,
        note=f"the others wait for its process, pid {awaited.pid}" if awaited else None,
        basis=BASIS[verdict.quality] if verdict else None,
        confidence=round(verdict.confidence, 2) if verdict else None,
        waits_for=gpu.waits_for if verdict else None,
        shares={pair_name(p): round(n, 4) for p, n in shares.items() if n},
        findings=tuple(one.id for one in own),
        job=gpu.job.receipt.id if gpu.job else None,
    )


def reasons(gpu: Judged) -> tuple[str, ...]:
    """Return texts with the facts that support a GPU's verdict."""
    facts = _facts(gpu.verdict, gpu.pair) if gpu.verdict and gpu.pair else ()
    return tuple(filter(None, (*map(fact_text, facts), gpu.detail)))


def slowed(gpu: Judged) -> tuple[str, ...]:
    """Return texts about time lost to low clocks, unless the current state is `throttled`."""
    if gpu.verdict is None or gpu.pair is None or gpu.pair[0] is State.THROTTLED:
        return ()
    return tuple(
        ": ".join((f"{SUMMARIES[pair]} {percent(share)} of the time now", *told))
        for pair, share in gpu.verdict.shares.items()
        if pair[0] is State.THROTTLED and share >= BESIDE
        for told in [map(fact_text, _facts(gpu.verdict, pair))]
    )


def _facts(verdict: Verdict, pair: Pair) -> Sequence[Fact]:
    return verdict.evidence if pair == verdict.pair else verdict.of_losses.get(pair, ())


def _text(gpu: Judged) -> str:
    """Return a text about a GPU's state, for example `starved by disk` or `waiting for GPU 1`."""
    if gpu.pair is None:
        return gpu.why
    late = gpu.waits_for if gpu.pair[1] is Cause.PEER else None
    return summary(gpu.pair, [gpu]) if late is None else f"waiting for GPU {late}"


def summary(pair: Pair, gpus: Iterable[Judged]) -> str:
    """Return the words for a state and cause of GPUs. They say so if too little is known yet."""
    if not any(gpu.unclear for gpu in gpus):
        return SUMMARIES[pair]
    return UNCLEAR if pair == UNKNOWN else f"{SUMMARIES[pair]} so far"
