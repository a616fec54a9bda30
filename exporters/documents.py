"""The JSON documents of `/api/v1/snapshot` (values, absences, and verdicts) and `/api/v1/jobs`."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from agent.diagnosis.accounting import LONGEST
from agent.diagnosis.advice import saving_advice
from agent.errors import encodable
from agent.jobs.job import Hang, Job, Receipt, WatchedJobs
from agent.model import GPU_LABELS, Absence, Sample, Snapshot, State, Verdict, time_in
from agent.ranges import natural
from agent.sources import gpu, system
from agent.status.jobs import hang_action, receipt_text, sentence, title
from agent.status.words import pair_name

Document = dict[str, Any]

Kept = dict[tuple[str, tuple[str, ...]], tuple[bool, Any]]
"""Entries by metric name and labels except `gpu` and `uuid`. The bool: there are no such labels."""

GPU_INFO, SYSTEM_INFO = gpu.INFO.name, system.INFO.name


@dataclass(slots=True)
class DeviceEntries:
    """All values and absences of a GPU or, if `uuid` is empty, of the host. If a series has two
    samples, the newer is used."""

    uuid: str = ""
    gpu: str = ""
    values: Kept = field(default_factory=dict)
    absent: Kept = field(default_factory=dict)

    def info(self, wanted: str) -> dict[str, str]:
        found = [entry for (name, _), (_, entry) in self.values.items() if name == wanted]
        return {name: text for name, text in found[-1].items() if name != "value"} if found else {}


def document_of(kept: Kept, without: str = "") -> Document:
    """Return a dict from metric names to values, or to lists if entries have other labels."""
    found: Document = {}
    for (name, _), (alone, entry) in sorted(kept.items(), key=lambda item: item[0]):
        if alone:
            found[name] = entry
        elif name != without:
            found.setdefault(name, []).append(entry)
    return found


def document(snapshot: Snapshot, now: float) -> Document:
    """Return the snapshot as a sorted dict for JSON, without data that has expired at `now`
    (monotonic seconds). Values that JSON cannot represent are omitted."""
    devices = devices_of(snapshot, now)
    host = devices.pop("", DeviceEntries())
    fresh = snapshot.verdicts if now - snapshot.at <= LONGEST else {}
    verdicts = {key.uuid: verdict_of(verdict, snapshot) for key, verdict in fresh.items()}
    return {
        "time": instant(snapshot.wall),
        "timestamp": snapshot.wall,
        "tick": snapshot.tick,
        "system": host.info(SYSTEM_INFO),
        "gpus": [
            {
                "gpu": device.gpu,
                "uuid": device.uuid,
                "info": device.info(GPU_INFO),
                "values": document_of(device.values, GPU_INFO),
                "absent": document_of(device.absent),
                "verdict": verdicts.get(device.uuid, {}),
            }
            for device in sorted(devices.values(), key=lambda d: (natural(d.gpu), d.uuid))
        ],
        "host": document_of(host.values, SYSTEM_INFO),
        "absent": [
            {"metric": name, "labels": {}, **entry}
            for (name, _), (_, entry) in sorted(host.absent.items(), key=lambda i: i[0])
        ],
    }


def instant(wall: float) -> str:
    text = datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def verdict_of(verdict: Verdict, snapshot: Snapshot) -> Document:
    """Return a verdict as a dict, with its start and the shares of the last ten seconds by
    `state/cause`. Its explanation is in the status."""
    return {
        "state": verdict.state.value,
        "cause": verdict.cause.value,
        "quality": verdict.quality.value,
        "confidence": round(verdict.confidence, 2),
        "since": instant(snapshot.wall - (snapshot.at - verdict.since)),
        "shares": {pair_name(pair): round(n, 4) for pair, n in verdict.shares.items() if n},
    }


def devices_of(snapshot: Snapshot, now: float) -> dict[str, DeviceEntries]:
    """Return the values and absences of each GPU by UUID, and those of the host under "". The index
    of a GPU comes from its latest reading. An absence has only the labels that are known."""
    by_age = sorted(snapshot.readings.items(), key=lambda item: item[1].at)
    aged = replace(snapshot, readings=dict(by_age))
    devices: dict[str, DeviceEntries] = {}

    def device_of(entry: Sample | Absence) -> tuple[DeviceEntries, dict[str, str], bool]:
        labels = dict(zip(entry.metric.labels, map(encodable, entry.labels), strict=False))
        index, uuid = (labels.pop(name, "") for name in GPU_LABELS)
        device = devices.setdefault(uuid or index, DeviceEntries(uuid, index))
        if isinstance(entry, Sample):
            device.gpu = index
        return device, labels, set(entry.metric.labels) <= set(GPU_LABELS)

    for sample in aged.samples(now):
        if isfinite(sample.value):
            device, labels, alone = device_of(sample)
            value = sample.value if alone else {**labels, "value": sample.value}
            device.values[sample.metric.name, tuple(labels.values())] = alone, value
    for absence in aged.absences(now):
        device, labels, alone = device_of(absence)
        why: Document = {} if alone else {"labels": labels}
        why |= {"reason": absence.reason.value, "detail": absence.detail}
        device.absent[absence.metric.name, tuple(labels.values())] = alone, why
    return devices


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
                "advice": saving_advice(one),
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
