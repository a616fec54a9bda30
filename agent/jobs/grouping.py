"""Groups the processes on GPUs by job: NCCL's word first, then what /proc shows. Pure.

Whatever joins processes, it joins those of one owner alone (agent.jobs.identity.owner)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import NamedTuple

from agent.jobs.job import GroupedBy
from agent.model import GpuKey


class JobMember(NamedTuple):
    """A process on a GPU: its number, the one that it has in its own pid namespace, what it shares
    with the others of its job (agent.jobs.identity.keys), its owner, empty where unknown, and its
    rank, where that is known."""

    gpu: GpuKey
    pid: int
    inner_pid: int
    key: str
    owner: str = ""
    rank: int | None = None


class JobGroup(NamedTuple):
    """The processes of one job, and what joins them."""

    members: tuple[JobMember, ...]
    grouped_by: GroupedBy

    @property
    def key(self) -> str:
        return min(member.key for member in self.members)

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(member.pid for member in self.members)

    @property
    def gpus(self) -> tuple[GpuKey, ...]:
        """Sorted by index."""
        return tuple(sorted({member.gpu for member in self.members}))


def groups(
    members: Iterable[JobMember],
    ranks: Iterable[Set[int]] = (),
    lock_step: Iterable[Set[GpuKey]] = (),
) -> list[JobGroup]:
    """Processes by job, the lowest GPU first. `ranks` are the local processes (pids) of each job
    that NCCL reports, `lock_step` the GPUs that step together and say nothing else."""
    by_key: dict[str, list[JobMember]] = {}
    for member in members:
        by_key.setdefault(member.key, []).append(member)
    found = [(_grouped_by(of_key), of_key) for of_key in by_key.values()]
    for owner in sorted({member.owner for of_key in by_key.values() for member in of_key} - {""}):
        for pids in ranks:
            hit = [any(m.pid in pids and m.owner == owner for m in job) for _, job in found]
            found = _joined(found, hit, GroupedBy.NCCL)
        for gpus in lock_step:
            hit = [any(m.gpu in gpus and m.owner == owner for m in job) for _, job in found]
            found = _joined(found, hit, GroupedBy.LOCK_STEP)
    made = [JobGroup(tuple(sorted(of_job)), by) for by, of_job in found]
    return sorted(made, key=lambda group: group.members[0])


_Found = list[tuple[GroupedBy, list[JobMember]]]


def _joined(found: _Found, hit: Sequence[bool], by: GroupedBy) -> _Found:
    """The groups that are hit as one; what tied them before stays where nothing is joined, but
    NCCL's word counts more."""
    of_one = [
        member
        for (_, of_job), is_hit in zip(found, hit, strict=True)
        if is_hit
        for member in of_job
    ]
    if sum(hit) == 0 or (sum(hit) == 1 and (by is not GroupedBy.NCCL or len(of_one) == 1)):
        return found
    rest = [one for one, is_hit in zip(found, hit, strict=True) if not is_hit]
    return [*rest, (by, of_one)]


def _grouped_by(members: Sequence[JobMember]) -> GroupedBy:
    if len({member.pid for member in members}) == 1:
        return GroupedBy.ALONE
    return GroupedBy.SLURM if members[0].key.startswith("slurm ") else GroupedBy.ANCESTOR


COMPARED = 120.0
"""Seconds of bytes that are compared: a reading 10 ms apart is a third of EQUAL of them."""

EQUAL = 3e-4
"""Relative difference, at most, of what GPUs in lock-step have sent. Readings of one tick that are
10 ms apart make 1e-4 of two minutes. Chosen, not measured: the counters of real ranks were never
compared over minutes."""


class SentBytes(NamedTuple):
    """The processes on a GPU, and the bytes that it had sent over NVLink when it was last read, at
    this monotonic second."""

    pids: Set[int]
    at: float
    sent: float


class _Pair:
    """Two GPUs with the same processes as before."""

    def __init__(self, one: SentBytes, other: SentBytes) -> None:
        self.in_lock_step = False
        self._first = self._last = one, other

    def take(self, one: SentBytes, other: SentBytes) -> None:
        """Take the bytes that both had sent at their last read; ignore the reading if neither
        sends: a job that hangs is still one."""
        first, last = self._first, self._last
        self._last = one, other
        if one.at == last[0].at or other.at == last[1].at:  # they were read at different ticks
            return
        grown = one.sent - first[0].sent, other.sent - first[1].sent
        if min(grown) < 0:  # counted from 0 again
            self._first = one, other
        elif one.at - first[0].at >= COMPARED:
            self._first = one, other
            if max(grown) > 0:
                self.in_lock_step = max(grown) - min(grown) <= EQUAL * max(grown)


class LockSteps:
    """GPUs that take the same steps, where nothing else shows that they work for one job: in a
    collective each sends as many bytes over NVLink as the next. Two jobs of the same model send
    almost as much a second, and drift apart within minutes. Fed each tick with every GPU that
    processes are on."""

    def __init__(self) -> None:
        self._pids: dict[GpuKey, Set[int]] = {}
        self._pairs: dict[tuple[GpuKey, GpuKey], _Pair] = {}

    def take(self, now: Mapping[GpuKey, SentBytes]) -> Iterator[frozenset[GpuKey]]:
        """Pairs of GPUs that have taken the same steps for minutes."""
        pids = {gpu: one.pids for gpu, one in now.items()}
        changed = {gpu for gpu, before in self._pids.items() if pids.get(gpu) != before}
        self._pids = pids
        for gone in [pair for pair in self._pairs if changed & {*pair}]:
            del self._pairs[gone]
        for one, other in combinations(sorted(now), 2):
            pair = self._pairs.setdefault((one, other), _Pair(now[one], now[other]))
            pair.take(now[one], now[other])
            if pair.in_lock_step:
                yield frozenset((one, other))
