"""The simulated service and the parsers meet: what a job is, is what is reported of it."""

from dataclasses import replace

import pytest

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    tallies,
)
from agent.hardware.nccl_json import parse_json
from agent.simulator.nccl_ras import VERSION
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks

HOSTS = ("10.0.0.1",) * 4 + ("10.0.0.2",) * 4
TRAINING = SimulatedRanks(
    pids=tuple(range(31, 39)), hosts=HOSTS, collectives={"AllReduce": 3, "AllGather": 1}
)
STUCK = replace(TRAINING, stuck=6, stuck_at=20.0)
STOPPED = replace(TRAINING, stopped=2, stopped_at=20.0)


def json_of(answer: NcclAnswer, version: tuple[int, int, int] = (2, 28, 9)) -> NcclAnswer:
    shown = parse_json(status_json(answer, version))
    assert isinstance(shown, NcclAnswer)
    assert shown.nccl_version == ".".join(map(str, version))
    return replace(shown, nccl_version=VERSION)


def all_kinds(answer: NcclAnswer) -> NcclAnswer:
    """The same with a count of every kind, as JSON reports it; processes are no part of it."""
    zeros = dict.fromkeys(("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"), 0)
    communicators = []
    for communicator in answer.communicators:
        ranks = tuple(replace(rank, counts={**zeros, **rank.counts}) for rank in communicator.ranks)
        communicators.append(replace(communicator, ranks=ranks, launched=tallies(ranks)))
    return replace(answer, communicators=tuple(communicators))


@pytest.mark.parametrize("version", [(2, 28, 7), (2, 28, 9), (2, 29, 2), (2, 31, 2)])
@pytest.mark.parametrize("now", [0.0, 19.9, 20.0, 25.0, 80.0])
@pytest.mark.parametrize("job", [TRAINING, STUCK, STOPPED], ids=["healthy", "stuck", "stopped"])
def test_json_tells_all(job: SimulatedRanks, now: float, version: tuple[int, int, int]) -> None:
    answer = job.answer(now)
    assert json_of(answer, version) == all_kinds(answer)


def end_of_a_job() -> NcclAnswer:
    """One communicator that is torn down, one that starts."""
    ranks = tuple(Rank(n, "10.0.0.1", 51 + n, n, {"Reduce": 4}) for n in range(3))
    left = (MissingRank(2, RankLoss.LEFT, "10.0.0.1", 53, 2),)
    communicators = (
        Communicator(CommunicatorKey("b" * 16), 3, ranks[:2], left, tallies(ranks[:2])),
        Communicator(CommunicatorKey("c" * 16), 2, ranks[:2], (), tallies(ranks[:2])),
    )
    return NcclAnswer(VERSION, communicators)


def test_json_of_the_end_of_a_job() -> None:
    assert json_of(end_of_a_job()) == all_kinds(end_of_a_job())
