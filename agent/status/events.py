"""Events of the last 24 hours: faults, losses of GPU time, and jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.diagnosis.advice import SUMMARIES
from agent.faults.findings import of_gpus
from agent.faults.watch import FaultEvent
from agent.jobs.job import Receipt, WatchedJobs
from agent.model import Labels, Snapshot
from agent.ranges import gpus_named
from agent.status.findings import near_ends
from agent.status.jobs import receipt_level, title
from agent.status.model import EventStatus, Level
from agent.status.words import LEVEL, began, duration, finding_text, moment


def event_statuses(
    events: Sequence[FaultEvent], snapshot: Snapshot, peers: Mapping[Labels, int | None]
) -> list[EventStatus]:
    """Return the events about faults and lost time, with similar events on several GPUs merged."""
    groups: list[list[FaultEvent]] = []
    texts = {one.id: _text(one) for one in events}
    near = near_ends(events, peers)
    for one in sorted(events, key=lambda one: one.since or 0.0):
        hub = near.get(one.id)
        if hub and any(other.id == hub and _together(other, one) for other in events):
            continue  # the other end of the links reports them
        alike = (g for g in groups if texts[g[0].id] == texts[one.id] and _together(g[-1], one))
        found = next(alike, None)
        if found is None:
            groups.append(found := [])
        found.append(one)
    return [_event(group, texts[group[0].id], snapshot) for group in groups]


def with_jobs(
    events: Sequence[EventStatus], jobs: WatchedJobs, *, silent: bool
) -> tuple[EventStatus, ...]:
    """Add the events about jobs, and return the 200 latest events, most recent first. If the driver
    does not respond (`silent`), events about running jobs have no level."""
    receipts = (*(job.receipt for job in jobs.running), *jobs.ended)
    shown = [*events, *(job_event(receipt, silent=silent) for receipt in receipts)]
    newest = sorted(shown, key=lambda one: one.since.timestamp() if one.since else 0.0)
    return tuple(newest[::-1][:200])


def _text(event: FaultEvent) -> str:
    if event.finding:
        lasting = tuple(figure for figure in event.finding.figures if figure.name != "ago")
        return finding_text(replace(event.finding, figures=lasting))
    if event.waits_for:
        return f"waiting for GPU {event.waits_for.index}"
    return SUMMARIES[event.pair] if event.pair else ""


def _together(one: FaultEvent, other: FaultEvent) -> bool:
    near = all(
        abs((a or 0.0) - (b or 0.0)) <= 30.0  # s
        for a, b in ((one.since, other.since), (one.until, other.until))
    )
    return near and bool(one.gpu and other.gpu) and one.severity is other.severity


def _event(group: Sequence[FaultEvent], text: str, snapshot: Snapshot) -> EventStatus:
    first, at = group[0], snapshot.at
    gpus = [one.gpu.index for one in group if one.gpu]
    each = ", each" if first.finding and len(gpus) > 1 else ""
    return EventStatus(
        since=None if first.since is None else began(snapshot, at - first.since),
        until=None if first.until is None else began(snapshot, at - first.until),
        level=LEVEL[first.severity],
        text=f"{gpus_named(gpus)}{each}: {of_gpus(text, gpus)}" if gpus else text,
    )


def job_event(receipt: Receipt, *, silent: bool) -> EventStatus:
    """Return an event about a running or ended job. If the job has ended, the text contains its run
    time, and the level depends on its lost time."""
    text = f"{title(receipt)} on {gpus_named(gpu.index for gpu in receipt.gpus)}"
    over = receipt.ended is not None
    return EventStatus(
        since=moment(round(receipt.began)),
        until=None if receipt.ended is None else moment(round(receipt.ended)),
        level=receipt_level(receipt) if over else None if silent else Level.INFO,
        text=f"{text} ran for {duration(receipt.lasted)}" if over else text,
        job=receipt.id,
    )
