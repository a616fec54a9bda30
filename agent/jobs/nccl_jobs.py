"""Jobs of this host matched with answers of NCCL's RAS service, and when to ask again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.hardware.nccl_answer import (
    NcclAnswer,
    RasFailure,
    processes,
    same_job,
)
from agent.hardware.nccl_ras import RasRound
from agent.jobs.collectives import NcclReading, movement


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job's part on this host.

    `pids` as the processes see themselves, which is what NCCL tells: the last number of NSpid in
    /proc/PID/status. `gpus` on this host.
    """

    key: str
    pids: frozenset[int]
    gpus: int


class Unmatched(StrEnum):
    """Why NCCL did not tell of a job although something answered."""

    PORT_TAKEN = "port_taken"  # another job answers at this address
    NOT_NAMED = "not_named"  # text without a process, and several jobs that may be meant


@dataclass(frozen=True, slots=True)
class UnmatchedJob:
    """A job that was not told of; `detail` is a sentence."""

    key: str
    reason: Unmatched | RasFailure
    detail: str


@dataclass(frozen=True, slots=True)
class MatchedJobs:
    """The jobs of this host, by key: what NCCL told of them, or why it did not."""

    matched: Mapping[str, NcclAnswer]
    unmatched: tuple[UnmatchedJob, ...]


TAKEN = (
    "NCCL answers for another job of this host: give this one an address of its own in "
    "NCCL_RAS_ADDR, or start it as the same user"
)
UNNAMED = (
    "NCCL before 2.28.7 names no process of a job that runs well, and several jobs may be meant"
)


def match(jobs: Sequence[LocalJob], ras: RasRound) -> MatchedJobs:
    """Say of each job which answer is its own: processes are known by their numbers."""
    matched: dict[str, NcclAnswer] = {}
    for job in jobs:
        own = [a for a in ras.answers if job.pids & {process.pid for process in processes(a)}]
        if not own and len(jobs) == 1:
            own = [answer for answer in ras.answers if _may_be(answer, job)]
        if own:
            matched[job.key] = own[0]
    left = [job for job in jobs if job.key not in matched]
    others = [answer for answer in ras.answers if answer not in matched.values()]
    return MatchedJobs(matched, tuple(_unmatched(job, ras, others) for job in left))


def _may_be(answer: NcclAnswer, job: LocalJob) -> bool:
    """Whether an answer that does not list all its processes can be a job's: it has GPUs enough."""
    return not answer.lists_all and (answer.gpus is None or answer.gpus >= job.gpus)


def _unmatched(job: LocalJob, ras: RasRound, others: Sequence[NcclAnswer]) -> UnmatchedJob:
    if any(_may_be(answer, job) for answer in others):
        return UnmatchedJob(job.key, Unmatched.NOT_NAMED, UNNAMED)
    if ras.answers or ras.failure is None:
        return UnmatchedJob(job.key, Unmatched.PORT_TAKEN, TAKEN)
    return UnmatchedJob(job.key, ras.failure.failure, ras.failure.detail)


RETRY_AFTER = {
    RasFailure.NOT_NCCL: 600.0,
    RasFailure.CHANGED: 600.0,
    RasFailure.UNREACHABLE: 600.0,
    RasFailure.TOO_LARGE: 120.0,
    RasFailure.SLOW: 120.0,
    RasFailure.PROTOCOL: 60.0,
}
"""Seconds for which nobody is asked after a failure: what will not pass soon, or costs a job."""
HOPELESS = {RasFailure.NOT_NCCL, RasFailure.CHANGED, RasFailure.UNREACHABLE}
"""Failures after which asking again soon is of no use even while a hang is suspected."""


class RasSchedule:
    """When NCCL is asked: seldom, more often while a hang is suspected, never when off.

    `calm` and `suspected` are seconds from one round's beginning to the next.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        calm: float = 30.0,
        suspected: float = 5.0,
        least_gpus: int = 2,
    ) -> None:
        self.enabled = enabled
        self._calm = calm
        self._suspected = suspected
        self._least_gpus = least_gpus
        self._next = {True: 0.0, False: 0.0}  # by whether a hang is suspected

    def worth_asking(self, jobs: Iterable[LocalJob]) -> tuple[LocalJob, ...]:
        """The jobs with GPUs enough to need NCCL."""
        return tuple(job for job in jobs if self.enabled and job.gpus >= self._least_gpus)

    def due(self, now: float, jobs: Iterable[LocalJob], *, suspected: bool) -> bool:
        """Whether to ask now (monotonic seconds), with these jobs on the host."""
        return bool(self.worth_asking(jobs)) and now >= self._next[suspected]

    def asked(self, began: float, ras: RasRound) -> None:
        """Note a round that began then, and let what failed have its rest."""
        self._next = {True: began + self._suspected, False: began + self._calm}
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
"""Seconds after which a job that is not told of any more is forgotten."""


class NcclHistory:
    """The newest readings of each job; of a standstill the first, however long it lasts."""

    def __init__(self) -> None:
        self._jobs: list[list[NcclReading]] = []

    def add(self, at: float, answers: Iterable[NcclAnswer]) -> None:
        """Keep a round's answers; `at` in monotonic seconds."""
        for answer in answers:
            reading = NcclReading(at, answer)
            kept = next((job for job in self._jobs if _alike(job[-1].answer, answer)), None)
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
        return tuple(next((job for job in self._jobs if _alike(job[-1].answer, answer)), ()))


def _unchanged(readings: Sequence[NcclReading]) -> bool:
    """Whether nothing moved, and nobody went missing or came back."""
    missing = {
        frozenset((c.key, rank.rank, rank.loss) for c in answer.communicators for rank in c.missing)
        for _, answer in readings
    }
    return len(missing) == 1 and movement(readings).still is True


def _alike(one: NcclAnswer, other: NcclAnswer) -> bool:
    """Whether two answers are of one job; texts that name nobody are where their totals agree."""
    if same_job(one, other):
        return True
    unnamed = not processes(one) or not processes(other)
    return unnamed and not (one.lists_all or other.lists_all) and _totals(one) == _totals(other)


def _totals(answer: NcclAnswer) -> tuple[str, int | None, int | None, int | None]:
    return answer.nccl_version, answer.nodes, answer.processes, answer.gpus
