"""Jobs of this host matched with answers of NCCL's RAS service, and when to ask."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.bounds import RAS_CONNECTIONS
from agent.hardware.nccl import NcclAnswer, RasRequest, RasRound
from agent.jobs.collectives import NcclReading, still
from agent.model import Absent, Labels, Reason


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
    """The newest readings of each job; of a hang the first, however long it lasts."""

    def __init__(self) -> None:
        self._jobs: list[list[NcclReading]] = []

    def add(self, at: float, answers: Iterable[NcclAnswer]) -> None:
        """Keep a round's answers; `at` in monotonic seconds."""
        for answer in answers:
            reading = NcclReading(at, answer)
            kept = self._of(answer)
            if kept is None:
                self._jobs.append([reading])
            elif len(kept) >= 2 and _unchanged([*kept[-2:], reading]):
                kept[-1] = reading
            else:
                kept.append(reading)
                del kept[:-2]
        self._jobs = [job for job in self._jobs if at - job[-1].at <= REST]

    def readings(self, answer: NcclAnswer) -> tuple[NcclReading, ...]:
        """The readings of the job that an answer is of, oldest first."""
        return tuple(self._of(answer) or ())

    def _of(self, answer: NcclAnswer) -> list[NcclReading] | None:
        return next((job for job in self._jobs if job[-1].answer.same_job(answer)), None)


def _unchanged(readings: Sequence[NcclReading]) -> bool:
    """Return whether nothing moved, and no rank went missing or came back."""
    silent = {
        frozenset((c.key, rank.rank) for c in answer.communicators for rank in c.silent)
        for _, answer in readings
    }
    return len(silent) == 1 and still(readings) is True
