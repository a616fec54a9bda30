"""The snapshot as one JSON document, signals included: for programs and the live page."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, TypeVar

from agent import health
from agent.diagnosis import accounting
from agent.model import GPU_LABELS, Absence, Metric, Sample, Snapshot
from agent.sources import gpu, system

Entry = TypeVar("Entry", Sample, Absence)
Document = dict[str, Any]
Labels = dict[str, str]

GPU_INFO = gpu.INFO.name
SYSTEM_INFO = system.INFO.name
VERDICT = accounting.VERDICT.name
EVIDENCE = accounting.EVIDENCE.name
SOURCE_KEYS = {
    health.SOURCE_UP.name: "up",
    health.READ_SECONDS.name: "read_seconds",
    health.READ_CPU_SECONDS.name: "read_cpu_seconds",
}
"""The metrics that describe a source, and what they are called in its entry."""


@dataclass(slots=True)
class Device:
    """All that is known of one GPU, or of the host, whose `uuid` is empty."""

    uuid: str = ""
    gpu: str = ""
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)

    @property
    def rank(self) -> tuple[float, str]:
        """GPU 10 comes after GPU 9, and one without a number last."""
        return (int(self.gpu) if self.gpu.isdecimal() else inf, self.uuid)


def document(snapshot: Snapshot, now: float) -> Document:
    """Everything fresh at `now` (monotonic seconds), sorted; what JSON cannot say is left out."""
    devices = devices_of(snapshot, now)
    host = devices.pop("", Device())
    instant = datetime.fromtimestamp(snapshot.wall, UTC).isoformat(timespec="milliseconds")
    return {
        "time": instant.replace("+00:00", "Z"),
        "timestamp": snapshot.wall,
        "tick": snapshot.tick,
        "system": info_of(host, SYSTEM_INFO),
        "gpus": [gpu_entry(device) for device in sorted(devices.values(), key=lambda d: d.rank)],
        "host": values_of(host, without={SYSTEM_INFO, *SOURCE_KEYS}),
        "absent": host_absences(host),
        "sources": sources_of(host),
    }


def devices_of(snapshot: Snapshot, now: float) -> dict[str, Device]:
    """Samples and absences by UUID; the index of a GPU is the one that was read last."""
    by_age = sorted(snapshot.readings.items(), key=lambda item: item[1].at)
    aged = replace(snapshot, readings=dict(by_age))
    devices: dict[str, Device] = {}
    for sample in aged.samples(now):
        if isfinite(sample.value):
            device = device_of(sample, devices)
            device.gpu = labels_of(sample).get("gpu", "")
            device.samples.append(sample)
    for absence in aged.absences(now):
        device_of(absence, devices).absences.append(absence)
    return devices


def device_of(entry: Sample | Absence, devices: dict[str, Device]) -> Device:
    """The device that the labels name: the host where they name no GPU."""
    labels = labels_of(entry)
    gpu, uuid = (labels.get(name, "") for name in GPU_LABELS)
    return devices.setdefault(uuid or gpu, Device(uuid, gpu))


def labels_of(entry: Sample | Absence) -> Labels:
    """Names and values of the labels; of an absence as far as they are known."""
    return dict(zip(entry.metric.labels, entry.labels, strict=False))


def further(entry: Sample | Absence) -> Labels:
    """The labels that do not name the GPU."""
    return {name: value for name, value in labels_of(entry).items() if name not in GPU_LABELS}


def is_labelled(metric: Metric) -> bool:
    """Whether one device has several values of the metric."""
    return not set(metric.labels) <= set(GPU_LABELS)


def gpu_entry(device: Device) -> Document:
    return {
        "gpu": device.gpu,
        "uuid": device.uuid,
        "info": info_of(device, GPU_INFO),
        "verdict": verdict_of(device),
        "values": values_of(device, without={GPU_INFO, VERDICT, EVIDENCE}),
        "absent": absences_of(device),
    }


def verdict_of(device: Device) -> Document:
    """Where the time of a GPU goes now, why, and what to do about it; empty while unknown."""
    samples = [sample for sample in device.samples if sample.metric.name == VERDICT]
    if not samples:
        return {}
    labels, seconds = further(samples[-1]), samples[-1].value
    found = [further(s) for s in device.samples if s.metric.name == EVIDENCE]
    evidence, doubts = ([e["text"] for e in found if e["role"] == r] for r in ("evidence", "doubt"))
    advice = labels.pop("advice")
    sentence = f"{labels.pop('summary')}: {', '.join(evidence)}"
    words = {"sentence": sentence, "evidence": evidence, "doubts": doubts, "advice": advice}
    return {**labels, "seconds": seconds, **words}


def by_metric(entries: Iterable[Entry]) -> Iterator[tuple[Metric, list[Entry]]]:
    """Entries of one device by metric, sorted by name and labels; of two alike the newer."""
    newest = {(entry.metric.name, tuple(further(entry).values())): entry for entry in entries}
    groups: dict[str, list[Entry]] = {}
    for (name, _), entry in sorted(newest.items()):
        groups.setdefault(name, []).append(entry)
    for group in groups.values():
        yield group[0].metric, group


def values_of(device: Device, without: Collection[str]) -> Document:
    """A number for each metric; where it has further labels, a list with a value for each."""
    found: Document = {}
    for metric, samples in by_metric(device.samples):
        if metric.name in without:
            continue
        if is_labelled(metric):
            found[metric.name] = [{**further(sample), "value": sample.value} for sample in samples]
        else:
            found[metric.name] = samples[-1].value
    return found


def absences_of(device: Device) -> Document:
    """Why each metric is absent; where it has further labels, a list with those known."""
    found: Document = {}
    for metric, absences in by_metric(device.absences):
        if is_labelled(metric):
            found[metric.name] = [{"labels": further(a), **why(a)} for a in absences]
        else:
            found[metric.name] = why(absences[-1])
    return found


def host_absences(host: Device) -> list[Document]:
    return [
        {"metric": metric.name, "labels": further(absence), **why(absence)}
        for metric, absences in by_metric(host.absences)
        for absence in absences
    ]


def why(absence: Absence) -> Labels:
    return {"reason": absence.reason.value, "detail": absence.detail}


def info_of(device: Device, name: str) -> Labels:
    """The labels of an info metric, the newest where there are two; nothing where it is absent."""
    found = [further(sample) for sample in device.samples if sample.metric.name == name]
    return found[-1] if found else {}


def sources_of(host: Device) -> list[Document]:
    """What the agent says of each of its sources."""
    entries: dict[str, Document] = {}
    for metric, samples in by_metric(host.samples):
        key = SOURCE_KEYS.get(metric.name)
        for sample in samples if key else ():
            name = labels_of(sample).get("source", "")
            value = bool(sample.value) if key == "up" else sample.value
            entries.setdefault(name, {"source": name})[key or ""] = value
    return [entries[name] for name in sorted(entries)]
