"""Builds the status of the machine on request, at most once per tick."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from agent.diagnosis.advice import SUMMARIES
from agent.jobs.job import WatchedJobs, percent
from agent.model import Pair, Snapshot
from agent.ranges import gpus_named
from agent.series import Derived, SampleStore
from agent.sources import infiniband
from agent.status import model
from agent.status.events import event_statuses, with_jobs
from agent.status.findings import Ailing, ailing_paths, by_gpu, finding_statuses, grave, not_good
from agent.status.gpus import Judged, SeenTick, finding_step, gpu_statuses, judged
from agent.status.headline import group_status, grouped, headline
from agent.status.history import History
from agent.status.jobs import NO_USER, ended_job, running_job, title
from agent.status.links import FarEnds, link_rates, nvlink_graph
from agent.status.machine import (
    absence_statuses,
    host_status,
    machine_status,
    source_statuses,
    summary,
)
from agent.status.model import AbsenceStatus, FindingStatus, GpuGroup, HeadlineClause, Level, Status
from agent.status.paths import Way, path_kinds, path_rows, path_statuses, ways_of
from agent.status.source import StatusSource, silence
from agent.status.words import moment, worst_level


class Looked(NamedTuple):
    """Parts of the status that are updated only after a check for faults."""

    absences: tuple[AbsenceStatus, ...]
    unknown: str | None
    sources: tuple[model.SourceStatus, ...]
    rates: Mapping[str, str]  # negotiated rates of links, by kind of path
    events: Sequence[model.EventStatus]  # without jobs


@dataclass(slots=True, eq=False)
class StatusBoard:
    """A listener of the poller. It records the history of the last 15 minutes, and builds the
    status of a tick when a client first requests it."""

    source: StatusSource
    history: History = field(init=False)
    _ends: FarEnds = field(default_factory=FarEnds)
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(-1, 0.0, 0.0))
    _status: Status | None = None
    _json: bytes = b""
    _derived: Derived = field(default_factory=Derived)

    def __post_init__(self) -> None:
        self.history = History(self.source.diagnosis.inventory, self.source.samples)

    def __call__(self, snapshot: Snapshot) -> None:
        """Record a tick's values in the history."""
        self.snapshot, self._status, self._json = snapshot, None, b""
        self.history.take(snapshot)
        self._ends.take(self.source.samples, self.source.faults.spec())

    @property
    def tick(self) -> int:
        return self.snapshot.tick

    def status(self) -> Status:
        """Return the status of the last tick."""
        if self._status is None:
            self._status = self._build(self.snapshot)
        return self._status

    def json(self) -> bytes:
        """Return the status of the last tick as JSON."""
        if not self._json:
            self._json = msgspec.json.encode(self.status())
        return self._json

    def _build(self, snapshot: Snapshot) -> Status:
        source, samples = self.source, self.source.samples
        source.look()
        silent = silence(snapshot) > 0
        ways = ways_of(source.diagnosis.bandwidth, samples, self._derived)
        paths = path_statuses(ways, source.diagnosis.bandwidth, samples, silent=silent)
        seen = self._seen(snapshot, paths, silent=silent)
        clauses = headline(seen)
        ailing = ailing_paths(seen.findings, (gpu.number for gpu in seen.gpus))
        jobs, looked = seen.jobs, self._looked(ways, ailing)
        made_of = samples, source.faults.spec(), self._ends, source.diagnosis.bandwidth, paths
        graph, links = nvlink_graph(*made_of, faults=source.faults.active, ailing=ailing)
        groups = _groups(seen, clauses)
        running = tuple(_running(jobs, seen, groups))
        return Status(
            at=moment(snapshot.wall),
            tick=snapshot.tick,
            second=int(snapshot.at),
            level=Level.CRITICAL if grave(seen.findings) else worst_level(c.level for c in clauses),
            machine=machine_status(source, snapshot),
            headline=clauses,
            sound=_sound(samples) if looked.sources and not seen.findings else None,
            groups=groups,
            findings=_once(seen.findings, clauses),
            gpus=tuple(gpu_statuses(seen)),
            divided=None if silent else _divided(seen.gpus),
            jobs=running,
            unnamed=None if not running or any(job.user for job in running) else NO_USER,
            ended=tuple(ended_job(one, jobs.ended) for one in jobs.ended[:5]),
            paths=paths,
            path_rows=path_rows(paths, samples, ailing),
            path_kinds=path_kinds(paths, looked.rates, ailing),
            links=links,
            graph=graph,
            host=host_status(samples),
            sources=looked.sources,
            absences=looked.absences,
            unknown=looked.unknown,
            events=with_jobs(looked.events, jobs, silent=silent),
        )

    def _seen(
        self, snapshot: Snapshot, paths: Sequence[model.PathStatus], *, silent: bool
    ) -> SeenTick:
        source = self.source
        full = any(path.level for path in paths if path.path != "hbm")
        jobs = source.jobs()
        gpus = judged(source, self.history, snapshot, jobs)
        findings = finding_statuses(
            source.faults,
            snapshot,
            source.diagnosis.bandwidth,
            _places(source, jobs),
            partial(finding_step, gpus={gpu.identity.uuid: gpu for gpu in gpus}),
            peers=self._ends.ends,
        )
        of_gpus = by_gpu(findings, (gpu.identity.key for gpu in gpus))
        return SeenTick(snapshot, source, jobs, silent, gpus, findings, of_gpus, full)

    def _looked(self, ways: Sequence[Way], ailing: Ailing) -> Looked:
        """Return the parts of the status that change only with a check for faults. They are cached
        until the next check, because computing them takes long."""
        source, seen = self.source, self.source.faults.snapshot
        inventory, specs = source.inventory, source.diagnosis.bandwidth.specs

        def found() -> Looked:
            absent = tuple(seen.absences(seen.at))
            absences = self._derived.of(absence_statuses, absent, lambda: absence_statuses(absent))
            lost = inventory.lost
            rates = link_rates(ways, inventory.gpus, lost, specs, source.samples, ailing=ailing)
            events = event_statuses(source.faults.events, seen, self._ends.ends)
            return Looked(absences, summary(absences), source_statuses(seen), rates, events)

        return self._derived.of(Looked, (seen,), found)


def _places(source: StatusSource, jobs: WatchedJobs) -> Mapping[str, tuple[str, Sequence[int]]]:
    """Return the names and indices of missing GPUs, and the names of jobs that became slower, for
    findings. The keys are the kinds of faults. The metrics of these faults lack this data."""
    missing = source.inventory.missing
    slow = (title(job.receipt) for job in jobs.running if job.slower)
    return {
        "gpus_missing": (gpus_named(missing) if missing else "", missing),
        "job_slower": (", ".join(slow), ()),
    }


def _sound(samples: SampleStore) -> str:
    """Return the sentence that nothing is wrong. A port that was never up may be unused."""
    ports = sorted(samples.all(infiniband.PORT_UP).items())
    down = ", ".join(":".join(port) for port, up in ports if not up)
    more = f" InfiniBand ports that are down: {down}." if down else ""
    return f"All expected hardware is present, and no link is known to be slow.{more}"


def _groups(seen: SeenTick, clauses: Sequence[HeadlineClause]) -> tuple[GpuGroup, ...]:
    said = {clause.do for clause in clauses}
    groups = (
        group_status(one, seen.snapshot, full=seen.full)
        for one in ([] if seen.silent else grouped(seen.gpus))
    )
    return tuple(_without(one, said, seen.findings) for one in groups)


def _running(
    jobs: WatchedJobs, seen: SeenTick, groups: Sequence[GpuGroup]
) -> Iterator[model.RunningJob]:
    for job in jobs.running:
        found = (seen.of_gpus.get(gpu.uuid, ()) for gpu in job.receipt.gpus)
        own = tuple({one.id: one for of_gpu in found for one in of_gpu}.values())
        gpus = {gpu.index for gpu in job.receipt.gpus}
        levels = [group.level for group in groups if gpus.intersection(group.gpus)]
        yield running_job(job, jobs.ended, seen.snapshot, own, levels, silent=seen.silent)


def _without(group: GpuGroup, said: set[str | None], findings: Sequence[FindingStatus]) -> GpuGroup:
    """Return the group with the IDs of the findings about its GPUs. If one of them is critical, the
    level is not `good`. Omit the first step if it is in `said`."""
    devices = {f"gpu{number}" for number in group.gpus}
    own = [one for one in findings if devices.intersection(one.devices)]
    return replace(
        group,
        findings=tuple(one.id for one in own),
        level=not_good(group.level, own),
        do=None if group.do in said else group.do,
    )


def _once(
    findings: Sequence[FindingStatus], clauses: Sequence[HeadlineClause]
) -> tuple[FindingStatus, ...]:
    """Return the findings, without first steps that the headline or an earlier finding shows."""
    shown = {name for clause in clauses for name in clause.findings}
    said = {clause.do for clause in clauses}
    found = []
    for one in findings:
        repeated = one.do in said and one.id not in shown
        said.add(one.do)
        found.append(replace(one, do=None) if repeated else one)
    return tuple(found)


def _divided(gpus: Sequence[Judged]) -> str | None:
    """Return a text about the states in which all GPUs together spend their time, for example `busy
    65 %, starved by disk 30 %`. Return None if one state takes almost all of it."""
    sums: dict[Pair, float] = {}
    for verdict in (gpu.verdict for gpu in gpus if gpu.verdict):
        for pair, part in verdict.shares.items():
            sums[pair] = sums.get(pair, 0.0) + part
    whole = sum(sums.values())
    if not whole or max(sums.values()) > 0.95 * whole:  # almost all of the time
        return None
    named = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(
        f"{SUMMARIES[pair]} {percent(part / whole)}"
        for pair, part in named
        if part >= 0.005 * whole
    )
