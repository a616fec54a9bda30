"""Groups the processes on GPUs by job: NCCL's word first, then what /proc shows. Pure.

Whatever joins processes, it joins those of one owner alone (agent.jobs.identity.owner)."""

from collections.abc import Iterable, Sequence, Set
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
