"""Jobs in words and as JSON, for `/api/v1/jobs`, the page and the terminal alike."""

from collections.abc import Iterable, Iterator, Mapping

from agent.diagnosis.advice import ADVICE, SUMMARIES, TEXTS, Advice, hang_advice, severity
from agent.jobs.job import (
    Culprit,
    Hang,
    Job,
    Receipt,
    WatchedJobs,
    amount,
    percent,
)
from agent.model import BUSY, LOST_STATES, Cause, Pair, Reason, Severity, State, time_in
from agent.ranges import ranges
from exporters.messages import (
    GOOD,
    LEVELS,
    UNANSWERED,
    UNKNOWN,
    WRONG,
    Document,
    duration,
    pair_name,
    worst_level,
)
from exporters.snapshot_json import instant

NO_STEP = {
    Reason.NOT_ENOUGH: "steps per second: not known yet",
    Reason.TOO_SHORT: "steps per second: not known, the steps are too short",
    Reason.IRREGULAR: "steps per second: not visible in the GPUs' power",
    Reason.FLAT: "steps per second: not visible in the GPUs' power, which hardly varies",
}
"""Sentences on why a job has no steps per second."""

KWH = 3.6e6
MUCH = 0.25
"""Least share of lost time that a job's sentence reports, as in the alert."""

MOST_SHARES = 3
LEAST = 0.01
"""Share of the time from which a state is named."""


def jobs_document(jobs: WatchedJobs) -> Document:
    """All jobs: those that run, by their first GPU, and those that ended, the newest first."""
    return {
        "running": [job_document(job) for job in jobs.running],
        "ended": [receipt_document(receipt) for receipt in jobs.ended],
    }


def job_document(job: Job) -> Document:
    """A running job; what is not known is null."""
    slower, hang = job.slower, job.hang
    return {
        **receipt_document(job.receipt, hung=bool(hang)),
        "title": title(job.receipt),
        "sentence": sentence(job),
        "joined_by": job.grouped_by.value,
        "pids": list(job.pids),
        "step_seconds": job.step,
        "steps_per_second": 1 / job.step if job.step else None,
        "confidence": job.confidence if job.step else None,
        "why_no_steps": job.why_not.value if job.why_not else None,
        "reference_step_seconds": job.reference,
        "steps_per_second_history": list(job.rates),
        "lost_gpus": [str(gpu.index) for gpu in job.lost],
        "never_waits": job.never_waits.uuid if job.never_waits else None,
        "slower": slower
        and {
            "ratio": slower.ratio,
            "since": instant(slower.since),
            "seconds": slower.seconds,
        },
        "hang": hang and _hang_document(hang) | {"action": hang_action(hang)},
    }


def receipt_document(receipt: Receipt, *, hung: bool = False) -> Document:
    """Return the division of a job's GPU-hours; unknown values are null."""
    return {
        "id": receipt.id,
        "title": title(receipt),
        "name": receipt.name or None,
        **{name: value or None for name, value in receipt.labels._asdict().items()},
        "gpus": [{"gpu": str(gpu.index), "uuid": gpu.uuid} for gpu in receipt.gpus],
        "began": instant(receipt.began),
        "ended": None if receipt.ended is None else instant(receipt.ended),
        "seconds": receipt.lasted,
        "watched_seconds": receipt.watched,
        "gpu_seconds": {pair_name(pair): part for pair, part in sorted(receipt.seconds.items())},
        "gpu_seconds_lost": time_in(receipt.seconds, *LOST_STATES),
        "gpu_seconds_exposed": time_in(receipt.seconds, State.COMMUNICATING),
        "gpu_seconds_unobserved": receipt.unobserved,
        "steps": receipt.steps,
        "mean_steps_per_second": receipt.mean_rate,
        "joules": receipt.joules,
        "tensor_peak_seconds": receipt.tensor,
        "tensor_throughput": receipt.goodput.of_peak,
        "goodput": str(receipt.goodput),
        "joules_by_state": {pair_name(p): part for p, part in sorted(receipt.joules_by.items())},
        "cost": receipt.cost,
        "savings": [
            {
                "cause": pair_name(one.pair),
                "gpu_seconds_lost": one.lost,
                "seconds_saved": one.saved,
                "share_saved": one.saved / receipt.watched if receipt.watched else None,
                "then": pair_name(one.then),
                "then_gpu": one.then_gpu.uuid if one.then_gpu else None,
                "advice": TEXTS[Advice(one.advice)] if one.advice else ADVICE.get(one.pair, ""),
            }
            for one in receipt.savings
        ],
        "receipt": receipt_text(receipt, hung=hung),
    }


def _hang_document(hang: Hang) -> Document:
    return {
        "since": instant(hang.since),
        "seconds": hang.seconds,
        "waits_for": [
            {
                "rank": one.rank,
                "pid": one.pid,
                "gpu": str(one.gpu.index),
                "uuid": one.gpu.uuid,
                "state": one.state.value,
            }
            for one in hang.culprits
        ],
    }


def title(receipt: Receipt) -> str:
    """Return the name of the job if it may be shown, else its first process."""
    began, _, pid = receipt.id.rpartition("-")  # where no scheduler names it: when, and its first
    numbers = began.isdecimal() and pid.isdecimal()
    return receipt.name or (f"job of pid {pid}" if numbers else f"job {receipt.id}")


def sentence(job: Job) -> str:
    """Return a sentence on the job's progress, the worst first."""
    names = ranges(gpu.index for gpu in job.lost)
    lost = f"GPUs {names} are" if len(job.lost) > 1 else f"GPU {names} is"
    parts = [f"its {lost} lost"] * bool(job.lost)
    if job.hang:
        parts.append(_hang_text(job.hang))
    if slower := job.slower:
        share, lasted = percent(slower.ratio), duration(slower.seconds)
        parts.append(f"{share} slower than in its first hour, for {lasted} now")
    if not job.hang:
        parts.append(_pace(job))
        if job.never_waits:
            parts.append(f"the others wait for GPU {job.never_waits.index}")
    return "; ".join(parts)


def _pace(job: Job) -> str:
    if (State.IDLE, Cause.REQUESTS) in job.receipt.seconds:
        return "answers requests, in no rhythm"
    if job.step:
        return f"{1 / job.step:.3g} steps/s ({job.step:.3g} s each)"
    return NO_STEP.get(job.why_not or Reason.UNKNOWN, "steps per second: not known")


def _hang_text(hang: Hang) -> str:
    """Return the words for the process that the others wait for, as far as it is known."""
    text = f"hung for {duration(hang.seconds)}"
    if not hang.culprits:
        return f"{text}: every GPU waits; the cause is not known"
    names = ", ".join(map(culprit_name, hang.culprits))
    return f"{text}: it waits for {names}"


def culprit_name(one: Culprit) -> str:
    """`rank 1 (pid 20008, GPU 1, stopped)`; without its rank where that is not known."""
    who = f"rank {one.rank}" if one.rank is not None else "a process"
    return f"{who} (pid {one.pid}, GPU {one.gpu.index}, {one.state.value})"


def hang_action(hang: Hang) -> str:
    """Return the advice for a hang, with the process that holds up the others if it is known."""
    first = next(iter(hang.culprits), None)
    return hang_advice(f"pid {first.pid}") if first else hang_advice()


def waited_for(hang: Hang) -> dict[str, str]:
    """Return the sentence for each GPU of this host whose process the others wait for, by UUID."""
    return {
        one.gpu.uuid: f"the others wait for its process, pid {one.pid}" for one in hang.culprits
    }


def receipt_text(receipt: Receipt, *, hung: bool = False) -> str:
    """A receipt in one sentence: GPU-hours and what became of them, steps, energy, price."""
    parts = [hours_text(receipt)]
    if receipt.unobserved > LEAST * receipt.gpu_seconds:
        parts[0] += f" and {amount(receipt.unobserved / 3600)} that were not observed"
    if receipt.goodput.of_peak is not None:
        parts.append(f"its work at {percent(receipt.goodput.of_peak)} of the tensor peak")
    if receipt.steps and receipt.mean_rate:
        parts.append(f"{receipt.steps} steps, {receipt.mean_rate:.3g} a second")
    if receipt.joules is not None:
        parts.append(f"{amount(receipt.joules / KWH)} kWh")
    parts += filter(None, [cost_text(receipt), saving_text(receipt, hung=hung)])
    return "; ".join(parts)


def hours_text(receipt: Receipt) -> str:
    """Return GPU-hours and which of them were lost, then the others, the largest share first."""
    lost = time_in(receipt.seconds, *LOST_STATES)
    words: tuple[list[str], list[str]] = [], []
    for pair, share in largest(receipt.seconds):
        words[pair[0] in LOST_STATES].append(f"{SUMMARIES[pair]} {percent(share)}")
    others, losses = (", ".join(named[:MOST_SHARES]) for named in words)
    text = f"GPU-hours: {amount(receipt.gpu_seconds / 3600)}; lost "
    text += amount(lost / 3600) if lost else "none"
    text += f" ({losses.replace(' %', ' % of all', 1)})" if losses else ""
    return f"{text}; {others}" if others else text


def cost_text(receipt: Receipt) -> str:
    """Return the price of the job's GPU-hours, of what it lost of them, and of an hour while it
    runs; empty without a price."""
    if receipt.cost is None or not receipt.gpu_seconds:
        return ""
    each = receipt.cost / (receipt.gpu_seconds + receipt.unobserved)
    lost = f"of which lost {each * time_in(receipt.seconds, *LOST_STATES):.2f}"
    if receipt.ended is not None:
        return f"cost {receipt.cost:.2f}, {lost}"
    hourly = 3600 * each * len(receipt.gpus)
    return f"cost {receipt.cost:.2f} so far, {lost}; its GPUs cost {hourly:.2f} per hour"


def saving_text(receipt: Receipt, *, hung: bool = False) -> str:
    """Return the saving from ending its first cause, its hang if it is `hung`; empty if little."""
    if hung:
        return "it does no work until its hang ends"
    known = (one for one in receipt.savings if one.pair[1] is not Cause.UNKNOWN)
    if not (first := next(known, None)) or first.saved < LEAST * max(receipt.watched, 1.0):
        return ""
    less = f"up to {percent(first.saved / receipt.watched)} less time"
    would = "would take" if receipt.ended is None else "would have taken"
    text = f"without the time {SUMMARIES[first.pair]}, the job {would} {less} for the same work"
    rests = {first.pair[0], first.then[0]} & {State.HELD, State.HUNG}  # and sets no pace
    if rests or first.then == BUSY or first.then_gpu is None:
        return text
    return f"{text}; then GPU {first.then_gpu.index}, {SUMMARIES[first.then]}, sets the pace"


def largest(seconds: Mapping[Pair, float]) -> Iterator[tuple[Pair, float]]:
    """States with their share of the time, the largest first."""
    whole = sum(seconds.values())
    for pair, part in sorted(seconds.items(), key=lambda item: -item[1]):
        if whole and part >= LEAST * whole:
            yield pair, part / whole


def run_before(receipt: Receipt, ended: Iterable[Receipt]) -> bool:
    """Return whether a job of the same name and user ended before; never of nameless ones."""
    alike = (one for one in ended if one.name == receipt.name and one.began < receipt.began)
    return bool(receipt.name) and any(one.labels.user == receipt.labels.user for one in alike)


def row(job: Job, ended: Iterable[Receipt] = (), *, silent: bool = False) -> Document:
    """A running job as the page shows it; while the driver is `silent`, nothing is known of it."""
    receipt = job.receipt
    whole = receipt.gpu_seconds
    lost = time_in(receipt.seconds, *LOST_STATES)
    more = [WRONG] * bool(job.hang or job.lost) + [LEVELS[Severity.INFO]] * bool(job.slower)
    return {
        "id": receipt.id,
        "ids": ids(receipt, job.pids),
        "title": title(receipt),
        "user": receipt.labels.user,
        "named": bool(receipt.name),
        "gpus": ranges(gpu.index for gpu in receipt.gpus),
        "level": UNKNOWN if silent else worst_level([receipt_level(receipt), *more]),
        "sentence": UNANSWERED if silent else sentence(job),
        "rates": [None if rate is None else round(rate, 3) for rate in job.rates],
        "shares": [
            [*(word.value for word in pair), round(part / whole, 3)]
            for pair, part in sorted(receipt.seconds.items(), key=lambda item: -item[1])
            if whole and part >= LEAST * whole
        ],
        "seconds": receipt.lasted,
        "watched": round(receipt.watched),
        "gpu_seconds": round(whole),
        "lost": round(lost),
        "cost": receipt.cost,
        "hours": hours_text(receipt),
        "money": cost_text(receipt),
        "saving": saving_text(receipt, hung=bool(job.hang)),
        "before": run_before(receipt, ended),
    }


def receipt_level(receipt: Receipt) -> str:
    """Return the severity of what a job lost: of the worst state that took a quarter of it."""
    lost: dict[Severity, float] = {}
    for pair, part in receipt.seconds.items():
        if (known := severity(pair)) is not None:
            lost[known] = lost.get(known, 0.0) + part
    grave = [LEVELS[known] for known, part in lost.items() if part > MUCH * receipt.gpu_seconds]
    return worst_level([*grave, GOOD])


def ids(receipt: Receipt, pids: Iterable[int] = ()) -> list[str]:
    first = receipt.id.rpartition("-")[2]
    names = receipt.id, receipt.name, receipt.labels.job_id, first, *map(str, pids)
    return list(dict.fromkeys(filter(None, names)))


def ended_row(receipt: Receipt, now: float, ended: Iterable[Receipt] = ()) -> Document:
    """A job that ended as the page shows it at `now` (s of the agent's clock)."""
    return {
        "id": receipt.id,
        "ids": ids(receipt),
        "title": title(receipt),
        "gpus": ranges(gpu.index for gpu in receipt.gpus),
        "ended": receipt.ended,
        "ago": None if receipt.ended_at is None else round(now - receipt.ended_at),
        "seconds": receipt.lasted,
        "receipt": receipt_text(receipt),
        "before": run_before(receipt, ended),
    }
