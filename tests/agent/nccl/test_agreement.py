"""The simulated service and the parsers meet: what a job is, is what is told of it."""

from dataclasses import replace

import pytest

from agent.hardware.nccl_answer import (
    ALL_KINDS,
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RankStatus,
    tallies,
)
from agent.hardware.nccl_json import parse_json
from agent.hardware.nccl_text import parse_text
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks
from tests.support.nccl_text import status_text

HOSTS = ("10.0.0.1",) * 4 + ("10.0.0.2",) * 4
TRAINING = SimulatedRanks(
    pids=tuple(range(31, 39)), hosts=HOSTS, collectives={"AllReduce": 3, "AllGather": 1}
)
STUCK = replace(TRAINING, stuck=6, stuck_at=20.0)
STOPPED = replace(TRAINING, stopped=2, stopped_at=20.0)
VERSIONS = [(2, 24, 3), (2, 25, 1), (2, 26, 2), (2, 27, 7), (2, 28, 3)]


def json_of(answer: NcclAnswer, version: tuple[int, int, int] = (2, 28, 9)) -> NcclAnswer:
    told = parse_json(status_json(answer, version))
    assert isinstance(told, NcclAnswer)
    return replace(told, nccl_version="")


def text_of(answer: NcclAnswer, version: tuple[int, int, int]) -> NcclAnswer:
    told = parse_text(status_text(answer, version))
    assert isinstance(told, NcclAnswer)
    assert told.ignored == 0
    assert told.nccl_version == ".".join(map(str, version))
    return told


def all_kinds(answer: NcclAnswer) -> NcclAnswer:
    """The same with a count of every kind, as JSON tells it; processes are no part of it."""
    zeros = dict.fromkeys(("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"), 0)
    communicators = []
    for communicator in answer.communicators:
        ranks = tuple(replace(rank, counts={**zeros, **rank.counts}) for rank in communicator.ranks)
        communicators.append(replace(communicator, ranks=ranks, launched=tallies(ranks)))
    return replace(answer, communicators=tuple(communicators), silent=())


@pytest.mark.parametrize("version", [(2, 28, 7), (2, 28, 9), (2, 29, 2), (2, 31, 2)])
@pytest.mark.parametrize("now", [0.0, 19.9, 20.0, 25.0, 80.0])
@pytest.mark.parametrize("job", [TRAINING, STUCK, STOPPED], ids=["healthy", "stuck", "stopped"])
def test_json_tells_all(job: SimulatedRanks, now: float, version: tuple[int, int, int]) -> None:
    answer = job.answer(now)
    assert json_of(answer, version) == all_kinds(answer)


@pytest.mark.parametrize("version", VERSIONS)
def test_text_tells_who_is_behind(version: tuple[int, int, int]) -> None:
    told = text_of(STUCK.answer(30), version)
    (found,) = told.communicators
    kinds = {"AllReduce": (240, 241), "AllGather": (80, 81)}
    if version < (2, 26):
        kinds = {ALL_KINDS: (320, 322)}
    assert {g.kind: g.operations for g in found.launched if g.named == (6,)} == {
        kind: behind for kind, (behind, _) in kinds.items()
    }
    assert {g.kind: (g.operations, g.ranks) for g in found.launched if g.named != (6,)} == {
        kind: (ahead, 7) for kind, (_, ahead) in kinds.items()
    }
    (late,) = [rank for rank in found.ranks if rank.pid is not None]
    assert (late.rank, late.host, late.pid, late.nvml_device) == (6, "10.0.0.2", 37, 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("now", "loss"), [(25, RankLoss.UNRESPONSIVE), (81, RankLoss.DEAD)])
def test_text_tells_who_is_missing(
    version: tuple[int, int, int], now: float, loss: RankLoss
) -> None:
    answer = STOPPED.answer(now)
    told = text_of(answer, version)
    assert told.silent == answer.silent
    place = ("10.0.0.1", 33, 2, 2) if version >= (2, 26) else ("", None, None, None)
    (found,) = told.communicators
    assert found.missing == (MissingRank(2, loss, *place),)
    assert (told.timeouts, told.nodes, told.processes) == (1, 2, 8)


@pytest.mark.parametrize("version", VERSIONS)
def test_text_of_a_healthy_job_names_nobody(version: tuple[int, int, int]) -> None:
    told = text_of(TRAINING.answer(0), version)
    assert told.communicators == ()
    assert [(g.size, g.nodes, g.status, g.errors) for g in told.groups] == [
        (8, 2, RankStatus.RUNNING, frozenset())
    ]


def end_of_a_job() -> NcclAnswer:
    """One communicator that fails, one that is torn down, one that starts."""

    def rank(number: int, status: RankStatus, error: str = "") -> Rank:
        return Rank(number, "10.0.0.1", 51 + number, number, number, {"Reduce": 4}, status, error)

    running, finalize = RankStatus.RUNNING, RankStatus.FINALIZE
    failing = tuple(rank(n, running, "remote process error" if n else "") for n in range(3))
    leaving = (rank(0, running), rank(1, finalize))
    left = (MissingRank(2, RankLoss.LEFT, "10.0.0.1", 53, 2, 2),)
    starting = tuple(rank(n, RankStatus.INIT) for n in range(2))
    communicators = (
        Communicator(CommunicatorKey("a" * 16), 3, failing, (), 0, tallies(failing)),
        Communicator(CommunicatorKey("b" * 16), 3, leaving, left, 1, tallies(leaving)),
        Communicator(CommunicatorKey("c" * 16), 2, starting, (), 0, tallies(starting)),
    )
    return NcclAnswer("", 13000, 13000, "", 1, 3, 3, communicators, seconds=0.0)


@pytest.mark.parametrize("version", VERSIONS)
def test_text_of_the_end_of_a_job(version: tuple[int, int, int]) -> None:
    told = text_of(end_of_a_job(), version)
    by_hash = {c.key.hash[0]: c for c in told.communicators}
    assert by_hash.keys() == {"a", "b"}
    assert [(r.rank, r.error) for r in by_hash["a"].ranks] == [
        (1, "remote process error"),
        (2, "remote process error"),
    ]
    assert [(r.rank, r.status.value) for r in by_hash["b"].ranks] == [
        (0, "running"),
        (1, "finalize"),
    ]
    assert [(r.rank, r.loss) for r in by_hash["b"].missing] == [(2, RankLoss.LEFT)]
    assert sorted((g.size, g.status.value) for g in told.groups) == [
        (2, "init"),
        (3, "finalize"),
        (3, "running"),
    ]


def test_json_of_the_end_of_a_job() -> None:
    answer = replace(end_of_a_job(), lists_all=True)
    assert json_of(answer) == all_kinds(answer)
