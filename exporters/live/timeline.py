"""Timeline of the last 24 hours: faults, lost time of GPUs, and jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agent.diagnosis.advice import SUMMARIES, severity
from agent.jobs.job import Receipt
from agent.model import Finding, Snapshot, Verdict
from agent.ranges import ranges
from exporters.job_words import title
from exporters.messages import GOOD, LEVELS, duration, finding_text

Document = dict[str, Any]

BRIDGED = 60.0
"""Seconds for which something may be away and still be the same; for which a state must have stood;
and from the first look on those in which everything is read for the first time."""

KEPT = 86_400.0  # s
MOST = 200
"""Stretches that are over, and events that are shown."""

ALIKE = 30.0
"""Seconds between the beginnings, and the ends, of what several GPUs did together."""

Place = tuple[str, str, str]
"""Key of a stretch: a finding (its kind, the UUID of its GPU, its device), or a state of a GPU."""


class Stretch(NamedTuple):
    """Something that was so: from `since` (wall time; None: in the agent's first minute) until
    `until`, which the agent's clock calls `last` (s)."""

    since: float | None
    until: float
    last: float
    level: str
    text: str
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """As of one look; replaced whole."""

    first: float | None = None  # when the agent looked first (its clock, s)
    standing: Mapping[Place, Stretch] = field(default_factory=dict)
    over: tuple[Stretch, ...] = ()

    def looked(self, snapshot: Snapshot, wrong: Iterable[Finding]) -> "Timeline":
        """Take in what this look shows; what has been away for too long is over."""
        first = snapshot.at if self.first is None else self.first
        gone = [one for one in self.standing.values() if snapshot.at - one.last > BRIDGED]
        kept = (one for one in (*self.over, *gone) if snapshot.wall - one.until < KEPT)
        standing = {p: one for p, one in self.standing.items() if snapshot.at - one.last <= BRIDGED}
        began = snapshot.wall if snapshot.at - first > BRIDGED else None
        for place, one in _now(snapshot, wrong, began):
            since = standing[place].since if place in standing else one.since
            standing[place] = one._replace(since=since)
        return Timeline(first, standing, tuple(kept)[-MOST:])

    def since(self, finding: Finding) -> float | None:
        """Return the time when a finding of this look began (wall time); None if it was there from
        the start."""
        return self.standing[_place_of(finding)].since

    def document(self, now: float, jobs: Iterable[Receipt]) -> list[Document]:
        """All of it at the agent's second `now`, the newest first, with the jobs of that time."""
        groups: list[list[Stretch]] = []
        for one in sorted((*self.over, *self.standing.values()), key=lambda s: s.since or 0.0):
            alike = next((group for group in groups if _together(group[-1], one)), None)
            if alike is None:
                groups.append(alike := [])
            alike.append(one)
        found = [_event(group, now) for group in groups] + [*map(_of_job, jobs)]
        return sorted(found, key=lambda one: -(one["since"] or 0.0))[:MOST]


def _place_of(finding: Finding) -> Place:
    return finding.kind, finding.gpu.uuid if finding.gpu else "", finding.device


def _now(
    snapshot: Snapshot, wrong: Iterable[Finding], began: float | None
) -> Iterable[tuple[Place, Stretch]]:
    """Return the present faults, and each costly state that has lasted for a minute."""
    wall, at = snapshot.wall, snapshot.at
    for finding in wrong:
        ago = next((figure.value for figure in finding.figures if figure.name == "ago"), None)
        lasting = tuple(figure for figure in finding.figures if figure.name != "ago")
        text = finding_text(replace(finding, figures=lasting), named=False)
        index = finding.gpu.index if finding.gpu else None
        since = began if ago is None else wall - ago
        stretch = Stretch(since, wall, at, LEVELS[finding.severity], text, index)
        yield _place_of(finding), stretch
    for gpu, verdict in snapshot.verdicts.items():
        stood = at - verdict.since
        if stood >= BRIDGED and severity(verdict.pair) is not None:
            level, text = LEVELS[severity(verdict.pair)], _state_text(verdict)
            place = (*verdict.pair, gpu.uuid)
            yield place, Stretch(wall - stood, wall, at, level, text, gpu.index)


def _state_text(verdict: Verdict) -> str:
    late = verdict.waits_for
    return f"waiting for GPU {late.index}" if late else SUMMARIES[verdict.pair]


def _together(one: Stretch, other: Stretch) -> bool:
    return (one.level, one.text, one.gpu is None) == (other.level, other.text, False) and (
        abs((one.since or 0.0) - (other.since or 0.0)) <= ALIKE
        and abs(one.until - other.until) <= ALIKE
    )


def _event(group: list[Stretch], now: float) -> Document:
    """Stretches of several GPUs as one."""
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


def _of_job(receipt: Receipt) -> Document:
    gpus = f"GPU{'s' * (len(receipt.gpus) > 1)} {ranges(gpu.index for gpu in receipt.gpus)}"
    text = f"{title(receipt)} on {gpus}"
    if receipt.ended is not None:
        text += f" ran for {duration(receipt.lasted)}"
    return {
        "since": receipt.began,
        "until": receipt.ended,
        "level": GOOD,
        "text": text,
        "job": receipt.id,
    }
