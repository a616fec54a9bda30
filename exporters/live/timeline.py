"""Timeline of the last 24 hours: faults, lost time of GPUs, and jobs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from agent.diagnosis.advice import SUMMARIES, severity
from agent.faults.findings import by_kind
from agent.faults.gpus import NVML
from agent.faults.promql import seconds
from agent.jobs.job import Receipt
from agent.model import Finding, Severity, Snapshot
from agent.ranges import ranges
from exporters.job_words import receipt_level, title
from exporters.messages import LEVELS, UNKNOWN, Document, duration, finding_text

BRIDGED = 60.0
"""Seconds for which something may be away and still be the same; for which a state must have stood;
and from the first look on those in which everything is read for the first time."""

KEPT = 86_400.0  # s
MOST = 200
"""Stretches that are over, and events that are shown."""

ALIKE = 30.0
"""Seconds between the beginnings, and the ends, of what several GPUs did together."""

EVENTS = ("xid", "link_errors")
"""Findings that a counter of events makes: it stays, and the event is over."""

OF_LATE = 900.0
"""Seconds after the last event for which something is broken now."""

READS = frozenset({"driver_hangs", "gpu_not_answering", "source_down", "values_absent"})
"""Findings that a read is late or failed: one late read ends by itself, and is no event."""

Place = tuple[str, str, str]
"""Key of a stretch: a finding (its kind, the UUID of its GPU, its device), or a state of a GPU."""


class Stretch(NamedTuple):
    """Something that was so: from `since` (wall time; None: in the agent's first minute) until
    `until`, which the agent's clock calls `began` and `last` (s)."""

    since: float | None
    until: float
    last: float
    level: str
    text: str
    gpu: int | None = None
    began: float = 0.0
    changed: float = 0.0  # when its text did last (s): a counter of events stays, and grows


def hold(finding: Finding) -> float:
    """Return the seconds for which a finding must stand before it is more than one late read."""
    fires = by_kind()[finding.kind].fires  # a value that is denied is not late
    known = finding.kind in READS and (not fires or fires(finding))
    return _hold(finding.kind) if known else 0.0


def _hold(kind: str) -> float:
    return max(BRIDGED, seconds(by_kind()[kind].hold)) if kind in READS else 0.0


def _stood(one: Stretch) -> float:
    return one.last - one.began


@dataclass(frozen=True, slots=True)
class Timeline:
    """As of one look; replaced whole."""

    first: float | None = None  # when the agent looked first (its clock, s)
    standing: Mapping[Place, Stretch] = field(default_factory=dict)
    over: tuple[Stretch, ...] = ()

    def looked(
        self,
        snapshot: Snapshot,
        wrong: Sequence[Finding],
        ages: Mapping[Place, float] = MappingProxyType({}),
    ) -> "Timeline":
        """Take in what this look shows, `ages` are seconds where they are known better; what has
        been away for too long is over, but for what this look could not see."""
        at, first = snapshot.at, snapshot.at if self.first is None else self.first
        now = dict(_now(snapshot, wrong, ages, fresh=at - first <= BRIDGED))
        unseen = {  # UUIDs of the GPUs that this look could not see; empty stands for all
            one.gpu.uuid if one.kind == "gpu_not_answering" and one.gpu else ""
            for one in wrong
            if one.kind in ("gpu_not_answering", "driver_hangs")
            or (one.kind, one.device) == ("source_down", NVML)
        }
        gone: list[Stretch] = []
        for place, one in self.standing.items():
            if place in now:
                new = now[place]
                changed = one.changed if new.text == one.text else at
                now[place] = new._replace(since=one.since, began=one.began, changed=changed)
            elif place[0] not in READS and ("" in unseen or unseen.intersection(place)):
                now[place] = one._replace(last=at)
            elif at - one.last <= BRIDGED:
                now[place] = one
            elif not _early(place, one):
                gone.append(one)
        kept = (one for one in (*self.over, *gone) if snapshot.wall - one.until < KEPT)
        return Timeline(first, now, tuple(kept)[-MOST:])

    def since(self, finding: Finding) -> float | None:
        """Return the time when a finding of this look began (wall time); None if it was there from
        the start."""
        return self.standing[place_of(finding)].since

    def is_over(self, finding: Finding, at: float) -> bool:
        """Return whether only the counter is left of the events of a finding."""
        changed = self.standing[place_of(finding)].changed
        return finding.kind in EVENTS and at - changed > OF_LATE

    def began(self, place: Place, at: float) -> float:
        """Return when something began that is so at `at`, on the agent's clock (s)."""
        return self.standing[place].began if place in self.standing else at

    def document(self, now: float, jobs: Iterable[Receipt]) -> list[Document]:
        """All of it at the agent's second `now`, the newest first, with the jobs of that time."""
        groups: list[list[Stretch]] = []
        there = [
            one._replace(level=LEVELS[Severity.INFO]) if _stood(one) < _hold(place[0]) else one
            for place, one in self.standing.items()
            if not _early(place, one)
        ]
        for one in sorted((*self.over, *there), key=lambda s: s.since or 0.0):
            alike = next((group for group in groups if _together(group[-1], one)), None)
            if alike is None:
                groups.append(alike := [])
            alike.append(one)
        found = [_event(group, now) for group in groups] + [*map(job_event, jobs)]
        if ("driver_hangs", "", "") in self.standing:  # nothing is known of running jobs
            found = [
                one | {"level": UNKNOWN} if one["job"] and not one["until"] else one
                for one in found
            ]
        return sorted(found, key=lambda one: -(one["since"] or 0.0))[:MOST]


def _early(place: Place, one: Stretch) -> bool:
    return place[0] in READS and _stood(one) < BRIDGED


def place_of(finding: Finding) -> Place:
    return finding.kind, finding.gpu.uuid if finding.gpu else "", finding.device


def _now(
    snapshot: Snapshot, wrong: Iterable[Finding], ages: Mapping[Place, float], *, fresh: bool
) -> Iterable[tuple[Place, Stretch]]:
    wall, at = snapshot.wall, snapshot.at
    for finding in wrong:
        place = place_of(finding)
        known = next((figure.value for figure in finding.figures if figure.name == "ago"), None)
        known = ages.get(place) if known is None else known
        lasting = tuple(figure for figure in finding.figures if figure.name != "ago")
        text = finding_text(replace(finding, figures=lasting), named=False)
        index = finding.gpu.index if finding.gpu else None
        since = None if fresh and known is None else wall - (known or 0.0)
        level = LEVELS[finding.severity]
        yield place, Stretch(since, wall, at, level, text, index, at - (known or 0.0), at)
    for gpu, verdict in snapshot.verdicts.items():
        place = (*verdict.pair, gpu.uuid)
        stood = max(at - verdict.since, ages.get(place, 0.0))
        if stood >= BRIDGED and severity(verdict.pair) is not None:
            late, level = verdict.waits_for, LEVELS[severity(verdict.pair)]
            text = f"waiting for GPU {late.index}" if late else SUMMARIES[verdict.pair]
            yield place, Stretch(wall - stood, wall, at, level, text, gpu.index, at - stood)


def _together(one: Stretch, other: Stretch) -> bool:
    return (one.level, one.text, one.gpu is None) == (other.level, other.text, False) and (
        abs((one.since or 0.0) - (other.since or 0.0)) <= ALIKE
        and abs(one.until - other.until) <= ALIKE
    )


def _event(group: list[Stretch], now: float) -> Document:
    first = group[0]
    gpus = ranges({one.gpu for one in group if one.gpu is not None})
    named = f"GPU{'s' * (len(group) > 1)} {gpus}: {first.text}" if gpus else first.text
    return {
        "since": first.since,
        "until": None if now - first.last <= BRIDGED else first.until,
        "level": first.level,
        "text": named,
        "job": None,
    }


def job_event(receipt: Receipt) -> Document:
    """Return a job as an event: while it runs its start, which is no warning; then its receipt."""
    gpus = f"GPU{'s' * (len(receipt.gpus) > 1)} {ranges(gpu.index for gpu in receipt.gpus)}"
    text = f"{title(receipt)} on {gpus}"
    if receipt.ended is not None:
        text += f" ran for {duration(receipt.lasted)}"
    level = receipt_level(receipt) if receipt.ended is not None else LEVELS[Severity.INFO]
    return {
        "since": receipt.began,
        "until": receipt.ended,
        "level": level,
        "text": text,
        "job": receipt.id,
    }
