"""Findings and absences, which take milliseconds to work out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.faults.findings import findings
from agent.model import Absence, Cause, Finding, Reason, Severity, Snapshot, State
from agent.ranges import natural, ranges
from exporters.live.timeline import Place, Timeline, hold, place_of
from exporters.live.view import View, silence
from exporters.messages import Document, finding_document, finding_notifies, wait


@dataclass(frozen=True, slots=True)
class FindingsDocument:
    """As of one tick; replaced whole."""

    tick: int = -1
    findings: tuple[Finding, ...] = ()
    over: frozenset[Finding] = frozenset()  # whose events are: only their counters stay
    absent: list[Document] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)  # the findings in words
    timeline: Timeline = field(default_factory=Timeline)


def findings_document(view: View, before: FindingsDocument | None = None) -> FindingsDocument:
    """Look through everything; for any thread. `before` is the look before this one."""
    snapshot = view.latest()
    wrong = tuple(findings(snapshot, view.system(), view.thresholds()))
    timeline = (before.timeline if before else Timeline()).looked(
        snapshot, wrong, _ages(view, snapshot)
    )
    stood = [snapshot.at - timeline.began(place_of(one), snapshot.at) for one in wrong]
    early = [hold(one) > lasted for one, lasted in zip(wrong, stood, strict=True)]
    calls = map(finding_notifies, wrong, stood)  # a late read's alert is as grave as it will be
    shown = [
        replace(one, severity=Severity.INFO) if soon else one
        for one, soon in zip(wrong, early, strict=True)
    ]
    # By its duration: the wall clock may have been set since it began.
    begins = [
        said if said is None or abs(said - snapshot.wall + lasted) < 1.0 else snapshot.wall - lasted
        for said, lasted in zip(map(timeline.since, wrong), stood, strict=True)
    ]
    documents = [
        {**finding_document(one, lasted), "since": since, "notifies": call}
        | ({"action": wait(hold(one))} if soon else {})
        for one, soon, lasted, since, call in zip(shown, early, stood, begins, calls, strict=True)
    ]
    return FindingsDocument(
        snapshot.tick,
        tuple(shown),
        frozenset(one for one in shown if timeline.is_over(one, snapshot.at)),
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


def _grouped(absences: Iterable[Absence]) -> list[Document]:
    groups: dict[tuple[Reason, str, str, str], list[Mapping[str, str]]] = {}
    for metric, labels, reason, detail in absences:
        key = reason, metric.name, detail, metric.meaning
        groups.setdefault(key, []).append(dict(zip(metric.labels, labels, strict=False)))
    return [
        {"metric": name, "meaning": meaning, "reason": reason.value, "detail": detail}
        | {"where": _where(places)}
        for (reason, name, detail, meaning), places in sorted(groups.items())
    ]


def _where(places: Sequence[Mapping[str, str]]) -> str:
    """`GPUs 0-7`, `GPU 0 link 2; GPU 3 link 0`, `md0, md1`: what exactly is absent, by labels."""
    further: dict[str, dict[str, None]] = {}  # by GPU
    for labels in places:
        rest = [
            f"{name} {value}" if value.isdecimal() else value
            for name, value in labels.items()
            if name not in ("gpu", "uuid") and value
        ]
        further.setdefault(labels.get("gpu", ""), {})[" ".join(rest)] = None
    alike: dict[tuple[bool, str], list[str]] = {}
    for gpu, words in further.items():
        rest = sorted(filter(None, words), key=natural)
        alike.setdefault((bool(gpu), ", ".join(rest)), []).append(gpu)
    return "; ".join(
        f"GPU{'s' * (len(gpus) > 1)} {ranges(map(int, gpus))} {rest}".rstrip() if of_gpu else rest
        for (of_gpu, rest), gpus in alike.items()
    )
