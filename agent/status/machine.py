"""The parts of the status about the machine, its host's load, the agent's sources, and absences,
and the events of the last 24 hours: faults, losses of GPU time, and jobs."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent import __version__
from agent.diagnosis.advice import SUMMARIES
from agent.faults.findings import FaultEvent
from agent.faults.monitoring import ABSENT
from agent.jobs.job import Receipt, WatchedJobs, percent
from agent.model import Absence, Labels, Reason, Snapshot
from agent.polling.poller import HEALTH_KEY
from agent.polling.reads import OFF
from agent.ranges import device_ranges, gpus_named
from agent.series import SampleStore
from agent.sources import host, system
from agent.sources.agent_health import SOURCE_UP
from agent.status import model
from agent.status.findings import near_ends
from agent.status.gpus import StatusSource
from agent.status.history import SETTLED
from agent.status.jobs import receipt_level, title
from agent.status.model import AbsenceStatus, EventStatus, Level, MachineStatus
from agent.status.words import LEVEL, began, duration, finding_text, moment, of_gpus

NO_GPUS = {
    Reason.STALLED: "its NVIDIA driver does not respond",
    Reason.NO_DRIVER: "no NVIDIA driver",
}


def machine_status(source: StatusSource, snapshot: Snapshot) -> MachineStatus:
    """Return the identity of the machine and of its agent."""
    samples, first, uptime = source.samples, source.faults.first, source.uptime()
    info = next(iter(samples.labelled(system.INFO)), {})
    gpus, expected = samples.value(system.GPUS), samples.value(system.GPUS_EXPECTED)
    absence = samples.absence(system.GPUS)
    found = MachineStatus(
        host=source.host,
        system=info.get("system") or None,
        title=info.get("title") or None,
        product=info.get("product") or None,
        driver_version=info.get("driver_version") or None,
        gpus=None if gpus is None else int(gpus),
        gpus_expected=None if expected is None else int(expected),
        models=tuple(sorted({gpu.model or "model not known" for gpu in source.inventory.gpus})),
        reason=absence.reason if absence else None,
        simulated=source.simulated,
        version=__version__,
        started=None if first is None else moment(round(snapshot.wall - snapshot.at + first)),
        uptime_seconds=None if uptime is None else int(uptime),
        text="",
    )
    return replace(found, text=_sentence(found, source.playing(snapshot.at)))


def _sentence(machine: MachineStatus, playing: str) -> str:
    text = machine.title or machine.product or "Unknown system"
    if machine.gpus is None:
        text += f", {NO_GPUS.get(machine.reason or Reason.UNKNOWN, 'its GPUs could not be asked')}"
    else:
        of = f" of {machine.gpus_expected}" if machine.gpus_expected else ""
        gpus = "GPU" if (machine.gpus_expected or machine.gpus) == 1 else "GPUs"
        text += f", driver {machine.driver_version or 'not known'}, {machine.gpus}{of} {gpus}"
    if machine.simulated:
        playing = f"Simulated ({playing})" if playing else "Simulated"
    return f"{playing}, not this host's GPUs: {text}" if playing else text


def source_statuses(snapshot: Snapshot) -> tuple[model.SourceStatus, ...]:
    """Return the state of each source (up, down, or off), sorted by name."""
    health = snapshot.readings.get(HEALTH_KEY)
    samples = health.samples if health else ()
    up = {s.labels[0]: bool(s.value) for s in samples if s.metric is SOURCE_UP}
    off = {key.source for key in snapshot.readings if key.part == OFF}
    states = {name: "up" if answers else "down" for name, answers in up.items()}
    states |= dict.fromkeys(off, "off")
    return tuple(model.SourceStatus(source=name, state=states[name]) for name in sorted(states))


def host_status(samples: SampleStore) -> model.HostStatus:
    """Return the host's CPU utilization, and the time shares in which tasks waited, by resource."""
    busy = samples.value(host.BUSY)
    rate = samples.rate
    stalled = {n: rate(host.PRESSURE, n, "some", seconds=SETTLED) for n in host.STALLS}
    known = {name: min(part, 1.0) for name, part in stalled.items() if part is not None}
    waits = ", ".join(f"{name} {percent(part)}" for name, part in known.items())
    text = f"CPUs busy {'-' if busy is None else percent(busy)}"
    return model.HostStatus(
        cpu_ratio=busy,
        stalled_ratio={name: known.get(name) for name in stalled},
        text=f"{text}; some task waited: {waits}" if waits else text,
    )


def absence_statuses(absences: Iterable[Absence]) -> tuple[AbsenceStatus, ...]:
    """Return one status for all absences that have the same metric, reason, and detail."""
    groups: dict[tuple[Reason, str, str, str], list[Mapping[str, str]]] = {}
    for metric, labels, reason, detail in absences:
        key = reason, metric.name, detail, metric.meaning
        groups.setdefault(key, []).append(dict(zip(metric.labels, labels, strict=False)))
    return tuple(
        AbsenceStatus(
            metric=name,
            meaning=meaning,
            reason=reason,
            text=": ".join(filter(None, (_where(places), ABSENT[reason], detail))),
        )
        for (reason, name, detail, meaning), places in sorted(groups.items())
    )


def summary(found: Sequence[AbsenceStatus], named: int = 0) -> str | None:
    """Return a string with the number of absent metrics, and up to `named` names per reason."""
    if not found:
        return None
    first = {one.metric: one.reason for one in reversed(found)}  # one reason each, to add up
    reasons = []
    for reason, count in Counter(first.values()).most_common():
        names = sorted(name for name, own in first.items() if own is reason)[:named]
        words = f"{count}: {', '.join(names)}".removesuffix(": ")
        reasons.append(f"{ABSENT[reason]} ({words})")
    return f"{len(first)} metric{'s' * (len(first) > 1)} not known: {', '.join(reasons)}"


def _where(places: Sequence[Mapping[str, str]]) -> str:
    """Return a string that lists the GPUs and devices in the labels of absences, for example `GPUs
    0-7`, `GPU 0 link 2; GPU 3 link 0`, or `md0, md1`."""
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
        alike.setdefault((bool(gpu), device_ranges(tuple(words))), []).append(gpu)
    return "; ".join(
        f"{gpus_named(map(int, gpus))} {rest}".rstrip() if of_gpu else rest
        for (of_gpu, rest), gpus in alike.items()
    )


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
        return finding_text(dataclasses.replace(event.finding, figures=lasting))
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
