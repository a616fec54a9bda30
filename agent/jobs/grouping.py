"""Groups GPU processes into jobs, based on data from /proc, without I/O. Only processes with the
same owner (agent.jobs.identity.owner) can belong to the same job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from agent.jobs.job import GroupedBy
from agent.model import GpuKey


class JobMember(NamedTuple):
    """A process on a GPU: its PID, the key shared by all processes of its job
    (agent.jobs.identity.keys), its owner (empty if unknown), and its rank (None if unknown)."""

    gpu: GpuKey
    pid: int
    key: str
    owner: str = ""
    rank: int | None = None


def pids_by_gpu(members: Iterable[JobMember]) -> Mapping[GpuKey, Set[int]]:
    found: dict[GpuKey, set[int]] = {}
    for member in members:
        found.setdefault(member.gpu, set()).add(member.pid)
    return found


@dataclass(frozen=True)
class JobGroup:
    """The processes of a job, in sorted order, and the evidence that they belong together."""

    members: tuple[JobMember, ...]
    grouped_by: GroupedBy

    def __hash__(self) -> int:
        return hash(self.members[0])

    @cached_property
    def pids(self) -> frozenset[int]:
        return frozenset(member.pid for member in self.members)

    @cached_property
    def pids_on(self) -> Mapping[GpuKey, Set[int]]:
        """PIDs by GPU, in order of GPU index."""
        return pids_by_gpu(self.members)

    @property
    def gpus(self) -> tuple[GpuKey, ...]:
        """The GPUs of the job, in order of GPU index."""
        return tuple(self.pids_on)


def groups(members: Iterable[JobMember], lock_step: Iterable[Set[GpuKey]] = ()) -> list[JobGroup]:
    """Return the processes as jobs, sorted by first GPU. `lock_step` contains sets of GPUs that run
    in lockstep. Processes of the same owner on the GPUs of a set belong to the same job."""
    by_key: dict[str, list[JobMember]] = {}
    for member in members:
        by_key.setdefault(member.key, []).append(member)
    found = {number: (_grouped_by(job), job) for number, job in enumerate(by_key.values())}
    on: dict[tuple[str, GpuKey], set[int]] = {}  # jobs by owner and GPU
    for number, (_, job) in found.items():
        for member in job:
            on.setdefault((member.owner, member.gpu), set()).add(number)
    for owner in sorted({owner for owner, _ in on} - {""}):
        for gpus in lock_step:
            hit = set().union(*(on.get((owner, gpu), ()) for gpu in gpus))
            if len(hit) > 1:
                alike = [member for number in sorted(hit) for member in found.pop(number)[1]]
                found[min(hit)] = GroupedBy.LOCK_STEP, alike
                for member in alike:
                    on[member.owner, member.gpu] -= hit
                    on[member.owner, member.gpu].add(min(hit))
    made = [JobGroup(tuple(sorted(job)), by) for by, job in found.values()]
    return sorted(made, key=lambda group: group.members[0])


def _grouped_by(members: Sequence[JobMember]) -> GroupedBy:
    if len({member.pid for member in members}) == 1:
        return GroupedBy.ALONE
    return GroupedBy.SLURM if members[0].key.startswith("slurm ") else GroupedBy.ANCESTOR


COMPARED = 120.0
"""Seconds over which the sent bytes of two GPUs are compared. Their readings may be 10 ms apart,
which is less than a third of EQUAL of this time."""

EQUAL = 3e-4
"""Maximum relative difference between the bytes that two GPUs in lockstep send. This value was
chosen, not measured, because counters of real ranks have not been compared over minutes."""


class SentBytes(NamedTuple):
    """The processes on a GPU, the time of its latest NVLink reading (monotonic seconds), and the
    number of bytes that the GPU had sent over NVLink at that time."""

    pids: Set[int]
    at: float
    sent: float


class LockSteps:
    """Detects GPUs that run in lockstep, and therefore belong to the same job. In collectives, all
    GPUs send the same number of bytes over NVLink. Two jobs that train the same model send at
    similar rates, but their byte counts soon differ. Call `take` on every tick."""

    def __init__(self) -> None:
        self._first: dict[tuple[GpuKey, GpuKey], tuple[SentBytes, SentBytes]] = {}
        self._last: dict[GpuKey, SentBytes] = {}
        self._equal: set[tuple[GpuKey, GpuKey]] = set()

    def take(self, now: Mapping[GpuKey, SentBytes]) -> Iterator[frozenset[GpuKey]]:
        """Yield the pairs of GPUs that ran in lockstep for two minutes. `now` contains all GPUs in
        use. A pair that sends no data keeps its last result, because its job may hang."""
        same = {gpu for gpu, one in self._last.items() if gpu in now and now[gpu].pids == one.pids}
        fresh = {gpu for gpu in same if now[gpu].at != self._last[gpu].at}
        self._last = dict(now)
        self._first = {pair: first for pair, first in self._first.items() if same >= {*pair}}
        self._equal = {pair for pair in self._equal if same >= {*pair}}
        for pair in combinations(sorted(now), 2):
            both = now[pair[0]], now[pair[1]]
            first = self._first.setdefault(pair, both)
            grown = [one.sent - before.sent for one, before in zip(both, first, strict=True)]
            # Readings from different ticks are not compared.
            if fresh >= {*pair} and (min(grown) < 0 or both[0].at - first[0].at >= COMPARED):
                self._first[pair] = both
                if min(grown) < 0 or max(grown) == 0:  # counter reset, or no traffic
                    continue
                if max(grown) - min(grown) <= EQUAL * max(grown):
                    self._equal.add(pair)
                else:
                    self._equal.discard(pair)
        yield from map(frozenset, sorted(self._equal))
