"""Findings from successive readings."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from agent.hardware.nccl import Communicator, NcclAnswer, Rank, RankLocation
from agent.jobs.nccl_jobs import NcclReading, lost, stalled, still, waited_for
from tests.support.nccl_service import SimulatedRanks

HOSTS = ("10.0.0.1",) * 8
TRAINING = SimulatedRanks(tuple(range(31, 39)), HOSTS, step=0.25, collectives={"AllReduce": 3})
STUCK = replace(TRAINING, stuck=5, stuck_at=100.0)

Counts = Mapping[str, int]


def readings(job: SimulatedRanks, times: Iterable[float]) -> list[NcclReading]:
    return [NcclReading(at, job.answer(at)) for at in times]


def communicator(name: str, counts: Mapping[int, Counts], *silent: Rank) -> Communicator:
    """One of processes 100, 101, ...: `counts` by process, whose ranks are in that order."""
    ranks = tuple(
        Rank(number, "10.0.0.1", 100 + process, process, shown)
        for number, (process, shown) in enumerate(sorted(counts.items()))
    )
    return Communicator(name, ranks, silent)


def reading(at: float, *communicators: Communicator) -> NcclReading:
    return NcclReading(at, NcclAnswer(communicators))


def place(process: int) -> RankLocation:
    return RankLocation("10.0.0.1", 100 + process, process)


def test_a_healthy_training_moves_and_no_rank_is_behind() -> None:
    for start in range(0, 50, 7):
        shown = readings(TRAINING, (start + 60, start + 60.1, start + 65, start + 70))
        assert still(shown) is False
        assert stalled(shown) == ()
        assert lost(shown) == ()


def test_ranks_that_differ_only_now_and_then_are_not_behind() -> None:
    """Read while they run, the ranks of a healthy job differ nearly always, each time elsewhere."""
    shown = [
        reading(5 * i, communicator("a", {r: {"AllReduce": 10 * i + r % 2} for r in range(4)}))
        for i in range(5)
    ]
    assert stalled(shown) == ()


def test_a_hang_needs_two_readings() -> None:
    assert stalled([]) == ()
    assert stalled(readings(STUCK, (101,))) == ()
    assert stalled(readings(STUCK, (95, 106))) == ()
    assert len(stalled(readings(STUCK, (101, 102, 105)))) == 1


def test_still_without_a_difference_is_distinguished() -> None:
    """A job that replays CUDA graphs, or one whose every rank waits for the network."""
    shown = [reading(t, communicator("a", {r: {"AllReduce": 7} for r in range(2)})) for t in (0, 9)]
    assert still(shown) is True
    assert stalled(shown) == ()


def test_nothing_is_known_of_communicators_without_counts() -> None:
    pipeline = communicator("a", {0: {"AllReduce": 0}, 1: {"AllReduce": 0}})
    assert still([reading(0, pipeline), reading(9, pipeline)]) is None
    assert still([reading(0, communicator("a", {0: {"AllReduce": 1}}))]) is None


def test_one_communicator_that_rests_is_no_hang_of_a_job_that_moves() -> None:
    """Used once for a barrier, by which one rank launched more."""
    shown = [
        reading(
            t,
            communicator("barrier", {0: {"AllReduce": 2}, 1: {"AllReduce": 1}}),
            communicator("work", {0: {"AllReduce": 10 * t}, 1: {"AllReduce": 10 * t}}),
        )
        for t in (1, 7, 13)
    ]
    assert still(shown) is False
    assert still([reading(one.at, one.answer.communicators[0]) for one in shown]) is True
    assert stalled(shown) == ()


def test_who_waits_elsewhere_is_not_to_blame() -> None:
    """Process 1 hangs before its turn with 0; so 0 is late for 2, and 3, its own peer, too."""
    groups = (
        communicator("pair 0 1", {0: {"AllReduce": 8}, 1: {"AllReduce": 7}}),
        communicator("pair 2 3", {2: {"AllReduce": 8}, 3: {"AllReduce": 8}}),
        communicator("cross 0 2", {0: {"ReduceScatter": 4}, 2: {"ReduceScatter": 5}}),
        communicator("cross 1 3", {1: {"ReduceScatter": 4}, 3: {"ReduceScatter": 5}}),
    )
    found = stalled([reading(0, *groups), reading(6, *groups)])
    assert len(found) == 3
    assert waited_for(found) == {place(1)}


def test_ranks_in_between_wait_too() -> None:
    ladder = communicator("a", {0: {"Reduce": 5}, 1: {"Reduce": 6}, 2: {"Reduce": 7}})
    (found,) = stalled([reading(0, ladder), reading(6, ladder)])
    assert ([r.rank for r in found.behind], [r.rank for r in found.waiting]) == ([0], [1, 2])
    assert (found.launched, found.others_launched) == (5, 7)


def test_a_rank_that_goes_missing_moves_nothing() -> None:
    whole = communicator("a", {r: {"Reduce": 4} for r in range(3)})
    less = communicator("a", {n: {"Reduce": 4} for n in (0, 1)}, Rank(2, "10.0.0.1", 102, 2))
    assert still([reading(0, whole), reading(9, less)]) is True
