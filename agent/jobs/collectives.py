"""What successive answers of NCCL show: collectives a second, stalls, ranks behind, ranks lost.

Pure. Counts are of launched collectives (agent.hardware.nccl_answer says of which). A healthy job's
ranks differ by a few, for they are read while they run and launch ahead of their GPUs: only counts
that stay behind mean something, and then only that others wait, not why: the rank that they wait
for may be writing a checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    Launched,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
)


class NcclReading(NamedTuple):
    """One answer; `at` in seconds on the agent's monotonic clock."""

    at: float
    answer: NcclAnswer


class RankSeat(NamedTuple):
    """Where a rank sits, the same in all communicators; one that is not reported is on its own."""

    host: str
    pid: int | None
    nvml_device: int | None
    communicator: str = ""
    rank: int | None = None


def seat(rank: Rank, communicator: CommunicatorKey) -> RankSeat:
    if rank.pid is None:
        return RankSeat("", None, None, communicator.hash, rank.rank)
    return RankSeat(rank.host, rank.pid, rank.nvml_device)


@dataclass(frozen=True, slots=True)
class Movement:
    """Which communicators launched anything between readings; those cannot be judged that have
    launched nothing that is counted (only sends and receives, or CUDA graphs)."""

    moved: frozenset[CommunicatorKey]
    stood: frozenset[CommunicatorKey]

    @property
    def still(self) -> bool | None:
        """Whether nothing moved; None where no communicator can be judged.

        A job that replays CUDA graphs stands still here while it works: the GPUs must agree.
        """
        if self.moved:
            return False
        return True if self.stood else None


def movement(readings: Sequence[NcclReading]) -> Movement:
    """What moved over these readings of one job; at least two report anything."""
    if not readings:
        return Movement(frozenset(), frozenset())
    moved, stood = set(), set()
    earlier = [_by_key(reading) for reading in readings[:-1]]
    for communicator in readings[-1].answer.communicators:
        states = [communicators.get(communicator.key) for communicators in earlier]
        if not states or not _has_counts(communicator):
            continue
        known = [state for state in states if state is not None]
        if any(not _same_counts(state, communicator) for state in known):
            moved.add(communicator.key)
        elif len(known) == len(states):
            stood.add(communicator.key)
    return Movement(frozenset(moved), frozenset(stood))


def _by_key(reading: NcclReading) -> dict[CommunicatorKey, Communicator]:
    return {communicator.key: communicator for communicator in reading.answer.communicators}


def _has_counts(communicator: Communicator) -> bool:
    return any(group.operations for group in communicator.launched)


def _same_counts(one: Communicator, other: Communicator) -> bool:
    """Whether all ranks that both readings name launched the same; a rank may have gone missing.

    Where they name none in common, whether the same counts occur.
    """
    first, second = _by_rank(one), _by_rank(other)
    shared = first.keys() & second.keys()
    if shared:
        return all(first[key] == second[key] for key in shared)
    return {group[:2] for group in one.launched} == {group[:2] for group in other.launched}


def _by_rank(communicator: Communicator) -> dict[tuple[str, int], int]:
    return {(g.kind, rank): g.operations for g in communicator.launched for rank in g.named}


@dataclass(frozen=True, slots=True)
class Stalled:
    """Counts of one kind that stand still while they differ: some ranks wait for others.

    `behind` are the ranks that launched the fewest (`launched`), `waiting` all that launched more
    (at most `others_launched`), as far as NCCL lists them. `since` is the first reading that showed
    the same counts.
    """

    communicator: CommunicatorKey
    kind: str
    launched: int
    others_launched: int
    behind: tuple[Rank, ...]
    waiting: tuple[Rank, ...]
    since: float


STANDING = 2
"""So many readings must report the same counts."""
STANDING_SECONDS = 3.0
"""And so far apart (s) the first and the last of them must be."""


def stalled(
    readings: Sequence[NcclReading], least: int = STANDING, seconds: float = STANDING_SECONDS
) -> tuple[Stalled, ...]:
    """Communicators of the newest reading whose ranks differ while none launches anything.

    `readings` of one job, oldest first. Ranks that launch collectives elsewhere meanwhile hold
    no one up for good: a communicator that waits for such ranks alone is left out.
    """
    if not readings:
        return ()
    newest = readings[-1]
    busy = _movers(readings[-2:])
    known = [(reading.at, _by_key(reading)) for reading in readings]
    found: list[Stalled] = []
    for communicator in newest.answer.communicators:
        since, count = _unmoved(communicator, known)
        if count >= least and newest.at - since >= seconds:
            found += _differing(communicator, since)
    return tuple(
        stall
        for stall in found
        if not stall.behind or {seat(rank, stall.communicator) for rank in stall.behind} - busy
    )


Known = Sequence[tuple[float, Mapping[CommunicatorKey, Communicator]]]
"""Readings, oldest first: when, and the communicators by key."""


def _unmoved(communicator: Communicator, known: Known) -> tuple[float, int]:
    """Since when a communicator's counts are what they are, and how many readings say so."""
    since, count = known[-1][0], 0
    for at, communicators in reversed(known):
        earlier = communicators.get(communicator.key)
        if earlier is None or not _same_counts(earlier, communicator):
            break
        since, count = at, count + 1
    return since, count


def _movers(readings: Sequence[NcclReading]) -> set[RankSeat]:
    """The ranks that launched anything from one reading to the next."""
    before = {
        (communicator.key, rank.rank): rank.counts
        for communicator in readings[0].answer.communicators
        for rank in communicator.ranks
    }
    return {
        seat(rank, communicator.key)
        for communicator in readings[-1].answer.communicators
        for rank in communicator.ranks
        if _grew(before.get((communicator.key, rank.rank), {}), rank.counts)
    }


def _grew(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    return any(kind in before and count > before[kind] for kind, count in after.items())


def _differing(communicator: Communicator, since: float) -> Iterable[Stalled]:
    kinds: dict[str, list[Launched]] = {}
    for group in communicator.launched:
        kinds.setdefault(group.kind, []).append(group)
    ranks = {rank.rank: rank for rank in communicator.ranks}
    for kind, groups in kinds.items():
        lowest, *others = sorted(groups, key=lambda group: group.operations)
        if not others:
            continue
        ahead = sorted(rank for group in others for rank in group.named)
        yield Stalled(
            communicator=communicator.key,
            kind=kind,
            launched=lowest.operations,
            others_launched=others[-1].operations,
            behind=tuple(ranks[rank] for rank in lowest.named if rank in ranks),
            waiting=tuple(ranks[rank] for rank in ahead if rank in ranks),
            since=since,
        )


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """Whom a standing job waits for.

    `first` are behind in some communicator and wait in none: the others wait for these. Where
    there is none, `circle` waits for one another: ranks that called different collectives, or the
    same ones of several communicators in different order.
    """

    first: frozenset[RankSeat]
    circle: frozenset[RankSeat]


def waited_for(standing: Iterable[Stalled]) -> WaitedFor:
    """Distinguish those who hold a job up from those who are late because they wait elsewhere.

    A rank that is stuck in one communicator is soon late in all its others, and so are its peers.
    """
    behind: set[RankSeat] = set()
    waiting: set[RankSeat] = set()
    for stall in standing:
        behind |= {seat(rank, stall.communicator) for rank in stall.behind}
        waiting |= {seat(rank, stall.communicator) for rank in stall.waiting}
    first = behind - waiting
    return WaitedFor(frozenset(first), frozenset() if first else frozenset(behind & waiting))


class LostRank(NamedTuple):
    """A rank that is missing in each of the newest readings; `since` the first of them."""

    communicator: CommunicatorKey
    rank: MissingRank
    since: float


def lost(readings: Sequence[NcclReading], least: int = STANDING) -> tuple[LostRank, ...]:
    """Ranks whose processes do not answer, by name, in so many successive readings.

    Ranks that answer without being members are none of these: they start, or have finished.
    """
    if not readings:
        return ()
    known = [(reading.at, _by_key(reading)) for reading in readings]
    found: list[LostRank] = []
    for communicator in readings[-1].answer.communicators:
        for rank in communicator.missing:
            since, count = _missed(communicator.key, rank, known)
            if count >= least and rank.loss is not RankLoss.LEFT:
                found.append(LostRank(communicator.key, rank, since))
    return tuple(found)


def _missed(key: CommunicatorKey, rank: MissingRank, known: Known) -> tuple[float, int]:
    """Since when a rank is missing, and in how many readings on end."""
    since, count = known[-1][0], 0
    for at, communicators in reversed(known):
        missing = communicators[key].missing if key in communicators else ()
        if not any(r.rank == rank.rank and r.loss is not RankLoss.LEFT for r in missing):
            break
        since, count = at, count + 1
    return since, count
