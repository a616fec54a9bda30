"""The snapshot as one JSON document, signals included: for programs and the live page."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, TypeVar

from agent.diagnosis.accounting import LONGEST
from agent.errors import encodable
from agent.model import GPU_LABELS, Absence, Metric, Sample, Snapshot
from agent.series import SampleStore
from agent.sources import agent_health, gpu, system
from exporters.words import finding_document, verdict_document, verdict_figures

Entry = TypeVar("Entry", Sample, Absence)
Document = dict[str, Any]
Labels = dict[str, str]

GPU_INFO = gpu.INFO.name
SYSTEM_INFO = system.INFO.name
SOURCE_KEYS = {
    agent_health.SOURCE_UP: "up",
    agent_health.READ_SECONDS: "read_seconds",
    agent_health.READ_CPU_SECONDS: "read_cpu_seconds",
}
"""The metrics that describe a source, and what they are called in its entry."""


@dataclass(slots=True)
class DeviceEntries:
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
    host = devices.pop("", DeviceEntries())
    verdicts = verdicts_of(snapshot, now)
    sources = {metric.name for metric in SOURCE_KEYS}
    found = {
        "time": instant(snapshot.wall),
        "timestamp": snapshot.wall,
        "tick": snapshot.tick,
        "system": info_of(host, SYSTEM_INFO),
        "gpus": [
            {**gpu_entry(device), "verdict": verdicts.get(device.uuid, {})}
            for device in sorted(devices.values(), key=lambda d: d.rank)
        ],
        "host": values_of(host, without={SYSTEM_INFO, *sources}),
        "absent": host_absences(host),
        "sources": sources_of(SampleStore.of(snapshot, now)),
    }
    if snapshot.findings is not None:
        found["findings"] = [finding_document(finding) for finding in snapshot.findings]
    return found


def instant(wall: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    text = datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def verdicts_of(snapshot: Snapshot, now: float) -> dict[str, Document]:
    """Where the time of each GPU goes and since when, by UUID: in words, and the values behind
    them."""
    if now - snapshot.at > LONGEST:
        return {}
    return {
        key.uuid: {
            "since": instant(snapshot.wall - (snapshot.at - verdict.since)),
            **verdict_document(verdict, snapshot.at),
            **verdict_figures(verdict),
        }
        for key, verdict in snapshot.verdicts.items()
    }


def devices_of(snapshot: Snapshot, now: float) -> dict[str, DeviceEntries]:
    """Samples and absences by UUID; the index of a GPU is the one that was read last."""
    by_age = sorted(snapshot.readings.items(), key=lambda item: item[1].at)
    aged = replace(snapshot, readings=dict(by_age))
    devices: dict[str, DeviceEntries] = {}
    for sample in aged.samples(now):
        if isfinite(sample.value):
            device = device_of(sample, devices)
            device.gpu = labels_of(sample).get("gpu", "")
            device.samples.append(sample)
    for absence in aged.absences(now):
        device_of(absence, devices).absences.append(absence)
    return devices


def device_of(entry: Sample | Absence, devices: dict[str, DeviceEntries]) -> DeviceEntries:
    """The device that the labels name: the host where they name no GPU."""
    labels = labels_of(entry)
    gpu, uuid = (labels.get(name, "") for name in GPU_LABELS)
    return devices.setdefault(uuid or gpu, DeviceEntries(uuid, gpu))


def labels_of(entry: Sample | Absence) -> Labels:
    """Names and values of the labels; of an absence as far as they are known."""
    return dict(zip(entry.metric.labels, map(encodable, entry.labels), strict=False))


def further(entry: Sample | Absence) -> Labels:
    """The labels that do not name the GPU."""
    return {name: value for name, value in labels_of(entry).items() if name not in GPU_LABELS}


def is_labelled(metric: Metric) -> bool:
    """Whether one device has several values of the metric."""
    return not set(metric.labels) <= set(GPU_LABELS)


def gpu_entry(device: DeviceEntries) -> Document:
    return {
        "gpu": device.gpu,
        "uuid": device.uuid,
        "info": info_of(device, GPU_INFO),
        "values": values_of(device, without={GPU_INFO}),
        "absent": absences_of(device),
    }


def by_metric(entries: Iterable[Entry]) -> Iterator[tuple[Metric, list[Entry]]]:
    """Entries of one device by metric, sorted by name and labels; of two alike the newer."""
    newest = {(entry.metric.name, tuple(further(entry).values())): entry for entry in entries}
    groups: dict[str, list[Entry]] = {}
    for (name, _), entry in sorted(newest.items()):
        groups.setdefault(name, []).append(entry)
    for group in groups.values():
        yield group[0].metric, group


def values_of(device: DeviceEntries, without: Collection[str]) -> Document:
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


def absences_of(device: DeviceEntries) -> Document:
    """Why each metric is absent; where it has further labels, a list with those known."""
    found: Document = {}
    for metric, absences in by_metric(device.absences):
        if is_labelled(metric):
            found[metric.name] = [{"labels": further(a), **why(a)} for a in absences]
        else:
            found[metric.name] = why(absences[-1])
    return found


def host_absences(host: DeviceEntries) -> list[Document]:
    return [
        {"metric": metric.name, "labels": further(absence), **why(absence)}
        for metric, absences in by_metric(host.absences)
        for absence in absences
    ]


def why(absence: Absence) -> Labels:
    return {"reason": absence.reason.value, "detail": absence.detail}


def info_of(device: DeviceEntries, name: str) -> Labels:
    """The labels of an info metric, the newest where there are two; nothing where it is absent."""
    found = [further(sample) for sample in device.samples if sample.metric.name == name]
    return found[-1] if found else {}


def sources_of(samples: SampleStore) -> list[Document]:
    """What the agent says of each of its sources."""
    entries: dict[str, Document] = {}
    for metric, key in SOURCE_KEYS.items():
        for (source,), value in samples.all(metric).items():
            shown = bool(value) if metric is agent_health.SOURCE_UP else value
            entries.setdefault(source, {"source": source})[key] = shown
    return [entries[name] for name in sorted(entries)]
