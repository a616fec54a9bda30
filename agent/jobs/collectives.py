"""Findings from successive answers of NCCL: whether a job launches anything, and which ranks are
behind or lost.

Pure. Counts are of launched collectives (agent.hardware.nccl says of which). A healthy job's ranks
differ by a few, for they are read while they run and launch ahead of their GPUs: only counts that
stay behind mean something, and then only that others wait, not why: the rank that they wait for may
be writing a checkpoint.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.hardware.nccl import Communicator, NcclAnswer, Rank, RankLocation


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


@dataclass(frozen=True, slots=True)
class Stalled:
    """Counts of one kind that stand still while they differ: some ranks wait for others.

    `behind` are the ranks that launched the fewest (`launched`), `waiting` all that launched more
    (at most `others_launched`). `since` is the first reading that showed the same counts.
    """

    communicator: str
    kind: str
    launched: int
    others_launched: int
    behind: tuple[Rank, ...]
    waiting: tuple[Rank, ...]
    since: float


def stalled(readings: Sequence[NcclReading]) -> tuple[Stalled, ...]:
    """Communicators of the newest reading whose ranks differ while none launches anything.

    `readings` of one job, oldest first, some seconds apart (nccl_jobs.EVERY). Ranks that launch
    collectives elsewhere meanwhile hold no one up for good: a communicator that waits for such
    ranks alone is left out.
    """
    if len(readings) < 2:
        return ()
    busy = _movers(*readings[-2:])
    found: list[Stalled] = []
    for communicator in readings[-1].answer.communicators:

        def unmoved(other: Communicator | None, one: Communicator = communicator) -> bool:
            return other is not None and _same_counts(other, one)

        since, count = _lasting(readings, communicator.key, unmoved)
        if count >= 2:
            found += _differing(communicator, since)
    return tuple(one for one in found if {rank.location for rank in one.behind} - busy)


def _lasting(
    readings: Sequence[NcclReading], key: str, holds: Callable[[Communicator | None], bool]
) -> tuple[float, int]:
    """Since when something holds of a communicator, and in how many readings on end."""
    since, count = readings[-1].at, 0
    for reading in reversed(readings):
        if not holds(reading.by_key.get(key)):
            break
        since, count = reading.at, count + 1
    return since, count


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


def _differing(communicator: Communicator, since: float) -> Iterator[Stalled]:
    for kind in sorted({kind for rank in communicator.ranks for kind in rank.counts}):
        counts = {rank: rank.counts[kind] for rank in communicator.ranks if kind in rank.counts}
        low, high = min(counts.values()), max(counts.values())
        if low < high:
            behind = tuple(rank for rank, count in counts.items() if count == low)
            waiting = tuple(rank for rank, count in counts.items() if count > low)
            yield Stalled(communicator.key, kind, low, high, behind, waiting, since)


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
    """Ranks whose processes did not answer in the newest readings, of each communicator."""
    found: list[Rank] = []
    for communicator in readings[-1].answer.communicators if readings else ():
        for rank in communicator.silent:

            def silent(other: Communicator | None, number: int = rank.rank) -> bool:
                return other is not None and number in {one.rank for one in other.silent}

            if _lasting(readings, communicator.key, silent)[1] >= 2:
                found.append(rank)
    return tuple(found)


def counted(reading: NcclReading) -> Mapping[int, int]:
    """Collectives launched by each process, of all kinds and communicators, by its own number."""
    found: dict[int, int] = {}
    for communicator in reading.answer.communicators:
        for rank in communicator.ranks:
            found[rank.pid] = found.get(rank.pid, 0) + sum(rank.counts.values())
    return found
