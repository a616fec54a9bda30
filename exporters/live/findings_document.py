"""Findings and absences, which take milliseconds to work out."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agent.faults.findings import findings
from agent.model import Absence, Cause, Finding, Reason, Severity, Snapshot, State
from agent.series import SampleStore
from exporters.live.timeline import Place, Timeline, hold, place_of
from exporters.live.view import View, silence
from exporters.messages import finding_document, wait

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FindingsDocument:
    """As of one tick; replaced whole."""

    tick: int = -1
    findings: tuple[Finding, ...] = ()
    asked: frozenset[str] = frozenset()  # metrics of which a change is news to the findings
    absent: list[Document] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)  # the findings in words
    timeline: Timeline = field(default_factory=Timeline)


def findings_document(view: View, before: FindingsDocument | None = None) -> FindingsDocument:
    """Look through everything; for any thread. `before` is the look before this one."""
    snapshot = view.latest()
    samples = SampleStore.of(snapshot).watched()
    wrong = tuple(findings(snapshot, view.system(), samples, view.thresholds()))
    timeline = (before.timeline if before else Timeline()).looked(
        snapshot, wrong, _ages(view, snapshot)
    )
    stood = [snapshot.at - timeline.began(place_of(one), snapshot.at) for one in wrong]
    early = [hold(one) > lasted for one, lasted in zip(wrong, stood, strict=True)]
    shown = [
        replace(one, severity=Severity.INFO) if soon else one
        for one, soon in zip(wrong, early, strict=True)
    ]
    documents = [
        {**finding_document(one, lasted), "since": timeline.since(one)}
        | ({"action": wait(hold(one))} if soon else {})
        for one, soon, lasted in zip(shown, early, stood, strict=True)
    ]
    return FindingsDocument(
        snapshot.tick,
        tuple(shown),
        frozenset(samples.asked),
        _grouped(snapshot.absences(snapshot.at)),
        documents,
        timeline,
    )


def _ages(view: View, snapshot: Snapshot) -> dict[Place, float]:
    """Return for how long what is reported with its own duration elsewhere has been so (s)."""
    lost, silent = view.diagnosis.inventory().lost.values(), silence(snapshot)
    hung: dict[Place, float] = {
        (State.HUNG, Cause.NONE, gpu.uuid): job.hang.seconds
        for job in view.jobs().running
        if job.hang
        for gpu in job.receipt.gpus
    }
    return {
        **hung,
        **({("gpus_missing", "", ""): snapshot.at - min(lost)} if lost else {}),
        **({("driver_hangs", "", ""): silent} if silent else {}),
    }


@dataclass(slots=True)
class _Group:
    """One metric absent for one reason: of which GPUs and devices."""

    meaning: str
    gpus: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)


def _grouped(absences: Iterable[Absence]) -> list[Document]:
    """A row for each metric, reason and detail, by reason."""
    groups: dict[tuple[Reason, str, str], _Group] = {}
    for metric, labels, reason, detail in absences:
        names = dict(zip(metric.labels, labels, strict=False))
        group = groups.setdefault((reason, metric.name, detail), _Group(metric.meaning))
        if names.get("gpu"):
            group.gpus.add(names["gpu"])
        elif names.get("device"):
            group.devices.add(names["device"])
    return [
        {
            "metric": name,
            "meaning": group.meaning,
            "reason": reason.value,
            "detail": detail,
            "gpus": sorted(group.gpus, key=int),
            "devices": sorted(group.devices),
        }
        for (reason, name, detail), group in sorted(groups.items())
    ]
