"""The status of a GPU at a tick: verdict over a time window, figures, and processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from agent.diagnosis.advice import ALERTS, OF_PAIR, SUMMARIES, advice, severity
from agent.diagnosis.disclosure import SOURCES
from agent.faults.findings import action, by_kind
from agent.faults.hiding import alert_labels
from agent.faults.monitoring import ABSENT
from agent.faults.watch import ActiveFault
from agent.jobs.job import Job
from agent.model import (
    LOST_STATES,
    Cause,
    GpuIdentity,
    Metric,
    Pair,
    Reason,
    Snapshot,
    State,
    Verdict,
)
from agent.series import SampleStore
from agent.sources import activity, clocks, memory, power, process, temperature, workload
from agent.sources import instances as mig
from agent.status.findings import grave
from agent.status.history import SETTLED, SPAN, History
from agent.status.jobs import hang_action
from agent.status.model import (
    FindingStatus,
    GpuFigures,
    GpuStatus,
    InstanceStatus,
    Level,
    ProcessStatus,
    Why,
)
from agent.status.source import StatusSource
from agent.status.words import LEVEL, UNANSWERED, began, fact_text, pair_name

COSTS = 0.25
"""Minimum share of time lost to reduced clocks that is reported even if work takes more time."""

BESIDE = 0.06
"""Minimum share of time lost to a cause that the headline reports for a working GPU. The minimum is
doubled for exposed communication, which takes a few per cent in healthy jobs."""

STANDS = 20.0
"""Seconds after which a state that loses time is shown, even if an earlier state lost more."""

SILENT = "it no longer answers"

BASIS = {
    "gpm": "Judged by GPM: activity of the engines and of the multiprocessors.",
    "nvml": "Judged by NVML's utilization, which counts copies and spinning too, and by power.",
}


class Judged(NamedTuple):
    """The verdict on a GPU. Without a `pair`, `why` gives the reason as text and `reason` as a
    code. `beside` is the largest loss in the window and its share, or None if the loss is small."""

    identity: GpuIdentity
    pair: Pair | None
    seconds: float  # duration of the state, or since the GPU was lost
    reason: Reason | None = None
    why: str = ""
    detail: str = ""  # details that `why` omits
    sound: bool = False  # expected to have no verdict
    verdict: Verdict | None = None
    job: Job | None = None
    share: float | None = None  # of the window spent in `pair`
    beside: tuple[Pair, float] | None = None
    window: int = 0  # length of the window in seconds; 0 for the last 10 s
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

    def shown(self, main: Pair | None) -> Pair | None:
        """Return the pair to display: the largest loss in the window, unless it is small or the
        current loss has lasted long. A working GPU shows a loss only if it is the `main` loss."""
        if self.pair is None or self.beside is None or self.pair[0] in (State.HUNG, State.HELD):
            return self.pair
        if not costs(self.pair):
            return main if self.beside[0] == main else self.pair
        stands = self.seconds >= STANDS or not costs(self.beside[0])
        return self.pair if stands else self.beside[0]


class SeenTick(NamedTuple):
    """Data of a tick that all parts of the status share."""

    snapshot: Snapshot
    source: StatusSource
    silent: bool  # the driver does not respond, so no figures are shown
    gpus: Sequence[Judged]
    findings: Sequence[FindingStatus]
    of_gpus: Mapping[str, tuple[FindingStatus, ...]]  # by UUID
    full: bool  # a link is at its limit


def costs(pair: Pair) -> bool:
    """Return whether this state counts as lost time."""
    return pair[0] in LOST_STATES


def judged(source: StatusSource, history: History, snapshot: Snapshot) -> list[Judged]:
    """Return every GPU with its verdict, sorted by index."""
    inventory = source.inventory
    on = {gpu.uuid: job for job in source.jobs().running for gpu in job.receipt.gpus}
    divided = {labels["uuid"] for labels in source.samples.labelled(mig.INSTANCE_INFO)}
    found = []
    for one in sorted(inventory.gpus, key=lambda one: one.index):
        verdict, job = snapshot.verdicts.get(one.key), on.get(one.uuid)
        if one.uuid in inventory.lost:
            stood = snapshot.at - inventory.lost[one.uuid]
            do = str(by_kind()["gpus_missing"].do)
            found.append(Judged(one, None, stood, Reason.LOST, "lost", SILENT, job=job, do=do))
        elif verdict is None:
            kept = history.gpus.get(one.uuid)
            looked = snapshot.at - history.oldest
            stood = min(kept.unjudged(snapshot.at), looked) if kept else 0.0
            reason, detail = _why_not(one, source.samples, snapshot)
            lacks = Judged(one, None, stood, reason, "cannot be judged", job=job, detail=detail)
            if one.uuid in divided:
                lacks = Judged(one, None, stood, Reason.MIG, "divided by MIG", "", True, job=job)
            found.append(lacks)
        else:
            found.append(_judged(one, verdict, job, history, snapshot.at))
    return found


def _judged(
    gpu: GpuIdentity, verdict: Verdict, job: Job | None, history: History, now: float
) -> Judged:
    low = (p for p, n in verdict.shares.items() if p[0] is State.THROTTLED and n >= COSTS)
    pair = next(low, verdict.pair)
    hang = job.hang if job and pair[0] is State.HUNG else None
    stood = now - verdict.since
    if job:
        stood = min(stood, job.receipt.watched)  # excludes the previous job
    shares, known = window(history, gpu.uuid, verdict, job)
    beside = None if pair[0] is State.IDLE else _costly(shares)
    found = Judged(
        gpu,
        pair,
        max(hang.seconds, stood) if hang else stood,
        verdict=verdict,
        job=job,
        share=shares.get(pair),
        beside=beside,
        window=known,
    )
    return found._replace(do=first_step(found, found.shown(beside[0] if beside else None) or pair))


def first_step(gpu: Judged, loss: Pair) -> str:
    """Return the first step against a loss of this GPU, used wherever the loss is displayed."""
    if loss[0] is State.HUNG and gpu.job and gpu.job.hang:
        return hang_action(gpu.job.hang)
    return advice(gpu.verdict, loss) if gpu.verdict else ""


def finding_step(fault: ActiveFault, gpus: Mapping[str, Judged]) -> str:
    """Return the first step for a fault; for lost time, the step for its largest cause."""
    finding, state = fault.finding, fault.fault.state
    gpu = gpus.get(finding.gpu.uuid) if finding.gpu else None
    if not gpu or not gpu.verdict or not state or fault.fault.alert != ALERTS[state][0]:
        return action(finding)
    cause, shares = alert_labels(fault.fault, finding).get("cause"), gpu.verdict.shares
    pairs = [pair for pair in OF_PAIR if pair[0] is state and cause in (None, pair[1])]
    return first_step(gpu, max(pairs, key=lambda pair: shares.get(pair, 0.0)))


def window(
    history: History, uuid: str, verdict: Verdict, job: Job | None
) -> tuple[Mapping[Pair, float], int]:
    """Return the time shares of the last 15 minutes, or since the job began if later, and the
    number of known seconds. If none are known, return the shares of the last 10 s and 0."""
    if (kept := history.gpus.get(uuid)) is not None:
        watched = job.receipt.watched if job else SPAN
        shares, known = kept.window(history.newest or 0, max(1, int(watched)))
        if known:
            return shares, known
    return verdict.shares, 0


def _costly(shares: Mapping[Pair, float]) -> tuple[Pair, float] | None:
    """Return the state that lost the largest share of the window, and the share."""
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
        return Reason.UNKNOWN, ""
    late = absence.reason in (Reason.STALLED, Reason.NOT_ANSWERING)
    words = (
        "the driver does not respond" if late else f"no activity value, {ABSENT[absence.reason]}"
    )
    detail = absence.detail if absence.reason is not Reason.NOT_ANSWERING else ""
    return absence.reason, f"{words} ({detail})" if detail else words


def gpu_statuses(seen: SeenTick) -> Iterator[GpuStatus]:
    """Yield the status of each GPU."""
    samples, jobs = seen.source.samples, seen.source.jobs().running
    on, divided = processes(seen.snapshot), instances(samples)
    named = {pid: job.receipt.name for job in jobs if job.receipt.name for pid in job.pids}
    for gpu in seen.gpus:
        uuid = gpu.identity.uuid
        who = on.get(uuid, ()) if not gpu.lost else ()
        yield replace(
            _gpu_status(gpu, seen),
            figures=GpuFigures() if seen.silent else _figures(gpu.identity.key.labels, samples),
            who=_who(who, named),
            processes=who,
            instances=divided.get(uuid, ()),
        )


def _gpu_status(gpu: Judged, seen: SeenTick) -> GpuStatus:
    """Return the fields that follow from the verdict and the findings."""
    key, at = gpu.identity.key, seen.snapshot
    whole, told = not (seen.silent or gpu.lost), gpu.lost or not seen.silent
    verdict = gpu.verdict if whole else None
    own = seen.of_gpus.get(key.uuid, ())
    level = LEVEL[severity(gpu.pair)] if gpu.pair and whole else None
    text = _text(gpu)
    hang = gpu.job.hang if gpu.job else None
    awaited = next((c for c in hang.culprits if c.gpu == key), None) if hang else None
    return GpuStatus(
        gpu=gpu.number,
        uuid=key.uuid,
        model=gpu.identity.model,
        lost=gpu.lost,
        level=Level.CRITICAL if gpu.lost or grave(own) else level,
        state=gpu.pair[0] if gpu.pair and whole else None,
        cause=gpu.pair[1] if gpu.pair and whole else None,
        text=text if whole or gpu.lost else UNANSWERED,
        since=began(at, gpu.seconds) if verdict or gpu.lost else None,
        gaps_seconds=round(verdict.gaps) if verdict else 0,
        why=reasons(gpu) if verdict or (told and gpu.pair is None) else (),
        doubts=tuple(Why(text=fact_text(f)) for f in verdict.doubts) if verdict else (),
        do=gpu.do if gpu.do and told and gpu.do not in {one.do for one in own} else None,
        note=f"the others wait for its process, pid {awaited.pid}" if awaited else None,
        basis=BASIS[verdict.quality] if verdict else None,
        confidence=round(verdict.confidence, 2) if verdict else None,
        waits_for=gpu.waits_for if verdict else None,
        shares={pair_name(p): round(n, 4) for p, n in verdict.shares.items() if n}
        if verdict
        else {},
        findings=tuple(one.id for one in own),
        job=gpu.job.receipt.id if gpu.job else None,
    )


def reasons(gpu: Judged) -> tuple[Why, ...]:
    """Return the facts behind a GPU's verdict."""
    facts = map(fact_text, gpu.verdict.evidence if gpu.verdict else ())
    return tuple(Why(text=text) for text in (*facts, gpu.detail) if text)


def _text(gpu: Judged) -> str:
    """Return the state in words, for example `starved by disk` or `waiting for GPU 1`."""
    if gpu.pair is None:
        return gpu.why
    late = gpu.waits_for if gpu.pair[1] is Cause.PEER else None
    return SUMMARIES[gpu.pair] if late is None else f"waiting for GPU {late}"


def _figures(gpu: tuple[str, str], samples: SampleStore) -> GpuFigures:
    def value(metric: Metric, *labels: str, mean: float = 0.0, digits: int = 0) -> float | None:
        found = (
            samples.mean(metric, *gpu, *labels, seconds=mean)
            if mean
            else samples.value(metric, *gpu, *labels)
        )
        return None if found is None else round(found, digits)

    hottest = value(temperature.LIMIT, temperature.OPERATING)
    return GpuFigures(
        activity_ratio=value(activity.ACTIVITY, digits=3),
        sm_active_ratio=value(activity.SM_ACTIVE, digits=3),
        tensor_throughput_ratio=value(activity.TENSOR_THROUGHPUT, mean=SETTLED, digits=3),
        memory_used_bytes=value(memory.USED),
        memory_total_bytes=value(memory.TOTAL),
        power_watts=value(power.POWER, mean=SETTLED, digits=1),
        power_limit_watts=value(power.POWER_LIMIT),
        temperature_celsius=value(temperature.TEMPERATURE),
        temperature_limit_celsius=value(temperature.LIMIT, temperature.SLOWDOWN)
        if hottest is None
        else hottest,
        sm_clock_hertz=value(clocks.CLOCK, "sm"),
        sm_clock_limit_hertz=value(clocks.CLOCK_LIMIT, "sm"),
    )


def _who(processes: Sequence[ProcessStatus], named: Mapping[int, str]) -> str | None:
    """Return the largest process, named after its job if possible, and the number of others, for
    example `train:4711 ada and 2 more`."""
    if not processes:
        return None
    first, more = processes[0], len(processes) - 1
    name = named.get(first.pid) or first.program
    text = f"{name}:{first.pid}" if name else f"pid {first.pid}"
    return " ".join(filter(None, (text, first.user, f"and {more} more" if more else "")))


def processes(snapshot: Snapshot) -> dict[str, tuple[ProcessStatus, ...]]:
    """Return the processes on each GPU by UUID, largest memory use first. Program and user are set
    only if the configuration allows it, exactly as in the published metrics."""
    own = [
        sample
        for key, reading in snapshot.readings.items()
        if key.source in SOURCES and reading.fresh(snapshot.at)
        for sample in reading.samples
    ]

    def of(metric: Metric) -> Iterator[tuple[dict[str, str], float]]:
        for sample in own:
            if sample.metric is metric:
                yield dict(zip(metric.labels, sample.labels, strict=True)), sample.value

    users = {(job["uuid"], job["key"]): job["user"] for job, _ in of(workload.JOB_PIDS)}
    user_of = {
        (one["uuid"], one["pid"]): users.get((one["uuid"], one["key"]))
        or (one["uid"] and f"uid {one['uid']}")
        for one, _ in of(workload.JOB_PROCESS)
    }
    held, share = (
        {(one["uuid"], one["pid"]): value for one, value in of(metric)}
        for metric in (process.HELD, process.SHARE)
    )
    found: dict[str, list[ProcessStatus]] = {}
    for one, _ in of(process.PROGRAM):
        place = one["uuid"], one["pid"]
        entry = ProcessStatus(
            pid=int(one["pid"]),
            program=one["name"] or None,
            user=user_of.get(place) or None,
            memory_bytes=held.get(place),
            time_ratio=share.get(place),
        )
        found.setdefault(one["uuid"], []).append(entry)
    for entries in found.values():
        entries.sort(key=lambda one: (-(one.memory_bytes or 0.0), one.pid))
    return {uuid: tuple(entries) for uuid, entries in found.items()}


def instances(samples: SampleStore) -> dict[str, tuple[InstanceStatus, ...]]:
    """Return the MIG instances of each GPU by UUID, sorted by instance number."""
    found: dict[str, list[InstanceStatus]] = {}
    for info in samples.labelled(mig.INSTANCE_INFO):
        labels = info["gpu"], info["uuid"], info["gpu_instance"]
        count = samples.value(mig.INSTANCE_PROCESSES, *labels)
        row = InstanceStatus(
            number=int(labels[2]),
            profile=info["profile"],
            uuid=info["mig_uuid"],
            activity_ratio=samples.value(mig.ACTIVITY, *labels),
            sm_active_ratio=samples.value(mig.SM_ACTIVE, *labels),
            memory_used_bytes=samples.value(mig.USED, *labels),
            memory_total_bytes=samples.value(mig.TOTAL, *labels),
            processes=None if count is None else int(count),
        )
        found.setdefault(labels[1], []).append(row)
    return {uuid: tuple(sorted(rows, key=lambda r: r.number)) for uuid, rows in found.items()}
