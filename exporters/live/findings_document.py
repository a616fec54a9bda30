"""Findings and absences, which take milliseconds to work out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.faults.findings import findings
from agent.model import Absence, Finding, Reason
from agent.series import SampleStore
from exporters.live.view import View
from exporters.words import finding_document

Document = dict[str, Any]


Place = tuple[str, str, str]
"""Which finding: its kind, the UUID of its GPU, its device."""

BRIDGED = 60.0
"""Seconds for which a finding may be away and still be the same one; and from the first look on
those in which everything is read for the first time."""


class Presence(NamedTuple):
    """When a finding came (wall time; None: in the agent's first minute), and was seen last (s)."""

    since: float | None
    last: float


@dataclass(frozen=True, slots=True)
class FindingsDocument:
    """As of one tick; replaced whole."""

    tick: int = -1
    findings: tuple[Finding, ...] = ()
    asked: frozenset[str] = frozenset()  # metrics of which a change is news to the findings
    absent: list[Document] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)  # the findings in words
    seen: Mapping[Place, Presence] = field(default_factory=dict)
    first: float | None = None  # when anybody looked first (s)


def place_of(finding: Finding) -> Place:
    """Which finding it is."""
    return finding.kind, finding.gpu.uuid if finding.gpu else "", finding.device


def findings_document(view: View, before: FindingsDocument | None = None) -> FindingsDocument:
    """Look through everything; for any thread. `before` is the look before this one."""
    snapshot = view.latest()
    samples = SampleStore.of(snapshot).watched()
    wrong = tuple(findings(snapshot, view.system(), samples, view.thresholds()))
    first = snapshot.at if before is None or before.first is None else before.first
    began = snapshot.wall if snapshot.at - first > BRIDGED else None
    seen = before.seen.items() if before else ()
    known = {place: one for place, one in seen if snapshot.at - one.last <= BRIDGED}
    for finding in wrong:
        place = place_of(finding)
        known[place] = known.get(place, Presence(began, 0.0))._replace(last=snapshot.at)
    return FindingsDocument(
        snapshot.tick,
        wrong,
        frozenset(samples.asked),
        _grouped(snapshot.absences(snapshot.at)),
        [{**finding_document(one), "since": known[place_of(one)].since} for one in wrong],
        known,
        first,
    )


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
