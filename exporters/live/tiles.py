"""One tile a GPU: its verdict in words, and its meters."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.diagnosis.advice import severity
from agent.diagnosis.disclosure import SOURCES
from agent.faults.findings import by_kind
from agent.model import GpuKey, Metric, Snapshot, State
from agent.series import SampleStore
from agent.sources import activity, clocks, memory, pcie, power, process, temperature, workload
from agent.sources import instances as mig
from exporters.live.headline import GpuSummary, beside_words, costs, of_window
from exporters.messages import (
    LEVELS,
    UNANSWERED,
    UNKNOWN,
    WRONG,
    Document,
    shares_document,
    verdict_document,
)


class MeterModel(NamedTuple):
    """A figure of a GPU; `labels` are those beyond the GPU's, `digits` what a browser needs,
    `seconds` those of which it is the mean: one sample of what swings with each step shows little.
    """

    name: str
    unit: str
    digits: int
    metric: Metric
    labels: tuple[str, ...] = ()
    seconds: float = 0.0


SETTLED = 10.0
"""Seconds: shares are those of so many, and no mean on a tile looks back farther."""

METERS = (
    MeterModel("activity", "ratio", 3, activity.ACTIVITY),
    MeterModel("sm", "ratio", 3, activity.SM_ACTIVE),
    MeterModel("tensor", "ratio", 3, activity.TENSOR_THROUGHPUT, seconds=SETTLED),
    MeterModel("memory", "bytes", 0, memory.USED),
    MeterModel("power", "watts", 1, power.POWER, seconds=SETTLED),
    MeterModel("temperature", "celsius", 0, temperature.TEMPERATURE),
    MeterModel("clock", "hertz", 0, clocks.CLOCK, ("sm",)),
)
PCIE = (pcie.GENERATION, pcie.WIDTH, pcie.GENERATION_LIMIT, pcie.WIDTH_LIMIT)
LIMITS: dict[str, tuple[Metric, tuple[tuple[str, ...], ...]]] = {
    "memory": (memory.TOTAL, ((),)),
    "power": (power.POWER_LIMIT, ((),)),
    "temperature": (temperature.LIMIT, ((temperature.OPERATING,), (temperature.SLOWDOWN,))),
    "clock": (clocks.CLOCK_LIMIT, (("sm",),)),
}
"""The limit of a meter: the first of these labels that answers. A ratio ends at 1."""

NOTHING: Document = {
    "state": None,
    "cause": None,
    "seconds": None,
    "gaps": 0,
    "summary": "",
    "evidence": [],
    "doubts": [],
    "advice": "",
    "quality": None,
    "shares": {},
}
UNJUDGED = "activity not known"
LOST, SILENT = "lost", "it no longer answers"


def static(gpu: GpuKey, model: str, samples: SampleStore) -> Document:
    meters = [
        {"name": meter.name, "unit": meter.unit, "limit": _limit(meter, gpu, samples)}
        for meter in METERS
    ]
    link = [samples.value(metric, *gpu.labels) for metric in PCIE]
    named = {"gpu": str(gpu.index), "uuid": gpu.uuid, "model": model}
    return {**named, "meters": meters, "pcie": link}


def _limit(meter: MeterModel, gpu: GpuKey, samples: SampleStore) -> float | None:
    if meter.unit == "ratio":
        return 1.0
    metric, options = LIMITS[meter.name]
    found = (samples.value(metric, *gpu.labels, *labels) for labels in options)
    return next((limit for limit in found if limit is not None), None)


def dynamic(
    gpu: GpuKey, snapshot: Snapshot, samples: SampleStore, summary: GpuSummary, *, silent: bool
) -> Document:
    """Return the data of one GPU at this tick, as the banner's `summary` has it."""
    values = [None if silent else _value(meter, gpu, samples) for meter in METERS]
    document = judged(gpu, snapshot, summary, silent=silent)
    pair, beside, of_it = summary.pair, "", ""
    if pair and costs(pair) and summary.share is not None and not silent:
        of_it = of_window(summary.share, summary.window) * (pair[0] is State.STARVED)
    elif summary.beside:
        pair, beside = summary.beside[0], beside_words(summary)
    if not silent and not summary.lost and pair:
        document |= {"seconds": round(summary.seconds), "advice": summary.advice}
    level = LEVELS[severity(pair)] if pair and not silent else UNKNOWN
    return {
        **document,
        "level": WRONG if summary.lost else level,
        "beside": beside,
        "of_window": of_it,
        "lost": summary.lost,
        "values": values,
    }


def processes(snapshot: Snapshot) -> dict[str, list[Document]]:
    """The processes on each GPU, by its UUID, the largest first; program and user where the
    configuration lets them be named, and so as the poller publishes them, else the pid alone."""
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

    users = {(job["uuid"], job["key"]): job["user"] for job, _ in of(workload.JOB)}
    user_of = {
        (one["uuid"], one["pid"]): users.get((one["uuid"], one["key"]))
        or (one["uid"] and f"uid {one['uid']}")
        for one, _ in of(workload.JOB_PROCESS)
    }
    held, share = (
        {(one["uuid"], one["pid"]): value for one, value in of(metric)}
        for metric in (process.HELD, process.SHARE)
    )
    found: dict[str, list[Document]] = {}
    for one, _ in of(process.PROGRAM):
        place = one["uuid"], one["pid"]
        entry = {
            "pid": int(one["pid"]),
            "program": one["name"],
            "bytes": held.get(place),
            "share": share.get(place),
            "user": user_of.get(place, ""),
        }
        found.setdefault(one["uuid"], []).append(entry)
    for listed in found.values():
        listed.sort(key=lambda one: (-(one["bytes"] or 0.0), one["pid"]))
    return found


def instances(samples: SampleStore) -> dict[str, list[Document]]:
    """Return the MIG instances by UUID of their GPU, by number; figures not known are None."""
    found: dict[str, list[Document]] = {}
    for info in samples.labelled(mig.INFO):
        labels = info["gpu"], info["uuid"], info["gpu_instance"]
        row = {
            "number": int(labels[2]),
            "profile": info["profile"],
            "uuid": info["mig_uuid"],
            "activity": samples.value(mig.ACTIVITY, *labels),
            "sm": samples.value(mig.SM_ACTIVE, *labels),
            "memory": samples.value(mig.USED, *labels),
            "memory_limit": samples.value(mig.TOTAL, *labels),
            "processes": samples.value(mig.PROCESSES, *labels),
        }
        found.setdefault(labels[1], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["number"])
    return found


def _value(meter: MeterModel, gpu: GpuKey, samples: SampleStore) -> float | None:
    value = samples.mean(meter.metric, *gpu.labels, *meter.labels, seconds=meter.seconds)
    return None if value is None else round(value, meter.digits or None)


def judged(gpu: GpuKey, snapshot: Snapshot, summary: GpuSummary, *, silent: bool) -> Document:
    """The verdict in words; without one, why not."""
    verdict = snapshot.verdicts.get(gpu)
    if verdict is None or summary.lost or silent:
        absence = snapshot.unjudged.get(gpu)
        why = summary.why or (absence.detail if absence else "") or UNJUDGED
        why = LOST if summary.lost else UNANSWERED if silent else why
        found = {**NOTHING, "summary": why}
        if summary.lost:
            do = by_kind()["gpus_missing"].do
            found |= {"evidence": [SILENT], "advice": do, "seconds": round(summary.seconds)}
        return found
    document = verdict_document(verdict, snapshot.at)
    del document["sentence"]  # the summary and the evidence once more
    shares = shares_document(verdict.shares)
    seconds, gaps = (round(document[name]) for name in ("seconds", "gaps"))
    return {**document, "seconds": seconds, "gaps": gaps, "shares": shares}
