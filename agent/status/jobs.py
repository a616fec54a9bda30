"""Texts about jobs: their progress, their lost time, and receipts of ended jobs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.diagnosis.advice import SUMMARIES, hang_advice, severity
from agent.faults.monitoring import ABSENT
from agent.jobs.job import Culprit, Hang, Job, Receipt, amount, percent
from agent.model import BUSY, LOST_STATES, Cause, Pair, Severity, Snapshot, State
from agent.ranges import gpus_named
from agent.status.findings import grave
from agent.status.model import EndedJob, FindingStatus, Level, PairShare, RunningJob
from agent.status.words import LEVEL, UNANSWERED, began, duration, moment, worst_level

NO_USER = "No names and users of jobs: the agent shows them with `info = true` below [job]."

KWH = 3.6e6
LEAST, WORTH = 0.01, 0.05
"""Minimum time share of a state, and of a saving, to be mentioned in texts."""
MOST = 0.9
"""Savings above this share of a job's time are not mentioned, because the job did little work."""


def title(receipt: Receipt) -> str:
    """Return the name of the job. If it is hidden, return `job of pid` and the PID of the job's
    first process, or `job` and the job ID."""
    start, _, pid = receipt.id.rpartition("-")  # format start-PID if no scheduler named it
    numbers = start.isdecimal() and pid.isdecimal()
    return receipt.name or (f"job of pid {pid}" if numbers else f"job {receipt.id}")


def sentence(job: Job) -> str:
    """Return a sentence about a job's progress. Problems are mentioned first."""
    parts = []
    if job.lost:
        verb = "are" if len(job.lost) > 1 else "is"
        parts.append(f"its {gpus_named(gpu.index for gpu in job.lost)} {verb} lost")
    if hang := job.hang:
        names = ", ".join(map(culprit_name, hang.culprits))
        why = f"it waits for {names}" if names else "every GPU waits; the cause is not known"
        parts.append(f"hung for {duration(hang.seconds)}: {why}")
    if slower := job.slower:
        share, lasted = percent(slower.ratio), duration(slower.seconds)
        parts.append(f"{share} slower than at its start, for {lasted} now")
    if not job.hang:
        parts.append(_pace(job))
        if job.never_waits:
            parts.append(f"the others wait for GPU {job.never_waits.index}")
    return "; ".join(parts)


def _serves(receipt: Receipt) -> bool:
    """Return whether the job is a server that has waited for requests."""
    return (State.IDLE, Cause.REQUESTS) in receipt.seconds


def _pace(job: Job) -> str:
    if _serves(job.receipt):
        return "serves requests"
    if job.step:
        text = f"{1 / job.step:.3g} steps/s ({job.step:.3g} s each)"
        most = max(filter(None, job.rates), default=0.0)
        return f"{text}; {most:.3g} before" if most * job.step >= 1.05 else text  # 5 % more
    if job.at_rest:
        return "steps per second: none, no work seen"
    why = f", {ABSENT[job.why_not]}" if job.why_not else ""
    return f"steps per second: not known{why}"


def culprit_name(one: Culprit) -> str:
    """Return a description of a process, such as `rank 1 (pid 20008, GPU 1, stopped)`."""
    who = f"rank {one.rank}" if one.rank is not None else "a process"
    return f"{who} (pid {one.pid}, GPU {one.gpu.index}, {one.state.value})"


def hang_action(hang: Hang) -> str:
    """Return the first step for a hang, with the PID that the job waits for, if known."""
    first = next(iter(hang.culprits), None)
    return hang_advice(f"{first.pid}") if first else hang_advice()


def receipt_text(receipt: Receipt, *, hung: bool = False) -> str:
    """Return a receipt as text: GPU-hours, lost time, steps, energy, and cost."""
    parts = [hours_text(receipt)]
    if receipt.unobserved > LEAST * receipt.gpu_seconds:
        parts[0] += f" and {amount(receipt.unobserved / 3600)} that were not observed"
    if receipt.undivided:
        shared = amount(receipt.undivided / 3600)
        parts.append(f"besides {shared} on GPUs that it shared with others in unknown parts")
    if receipt.goodput.of_peak is not None:
        parts.append(f"its work at {percent(receipt.goodput.of_peak)} of the tensor peak")
    if receipt.steps and receipt.mean_rate:
        parts.append(f"{receipt.steps} steps, {receipt.mean_rate:.3g} a second")
    if receipt.joules is not None:
        parts.append(f"{amount(receipt.joules / KWH)} kWh")
    parts += filter(None, [cost_text(receipt), saving_text(receipt, hung=hung)])
    return "; ".join(parts)


def hours_text(receipt: Receipt) -> str:
    """Return a text with the GPU-hours, the lost GPU-hours, and the shares of the other states,
    largest first. The shares are relative to the observed time plus the time of lost GPUs."""
    lost, missing = receipt.lost, receipt.missing
    words: tuple[list[str], list[str]] = [], []
    observed = receipt.gpu_seconds / max(receipt.gpu_seconds + missing, 1.0)
    if missing:
        words[True].append(f"a GPU lost {percent(1 - observed)}")
    for pair, share in largest(receipt.seconds):
        beside = " (not counted as lost)" if pair[0] is State.COMMUNICATING else ""
        text = f"{SUMMARIES[pair]} {percent(share * observed)}{beside}"
        words[pair[0] in LOST_STATES].append(text)
    others, losses = (", ".join(named[:3]) for named in words)
    text = f"GPU-hours: {amount(receipt.gpu_seconds / 3600)}; lost "
    text += amount(lost / 3600) if lost else "none"
    text += f" ({losses.replace(' %', ' % of all', 1)})" if losses else ""
    return f"{text}; {others}" if others else text


def cost_text(receipt: Receipt) -> str:
    """Return a text with the costs of the job's GPU-hours and of its lost GPU-hours, and, for a
    running job, the cost per hour. Return an empty string if no price is configured."""
    if receipt.cost is None or not receipt.gpu_seconds:
        return ""
    each = receipt.cost / (receipt.gpu_seconds + receipt.unobserved)
    sums = receipt.cost, each * receipt.lost, 3600 * each * receipt.held
    cost, lost, hourly = (f"{one:.2f} {receipt.currency}".rstrip() for one in sums)
    if receipt.ended is not None:
        return f"cost {cost}, of which lost {lost}"
    return f"cost {cost} so far, of which lost {lost}; its GPUs cost {hourly} per hour"


def saving_text(receipt: Receipt, *, hung: bool = False) -> str:
    """Return a sentence about the time that a job would save without its costliest known cause,
    or about its hang. It is empty if the saving is below 5 % or above 90 % of the job's time."""
    if hung:
        return "it does no work until its hang ends"
    known = (one for one in receipt.savings if one.pair[1] is not Cause.UNKNOWN)
    first, watched = next(known, None), max(receipt.watched, 1.0)
    if not first or _serves(receipt) or not WORTH * watched <= first.saved <= MOST * watched:
        return ""
    less = f"up to {percent(first.saved / receipt.watched)} less time"
    would = "would so far have taken" if receipt.ended is None else "would have taken"
    text = f"without the time {SUMMARIES[first.pair]}, the job {would} {less} for the same work"
    rests = {first.pair[0], first.then[0]} & {State.HELD, State.HUNG}  # do not set the pace
    unknown = first.then == BUSY or first.then[1] is Cause.UNKNOWN
    if rests or unknown or first.then_gpu is None:
        return text
    return f"{text}; then GPU {first.then_gpu.index}, {SUMMARIES[first.then]}, sets the pace"


def largest(seconds: Mapping[Pair, float]) -> Iterator[tuple[Pair, float]]:
    """Yield each state and cause with its time share, largest first. Omit shares below 1 %."""
    whole = sum(seconds.values())
    for pair, part in sorted(seconds.items(), key=lambda item: -item[1]):
        if whole and part >= LEAST * whole:
            yield pair, part / whole


def run_before(receipt: Receipt, ended: Iterable[Receipt]) -> str | None:
    """Return the ID of the latest ended job with the same name and user as this job. Return None if
    there is none or this job has no name."""
    own = receipt.name, receipt.labels.user
    return next(
        (
            one.id
            for one in ended
            if receipt.name and (one.name, one.labels.user) == own and one.began < receipt.began
        ),
        None,
    )


def receipt_level(receipt: Receipt) -> Level | None:
    """Return the highest level whose states took over a quarter of a job's time, or else `good`."""
    lost: dict[Severity, float] = {}
    for pair, part in receipt.seconds.items():
        if (known := severity(pair)) is not None:
            lost[known] = lost.get(known, 0.0) + part
    grave = [LEVEL[known] for known, part in lost.items() if part > receipt.gpu_seconds / 4]
    return worst_level([*grave, Level.GOOD])


def ids(receipt: Receipt, pids: Iterable[int] = ()) -> tuple[str, ...]:
    first = receipt.id.rpartition("-")[2]
    names = receipt.id, receipt.name, receipt.labels.job_id, first, *map(str, pids)
    return tuple(dict.fromkeys(filter(None, names)))


def running_job(
    job: Job,
    ended: Iterable[Receipt],
    snapshot: Snapshot,
    findings: Sequence[FindingStatus],
    levels: Iterable[Level | None],
    *,
    silent: bool,
) -> RunningJob:
    """Return the status of a running job. `findings` are about its GPUs, and `levels` are those of
    their groups. If the driver does not respond (`silent`), the level of the job is unknown."""
    receipt, whole = job.receipt, job.receipt.gpu_seconds
    doubtful = [one for one in findings if one.in_doubt and grave([one])]
    worst = bool(job.hang or job.lost or grave(findings))
    more = receipt_level(receipt), Level.CRITICAL if worst else Level.INFO if job.slower else None
    text = f"its results are in doubt; {sentence(job)}" if doubtful else sentence(job)
    return RunningJob(
        id=receipt.id,
        ids=ids(receipt, job.pids),
        title=title(receipt),
        user=receipt.labels.user or None,
        gpus=tuple(gpu.index for gpu in receipt.gpus),
        name=gpus_named(gpu.index for gpu in receipt.gpus),
        level=None if silent else worst_level(filter(None, (*more, *levels))),
        text=UNANSWERED if silent else text,
        do=hang_action(job.hang) if job.hang and not silent else None,
        since=began(snapshot, receipt.lasted),
        watched_seconds=round(receipt.watched),
        gpu_seconds=round(whole),
        lost_gpu_seconds=round(receipt.lost),
        steps_per_second=tuple(None if rate is None else round(rate, 3) for rate in job.rates),
        shares=tuple(
            PairShare(state=pair[0], cause=pair[1], share=round(share, 3), text=SUMMARIES[pair])
            for pair, share in largest(receipt.seconds)
        ),
        cost=receipt.cost,
        hours=hours_text(receipt),
        money=cost_text(receipt) or None,
        saving=saving_text(receipt, hung=bool(job.hang)) or None,
        before=run_before(receipt, ended),
        findings=tuple(one.id for one in findings),
    )


def ended_job(receipt: Receipt, ended: Iterable[Receipt]) -> EndedJob:
    """Return the status of an ended job, including its receipt."""
    return EndedJob(
        id=receipt.id,
        ids=ids(receipt),
        title=title(receipt),
        gpus=tuple(gpu.index for gpu in receipt.gpus),
        name=gpus_named(gpu.index for gpu in receipt.gpus),
        ended=None if receipt.ended is None else moment(round(receipt.ended)),
        seconds=round(receipt.lasted),
        text=receipt_text(receipt),
        before=run_before(receipt, ended),
    )
