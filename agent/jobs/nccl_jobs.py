"""Jobs of this host and NCCL: when to ask its RAS service, which answer is whose, what successive
answers show, and whom a standing job waits for.

Counts are of launched collectives (agent.hardware.nccl says of which). A healthy job's ranks differ
by a few, for they are read while they run and launch ahead of their GPUs: only counts that stay
behind mean something, and then only that others wait, not why: the rank that they wait for may be
writing a checkpoint."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.bounds import RAS_CONNECTIONS
from agent.hardware.nccl import Communicator, NcclAnswer, Rank, RankLocation, RasRequest, RasRound
from agent.jobs.grouping import JobGroup
from agent.jobs.job import Culprit
from agent.model import Absent, Labels, Reason


class NcclReading(NamedTuple):
    """One answer; `at` in seconds on the agent's monotonic clock."""

    at: float
    answer: NcclAnswer

    @property
    def by_key(self) -> dict[str, Communicator]:
        return {communicator.key: communicator for communicator in self.answer.communicators}


def still(readings: Sequence[NcclReading]) -> bool | None:
    """Return whether no communicator launched anything over these readings of one job, at least
    two; None where none can be judged, for it has launched nothing that is counted (only sends and
    receives, or CUDA graphs).

    A job that replays CUDA graphs stands still here while it works: the GPUs must agree.
    """
    stood: bool | None = None
    earlier = [reading.by_key for reading in readings[:-1]]
    for communicator in readings[-1].answer.communicators if earlier else ():
        if any(any(rank.counts.values()) for rank in communicator.ranks):
            states = [communicators.get(communicator.key) for communicators in earlier]
            if any(state and not _same_counts(state, communicator) for state in states):
                return False
            stood = True if all(states) else stood
    return stood


def _same_counts(one: Communicator, other: Communicator) -> bool:
    """Return whether all ranks that both readings name launched the same; a rank may have gone
    missing."""
    first = {rank.rank: rank.counts for rank in one.ranks}
    return all(first.get(rank.rank, rank.counts) == rank.counts for rank in other.ranks)


class Stalled(NamedTuple):
    """Counts of one kind that stand still while they differ: some ranks wait for others.

    `behind` are the ranks that launched the fewest (`launched`), `waiting` all that launched more
    (at most `others_launched`).
    """

    kind: str
    launched: int
    others_launched: int
    behind: tuple[Rank, ...]
    waiting: tuple[Rank, ...]


def stalled(readings: Sequence[NcclReading]) -> tuple[Stalled, ...]:
    """Communicators of the newest reading whose ranks differ while none launches anything.

    `readings` of one job, oldest first, some seconds apart (nccl_jobs.EVERY). Ranks that launch
    collectives elsewhere meanwhile hold no one up for good: a communicator that waits for such
    ranks alone is left out.
    """
    if len(readings) < 2:
        return ()
    busy, before = _movers(*readings[-2:]), readings[-2].by_key
    found = [
        one
        for communicator in readings[-1].answer.communicators
        if (known := before.get(communicator.key)) and _same_counts(known, communicator)
        for one in _differing(communicator)
    ]
    return tuple(one for one in found if {rank.location for rank in one.behind} - busy)


def _movers(before: NcclReading, after: NcclReading) -> set[RankLocation]:
    """The ranks that launched anything from one reading to the next."""
    counts = {(c.key, r.rank): r.counts for c in before.answer.communicators for r in c.ranks}
    return {
        rank.location
        for communicator in after.answer.communicators
        for rank in communicator.ranks
        if (known := counts.get((communicator.key, rank.rank)))
        and any(kind in known and count > known[kind] for kind, count in rank.counts.items())
    }


def _differing(communicator: Communicator) -> Iterator[Stalled]:
    for kind in sorted({kind for rank in communicator.ranks for kind in rank.counts}):
        counts = {rank: rank.counts[kind] for rank in communicator.ranks if kind in rank.counts}
        low, high = min(counts.values()), max(counts.values())
        if low < high:
            behind = tuple(rank for rank, count in counts.items() if count == low)
            waiting = tuple(rank for rank, count in counts.items() if count > low)
            yield Stalled(kind, low, high, behind, waiting)


def waited_for(standing: Iterable[Stalled]) -> frozenset[RankLocation]:
    """Return the ranks that a standing job waits for: those that are behind in some communicator
    and wait in none. A rank that is stuck in one communicator is soon late in all its others, and
    so are its peers.

    Where there is none, those that wait for one another: ranks that called different collectives,
    or the same ones of several communicators in different order.
    """
    stalls = list(standing)
    behind = {rank.location for stall in stalls for rank in stall.behind}
    waiting = {rank.location for stall in stalls for rank in stall.waiting}
    return frozenset(behind - waiting or behind & waiting)


def lost(readings: Sequence[NcclReading]) -> tuple[Rank, ...]:
    """Ranks whose processes did not answer in the two newest readings, of each communicator."""
    if len(readings) < 2:
        return ()
    silent = {(c.key, r.rank) for c in readings[-2].answer.communicators for r in c.silent}
    every = ((c.key, r) for c in readings[-1].answer.communicators for r in c.silent)
    return tuple(rank for key, rank in every if (key, rank.rank) in silent)


def counted(reading: NcclReading) -> Mapping[int, int]:
    """Collectives launched by each process, of all kinds and communicators, by its own number."""
    found = Counter[int]()
    for rank in (one for c in reading.answer.communicators for one in c.ranks):
        found[rank.pid] += sum(rank.counts.values())
    return found


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job's part on this host.

    `pids` are its processes, each with the number by which it knows itself, which is what NCCL
    reports: the last of NSpid in /proc/PID/status. `age` in seconds; `hangs` by all that is known
    without NCCL, `suspected` before that is sure.
    """

    key: str
    pids: Mapping[int, int]
    gpus: int
    age: float = 0.0
    suspected: bool = False
    hangs: bool = False


TAKEN = Absent(
    Reason.UNKNOWN,
    "NCCL answers for another job of this host: give this job its own address in "
    "NCCL_RAS_ADDR, or start it as the same user",
)


def match(
    jobs: Sequence[LocalJob], ras: RasRound
) -> tuple[dict[str, NcclAnswer], dict[str, Absent]]:
    """Return the answer that belongs to each job, by the keys of jobs, for processes are known by
    their numbers; and why there is none of others."""
    own: dict[str, NcclAnswer] = {}
    without: dict[str, Absent] = {}
    for job in jobs:
        pids = {inner for pid, inner in job.pids.items() if pid in ras.believed}
        named = (a for a in ras.answers if pids & {pid for _, pid in a.processes})
        if (answer := next(named, None)) is not None:
            own[job.key] = answer
        else:  # the failure of a service that may not name this job is no reason of its own
            another = ras.answers or ras.failure is None or (ras.believed and not pids)
            without[job.key] = TAKEN if another else ras.failure or TAKEN
    return own, without


@dataclass(frozen=True, slots=True)
class NcclReport:
    """The newest round: the readings of each job by its key, oldest first, the local processes
    that they may name, and why there are none of others.

    `at` is on the agent's monotonic clock.
    """

    at: float = 0.0
    readings: Mapping[str, tuple[NcclReading, ...]] = field(default_factory=dict)
    believed: frozenset[int] = frozenset()
    unheard: Mapping[str, Absent] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class NcclExchange:
    """Written by two threads, each its own part; every part is replaced whole, so none waits.

    `jobs` and `gpus` (of each process by its number) are written by who knows the jobs, `latest` by
    who asks NCCL.
    """

    jobs: tuple[LocalJob, ...] = ()
    gpus: Mapping[int, Labels] = field(default_factory=dict)
    latest: NcclReport = field(default_factory=NcclReport)


class NcclMode(StrEnum):
    """Mode of asking NCCL: the values of `job.nccl`."""

    OFF = "off"
    HANG = "hang"  # only of a job that hangs by everything else
    ALWAYS = "always"


EVERY, EVERY_SUSPECTED = 30.0, 5.0
"""Seconds from one round to the next, and the same under `always` while a job may hang. Not
measured: chosen so that two rounds show a hang before its GPUs do alone (after ten seconds)."""
LEAST_AGE = 300.0
"""Seconds for which a job must have run under `hang`: asking during its start has ended jobs
(agent.hardware.nccl_guard.KNOWN_FAULTS)."""
REST = 600.0
"""Seconds for which there is no round after a failure: another service than NCCL's does not go
away soon, and one that does not answer in time may cost its job. And after which a job that is not
reported any more is forgotten. Chosen."""


class RasSchedule:
    """Schedule of questions to NCCL, per job: never when off, seldom when on."""

    def __init__(self) -> None:
        self._next = {True: 0.0, False: 0.0}  # by whether a hang is suspected

    def due(self, now: float, mode: NcclMode, jobs: Sequence[LocalJob]) -> RasRequest | None:
        """Return the questions that are due (monotonic seconds), given all jobs on the host."""
        wanted = [job for job in jobs if job.gpus > 1]
        if mode is NcclMode.HANG:
            wanted = [job for job in wanted if job.hangs and job.age >= LEAST_AGE]
        suspected = mode is NcclMode.ALWAYS and any(job.suspected for job in wanted)
        if mode is NcclMode.OFF or not wanted or now < self._next[suspected]:
            return None
        return RasRequest(
            processes={pid: inner for job in jobs for pid, inner in job.pids.items()},
            wanted=[pid for job in wanted for pid in job.pids],
            unknown=mode is NcclMode.ALWAYS,
            connections=RAS_CONNECTIONS if mode is NcclMode.ALWAYS else 1,
        )

    def asked(self, began: float, ras: RasRound) -> None:
        """Note a round that began then, and let what failed have its rest."""
        self._next = {True: began + EVERY_SUSPECTED, False: began + EVERY}
        if ras.failure is None or ras.answers:
            return
        known = ras.failure.reason in (Reason.FAILED, Reason.STALLED)
        rested = began + ras.seconds + (REST if known else 0.0)
        self._next[False] = max(self._next[False], rested)
        if ras.failure.reason is Reason.FAILED:  # of no use even while a hang is suspected
            self._next[True] = max(self._next[True], rested)


class NcclHistory:
    """The two newest readings of each job."""

    def __init__(self) -> None:
        self._jobs: list[tuple[NcclReading, ...]] = []

    def add(self, at: float, answers: Iterable[NcclAnswer]) -> None:
        """Keep a round's answers; `at` in monotonic seconds."""
        for answer in answers:
            kept = self.readings(answer)
            self._jobs = [job for job in self._jobs if job is not kept]
            self._jobs.append((*kept[-1:], NcclReading(at, answer)))
        self._jobs = [job for job in self._jobs if at - job[-1].at <= REST]

    def readings(self, answer: NcclAnswer) -> tuple[NcclReading, ...]:
        """The readings of the job that an answer is of, oldest first."""
        return next((job for job in self._jobs if job[-1].answer.same_job(answer)), ())


class HangEvidence(NamedTuple):
    """Evidence from NCCL on a job that may hang.

    `still` is whether it has launched nothing for a while, None where that is not shown; `behind`
    the counts of whom it waits for, where they differ; `elsewhere` whether all of these are on
    other hosts. A job at rest between two cells of a notebook stands still too: without a
    culprit that is no hang.
    """

    still: bool | None = None
    culprits: tuple[Culprit, ...] = ()
    behind: Stalled | None = None
    elsewhere: bool = False


def hang_evidence(readings: Sequence[NcclReading], group: JobGroup) -> HangEvidence:
    """Return the evidence in the readings of a job, which are sorted by age, oldest first."""
    if len(readings) < 2:
        return HangEvidence()
    inner = {member.inner_pid for member in group.members}
    named = (rank for c in readings[-1].answer.communicators for rank in c.ranks)
    hosts = Counter(rank.host for rank in named if rank.pid in inner)
    here = hosts.most_common(1)[0][0] if hosts else ""  # this host as its ranks call it
    standing = stalled(readings)
    locations = waited_for(standing)
    behind = [r for one in standing for r in (*one.behind, *one.waiting) if r.location in locations]
    culprits = (_culprit(rank, here, group) for rank in (*behind, *lost(readings)))
    unique = tuple(dict.fromkeys(culprits))
    elsewhere = bool(unique) and all(c.host and c.host != here and c.gpu is None for c in unique)
    stands = still(readings[-2:])
    return HangEvidence(stands, unique, standing[0] if standing else None, elsewhere)


def _culprit(rank: Rank, here: str, group: JobGroup) -> Culprit:
    local = [m for m in group.members if m.inner_pid == rank.pid and rank.host in ("", here)]
    on_device = [m for m in local if m.gpu.index == rank.nvml_device]
    member = next(iter(on_device or local), None)
    if member is None:
        return Culprit(rank.rank, rank.pid, None, rank.host)
    return Culprit(rank.rank, member.pid, member.gpu, rank.host)
