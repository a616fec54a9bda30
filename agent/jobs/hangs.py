"""Culprit of a standing job, from NCCL's answers and the processes of this host. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agent.hardware.nccl import Rank
from agent.jobs.collectives import (
    NcclReading,
    Stalled,
    lost,
    stalled,
    still,
    waited_for,
)
from agent.jobs.grouping import JobGroup
from agent.jobs.job import Culprit


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
    here, standing = _here(readings[-1], group), stalled(readings)
    locations = waited_for(standing)
    behind = [r for one in standing for r in (*one.behind, *one.waiting) if r.location in locations]
    unique = tuple(
        dict.fromkeys(_culprit(rank, here, group) for rank in (*behind, *lost(readings)))
    )
    elsewhere = bool(unique) and all(c.host and c.host != here and c.gpu is None for c in unique)
    stands = still(readings[-2:])
    return HangEvidence(stands, unique, standing[0] if standing else None, elsewhere)


def _here(reading: NcclReading, group: JobGroup) -> str:
    """This host as the job's ranks call it: as most of those do that are processes of the job."""
    inner = {member.inner_pid for member in group.members}
    hosts = Counter(
        rank.host for c in reading.answer.communicators for rank in c.ranks if rank.pid in inner
    )
    return hosts.most_common(1)[0][0] if hosts else ""


def _culprit(rank: Rank, here: str, group: JobGroup) -> Culprit:
    local = [m for m in group.members if m.inner_pid == rank.pid and rank.host in ("", here)]
    on_device = [m for m in local if m.gpu.index == rank.nvml_device]
    member = next(iter(on_device or local), None)
    if member is None:
        return Culprit(rank.rank, rank.pid, None, rank.host)
    return Culprit(rank.rank, member.pid, member.gpu, rank.host)
