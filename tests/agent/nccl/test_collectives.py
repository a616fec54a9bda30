"""What successive readings report together."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    Launched,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    tallies,
)
from agent.jobs.collectives import (
    NcclReading,
    RankSeat,
    lost,
    movement,
    stalled,
    waited_for,
)
from tests.support.nccl_service import SimulatedRanks

HOSTS = ("10.0.0.1",) * 8
TRAINING = SimulatedRanks(tuple(range(31, 39)), HOSTS, step=0.25, collectives={"AllReduce": 3})
STUCK = replace(TRAINING, stuck=5, stuck_at=100.0)
STOPPED = replace(TRAINING, stopped=2, stopped_at=100.0)
KEY = CommunicatorKey("5f3759df00c0ffee", "0x1d:0x2d")

Counts = Mapping[str, int]


def readings(job: SimulatedRanks, times: Iterable[float]) -> list[NcclReading]:
    return [NcclReading(at, job.answer(at)) for at in times]


def communicator(name: str, counts: Mapping[int, Counts], *missing: MissingRank) -> Communicator:
    """One of processes 100, 101, ...: `counts` by process, whose ranks are in that order."""
    ranks = tuple(
        Rank(number, "10.0.0.1", 100 + process, process, shown)
        for number, (process, shown) in enumerate(sorted(counts.items()))
    )
    size = len(ranks) + len(missing)
    return Communicator(CommunicatorKey(name), size, ranks, missing, tallies(ranks))


def reading(at: float, *communicators: Communicator) -> NcclReading:
    return NcclReading(at, NcclAnswer("2.28.9", communicators=communicators))


def place(process: int) -> RankSeat:
    return RankSeat("10.0.0.1", 100 + process, process)


def test_a_healthy_training_moves_and_nobody_is_behind() -> None:
    for start in range(0, 50, 7):
        shown = readings(TRAINING, (start + 60, start + 60.1, start + 65, start + 70))
        assert movement(shown).still is False
        assert stalled(shown) == ()
        assert lost(shown) == ()


def test_ranks_that_differ_only_now_and_then_are_not_behind() -> None:
    """Read while they run, the ranks of a healthy job differ nearly always, each time elsewhere."""
    shown = [
        reading(5 * i, communicator("a", {r: {"AllReduce": 10 * i + r % 2} for r in range(4)}))
        for i in range(5)
    ]
    assert stalled(shown) == ()


def test_a_hang_names_the_rank_that_launched_less() -> None:
    shown = readings(STUCK, (95, 101, 106, 111))
    (found,) = stalled(shown)
    assert (found.communicator, found.kind) == (KEY, "AllReduce")
    assert (found.launched, found.others_launched) == (1200, 1201)
    assert [(r.rank, r.host, r.pid, r.nvml_device) for r in found.behind] == [
        (5, "10.0.0.1", 36, 5)
    ]
    assert [r.rank for r in found.waiting] == [0, 1, 2, 3, 4, 6, 7]
    assert found.since == 101
    assert movement(shown[1:]).still is True
    assert waited_for([found]).first == {RankSeat("10.0.0.1", 36, 5)}


def test_a_hang_needs_two_readings_and_some_seconds() -> None:
    assert stalled([]) == ()
    assert stalled(readings(STUCK, (101,))) == ()
    assert stalled(readings(STUCK, (101, 102))) == ()
    assert stalled(readings(STUCK, (95, 106))) == ()
    assert len(stalled(readings(STUCK, (101, 102, 105)))) == 1
    assert stalled(readings(STUCK, (101, 106)), least=3) == ()


def test_still_without_a_difference_is_told_apart() -> None:
    """A job that replays CUDA graphs, or one whose every rank waits for the network."""
    shown = [reading(t, communicator("a", {r: {"AllReduce": 7} for r in range(2)})) for t in (0, 9)]
    assert movement(shown).still is True
    assert stalled(shown) == ()


def test_nothing_is_known_of_communicators_without_counts() -> None:
    pipeline = communicator("a", {0: {"AllReduce": 0}, 1: {"AllReduce": 0}})
    moved = movement([reading(0, pipeline), reading(9, pipeline)])
    assert moved.still is None
    assert movement([]).still is None
    assert movement([reading(0, communicator("a", {0: {"AllReduce": 1}}))]).still is None


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
    moved = movement(shown)
    assert moved.still is False
    assert moved.stood == {CommunicatorKey("barrier")}
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
    shown = waited_for(found)
    assert shown.first == {place(1)}
    assert not shown.circle


def test_ranks_that_called_different_collectives_wait_for_one_another() -> None:
    crossed = communicator(
        "a", {0: {"AllReduce": 8, "AllGather": 2}, 1: {"AllReduce": 7, "AllGather": 3}}
    )
    found = stalled([reading(0, crossed), reading(6, crossed)])
    assert [(s.kind, [r.rank for r in s.behind]) for s in found] == [
        ("AllGather", [0]),
        ("AllReduce", [1]),
    ]
    shown = waited_for(found)
    assert not shown.first
    assert shown.circle == {place(0), place(1)}


def test_ranks_in_between_wait_too() -> None:
    ladder = communicator("a", {0: {"Reduce": 5}, 1: {"Reduce": 6}, 2: {"Reduce": 7}})
    (found,) = stalled([reading(0, ladder), reading(6, ladder)])
    assert ([r.rank for r in found.behind], [r.rank for r in found.waiting]) == ([0], [1, 2])
    assert (found.launched, found.others_launched) == (5, 7)


def test_a_stopped_process_is_lost_by_name_and_the_others_stand() -> None:
    shown = readings(STOPPED, (95, 101, 106))
    (found,) = lost(shown)
    assert found.rank == MissingRank(2, RankLoss.UNRESPONSIVE, "10.0.0.1", 33, 2)
    assert (found.communicator, found.since) == (KEY, 101)
    assert lost(shown[:2]) == ()


def test_a_rank_that_goes_missing_moves_nothing() -> None:
    whole = communicator("a", {r: {"Reduce": 4} for r in range(3)})
    less = communicator(
        "a", {0: {"Reduce": 4}, 1: {"Reduce": 4}}, MissingRank(2, RankLoss.UNRESPONSIVE)
    )
    assert movement([reading(0, whole), reading(9, less)]).still is True


def test_ranks_that_left_are_not_lost() -> None:
    left = communicator("a", {0: {"Reduce": 4}}, MissingRank(1, RankLoss.LEFT))
    assert lost([reading(0, left), reading(5, left)]) == ()


def told_in_text(*launched: Launched) -> NcclAnswer:
    """As text reports it: one communicator whose ranks differ."""
    key = CommunicatorKey("a")
    ranks = tuple(
        Rank(rank, "h", 50 + rank, rank, {group.kind: group.operations})
        for group in launched
        for rank in group.named
    )
    size = sum(group.ranks for group in launched)
    found = (Communicator(key, size, ranks, launched=launched),) if launched else ()
    return NcclAnswer("2.27.5", communicators=found)


def test_text_tells_who_is_behind_and_not_who_waits() -> None:
    answer = told_in_text(Launched("AllReduce", 8, 1, (3,)), Launched("AllReduce", 9, 7, ()))
    shown = [NcclReading(t, answer) for t in (0, 6)]
    (found,) = stalled(shown)
    assert [r.pid for r in found.behind] == [53]
    assert found.waiting == ()
    moved = movement(shown)
    assert moved.still is True


def test_text_that_names_nobody_tells_of_a_standstill_by_its_counts() -> None:
    halves = told_in_text(Launched("AllReduce", 8, 4, ()), Launched("AllReduce", 9, 4, ()))
    later = told_in_text(Launched("AllReduce", 9, 4, ()), Launched("AllReduce", 10, 4, ()))
    (found,) = stalled([NcclReading(0, halves), NcclReading(6, halves)])
    assert found.behind == ()
    assert stalled([NcclReading(0, halves), NcclReading(6, later)]) == ()
    assert waited_for([found]).first == frozenset()


def test_text_of_a_healthy_job_tells_nothing_here() -> None:
    shown = [NcclReading(t, told_in_text()) for t in (0, 6)]
    moved = movement(shown)
    assert moved.still is None
    assert stalled(shown) == ()


def test_ranks_without_a_process_are_told_apart_by_communicator() -> None:
    launched = (Launched("AllReduce", 8, 1, (0,)), Launched("AllReduce", 9, 1, (1,)))
    ranks = tuple(Rank(r, counts={"AllReduce": 8 + r}) for r in (0, 1))
    answer = NcclAnswer(
        "2.27.5",
        communicators=tuple(
            Communicator(CommunicatorKey(name), 2, ranks, launched=launched) for name in "ab"
        ),
    )
    shown = waited_for(stalled([NcclReading(0, answer), NcclReading(6, answer)]))
    assert shown.first == {RankSeat("", None, None, name, 0) for name in "ab"}
