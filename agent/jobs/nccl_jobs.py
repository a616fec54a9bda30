"""Jobs of this host matched with answers of NCCL's RAS service, and when to ask."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.hardware.nccl_answer import (
    NcclAnswer,
    RasFailure,
    processes,
    same_job,
)
from agent.hardware.nccl_ras import RasRequest, RasRound
from agent.jobs.collectives import NcclReading, movement


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


class Unmatched(StrEnum):
    """Why NCCL did not report a job although something answered."""

    PORT_TAKEN = "port_taken"  # another job answers at this address


@dataclass(frozen=True, slots=True)
class UnmatchedJob:
    """A job of which nothing was reported; `detail` is a sentence."""

    key: str
    reason: Unmatched | RasFailure
    detail: str


@dataclass(frozen=True, slots=True)
class MatchedJobs:
    """The jobs of this host, by key: what NCCL reported of them, or why it did not."""

    matched: Mapping[str, NcclAnswer]
    unmatched: tuple[UnmatchedJob, ...]


TAKEN = (
    "NCCL answers for another job of this host: give this one an address of its own in "
    "NCCL_RAS_ADDR, or start it as the same user"
)


def match(jobs: Sequence[LocalJob], ras: RasRound) -> MatchedJobs:
    """Which answer is each job's own: processes are known by their numbers."""
    matched: dict[str, NcclAnswer] = {}
    unmatched: list[UnmatchedJob] = []
    for job in jobs:
        pids = {inner for pid, inner in job.pids.items() if pid in ras.believed}
        own = [a for a in ras.answers if pids & {process.pid for process in processes(a)}]
        if own:
            matched[job.key] = own[0]
        elif ras.answers or ras.failure is None:
            unmatched.append(UnmatchedJob(job.key, Unmatched.PORT_TAKEN, TAKEN))
        else:
            unmatched.append(UnmatchedJob(job.key, ras.failure.failure, ras.failure.detail))
    return MatchedJobs(matched, tuple(unmatched))


class NcclMode(StrEnum):
    """When NCCL is asked: the words of `job.nccl`."""

    OFF = "off"
    HANG = "hang"  # only of a job that hangs by everything else
    ALWAYS = "always"


EVERY = 30.0
"""Seconds from one round's beginning to the next."""
EVERY_SUSPECTED = 5.0
"""The same under `always` while a job may hang."""
LEAST_AGE = 300.0
"""Seconds for which a job must have run under `hang`: asking during its start has ended jobs."""
LEAST_GPUS = 2
CONNECTIONS = {NcclMode.HANG: 1, NcclMode.ALWAYS: 4}
"""How often a round may connect: several jobs of one user share the port."""

RETRY_AFTER = {
    RasFailure.NOT_NCCL: 600.0,
    RasFailure.CHANGED: 600.0,
    RasFailure.UNREACHABLE: 600.0,
    RasFailure.TOO_LARGE: 120.0,
    RasFailure.SLOW: 120.0,
    RasFailure.PROTOCOL: 60.0,
}
"""Seconds for which there is no round after a failure: what will not pass soon, or costs a job."""
HOPELESS = {RasFailure.NOT_NCCL, RasFailure.CHANGED, RasFailure.UNREACHABLE}
"""Failures after which asking again soon is of no use even while a hang is suspected."""


class RasSchedule:
    """When NCCL is asked for which jobs: never when off, seldom when on."""

    def __init__(self) -> None:
        self._next = {True: 0.0, False: 0.0}  # by whether a hang is suspected

    def due(self, now: float, mode: NcclMode, jobs: Sequence[LocalJob]) -> RasRequest | None:
        """What to ask now (monotonic seconds), with all these jobs on the host."""
        wanted = [job for job in jobs if job.gpus >= LEAST_GPUS]
        if mode is NcclMode.HANG:
            wanted = [job for job in wanted if job.hangs and job.age >= LEAST_AGE]
        suspected = mode is NcclMode.ALWAYS and any(job.suspected for job in wanted)
        if mode is NcclMode.OFF or not wanted or now < self._next[suspected]:
            return None
        return RasRequest(
            processes={pid: inner for job in jobs for pid, inner in job.pids.items()},
            wanted=[pid for job in wanted for pid in job.pids],
            unknown=mode is NcclMode.ALWAYS,
            connections=CONNECTIONS[mode],
        )

    def asked(self, began: float, ras: RasRound) -> None:
        """Note a round that began then, and let what failed have its rest."""
        self._next = {True: began + EVERY_SUSPECTED, False: began + EVERY}
        if ras.failure is None or ras.answers:
            return
        failure = ras.failure.failure
        rested = began + ras.seconds + RETRY_AFTER.get(failure, 0.0)
        self._next[False] = max(self._next[False], rested)
        if failure in HOPELESS:
            self._next[True] = max(self._next[True], rested)


KEPT = 4
"""Readings kept of each job: two to compare, the first of a standstill, one to spare."""
FORGOTTEN = 600.0
"""Seconds after which a job that is not reported any more is forgotten."""


class NcclHistory:
    """The newest readings of each job; of a standstill the first, however long it lasts."""

    def __init__(self) -> None:
        self._jobs: list[list[NcclReading]] = []

    def add(self, at: float, answers: Iterable[NcclAnswer]) -> None:
        """Keep a round's answers; `at` in monotonic seconds."""
        for answer in answers:
            reading = NcclReading(at, answer)
            kept = next((job for job in self._jobs if same_job(job[-1].answer, answer)), None)
            if kept is None:
                self._jobs.append([reading])
            elif len(kept) >= 2 and _unchanged([*kept[-2:], reading]):
                kept[-1] = reading
            else:
                kept.append(reading)
                del kept[:-KEPT]
        self._jobs = [job for job in self._jobs if at - job[-1].at <= FORGOTTEN]

    def readings(self, answer: NcclAnswer) -> tuple[NcclReading, ...]:
        """The readings of the job that an answer is of, oldest first."""
        return tuple(next((job for job in self._jobs if same_job(job[-1].answer, answer)), ()))


def _unchanged(readings: Sequence[NcclReading]) -> bool:
    """Whether nothing moved, and no one went missing or came back."""
    missing = {
        frozenset((c.key, rank.rank, rank.loss) for c in answer.communicators for rank in c.missing)
        for _, answer in readings
    }
    return len(missing) == 1 and movement(readings).still is True
