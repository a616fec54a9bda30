"""The JSON document of `/api/v1/jobs`."""

from agent.diagnosis.advice import ADVICE, TEXTS
from agent.jobs.job import Hang, Job, Receipt, WatchedJobs
from agent.model import State, time_in
from agent.status.jobs import hang_action, receipt_text, sentence, title
from agent.status.words import pair_name
from exporters.snapshot_json import Document, instant


def jobs_document(jobs: WatchedJobs) -> Document:
    """Return all jobs for JSON: running jobs ordered by GPU, and ended jobs, latest first."""
    return {
        "running": [job_document(job) for job in jobs.running],
        "ended": [receipt_document(receipt) for receipt in jobs.ended],
    }


def job_document(job: Job) -> Document:
    """Return a running job as a JSON object, with null for unknown values."""
    slower, hang = job.slower, job.hang
    return {
        **receipt_document(job.receipt, hung=bool(hang)),
        "gpus": [
            {"gpu": str(gpu.index), "uuid": gpu.uuid, "share": job.shares.get(gpu, 1.0)}
            for gpu in job.receipt.gpus
        ],
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
        and {"ratio": slower.ratio, "since": instant(slower.since), "seconds": slower.seconds},
        "hang": hang and _hang_document(hang),
    }


def receipt_document(receipt: Receipt, *, hung: bool = False) -> Document:
    """Return a job's receipt as a JSON object, with null for unknown values."""
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
        "gpu_seconds_lost": receipt.lost,
        "gpu_seconds_exposed": time_in(receipt.seconds, State.COMMUNICATING),
        "gpu_seconds_unobserved": receipt.unobserved,
        "gpu_seconds_undivided": receipt.undivided,
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
                "advice": TEXTS[one.advice] if one.advice else ADVICE.get(one.pair, ""),
            }
            for one in receipt.savings
        ],
        "receipt": receipt_text(receipt, hung=hung),
    }


def _hang_document(hang: Hang) -> Document:
    return {
        "since": instant(hang.since),
        "seconds": hang.seconds,
        "action": hang_action(hang),
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
