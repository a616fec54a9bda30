"""Who a standing job waits for, from NCCL's answers and the processes of this host. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.hardware.nccl_answer import MissingRank, Rank
from agent.jobs.collectives import (
    STANDING,
    STANDING_SECONDS,
    NcclReading,
    RankSeat,
    Stalled,
    lost,
    movement,
    seat,
    stalled,
    waited_for,
)
from agent.jobs.grouping import JobGroup
from agent.jobs.job import Culprit


class Standstill(NamedTuple):
    """What NCCL says of a job that may hang.

    `still` is whether it has launched nothing for a while, None where that is not shown; `behind`
    the counts of whom it waits for, where they differ; `elsewhere` whether all of these are on
    other hosts. A job at rest between two cells of a notebook stands still too: without a
    culprit that is no hang.
    """

    still: bool | None = None
    culprits: tuple[Culprit, ...] = ()
    behind: Stalled | None = None
    elsewhere: bool = False


def standstill(readings: Sequence[NcclReading], group: JobGroup) -> Standstill:
    """What the readings of a job say, oldest first."""
    recent = [r for r in readings if readings[-1].at - r.at >= STANDING_SECONDS]
    if len(readings) < STANDING or not recent:
        return Standstill()
    still = movement([recent[-1], readings[-1]]).still
    here = _here(readings[-1], group)
    standing = stalled(readings)
    who = waited_for(standing)
    found = [
        *_behind(standing, who.first or who.circle, here, group),
        *(_culprit(one.rank, one.rank.rank, here, group) for one in lost(readings)),
    ]
    unique = tuple(dict.fromkeys(found))
    elsewhere = bool(unique) and all(c.host and c.host != here and c.gpu is None for c in unique)
    return Standstill(still, unique, standing[0] if standing else None, elsewhere)


def _here(reading: NcclReading, group: JobGroup) -> str:
    """This host as the job's ranks call it: as most of those do that are processes of the job."""
    inner = {member.inner_pid for member in group.members}
    hosts = Counter(
        rank.host for c in reading.answer.communicators for rank in c.ranks if rank.pid in inner
    )
    return hosts.most_common(1)[0][0] if hosts else ""


def _behind(
    standing: Sequence[Stalled], seats: frozenset[RankSeat], here: str, group: JobGroup
) -> Iterator[Culprit]:
    for stall in standing:
        for rank in (*stall.behind, *stall.waiting):
            if seat(rank, stall.communicator) in seats:
                yield _culprit(rank, rank.rank, here, group)


def _culprit(rank: Rank | MissingRank, number: int, here: str, group: JobGroup) -> Culprit:
    local = [m for m in group.members if m.inner_pid == rank.pid and rank.host in ("", here)]
    on_device = [m for m in local if m.gpu.index == rank.nvml_device]
    member = next(iter(on_device or local), None)
    if member is None:
        return Culprit(number, rank.pid, None, rank.host)
    return Culprit(number, member.pid, member.gpu, rank.host)
