"""Which of a host's jobs were reported of, when to ask again, and what is kept."""

from dataclasses import replace

import pytest

from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered
from agent.hardware.nccl_json import parse_json
from agent.hardware.nccl_ras import RasRound
from agent.jobs.collectives import lost, stalled
from agent.jobs.nccl_jobs import (
    LocalJob,
    MatchedJobs,
    NcclHistory,
    NcclMode,
    RasSchedule,
    Unmatched,
    match,
)
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks

BIG = SimulatedRanks(tuple(range(31, 39)), ("10.0.0.1",) * 4 + ("10.0.0.2",) * 4)
SMALL = SimulatedRanks((51, 52), ("10.0.0.1",) * 2, name="beef")
HERE = LocalJob("big", {131 + n: pid for n, pid in enumerate(BIG.pids[:4])}, 4)
OTHER = LocalJob("small", {151: 51, 152: 52}, 2)
ALONE = LocalJob("alone", {171: 71}, 1)
ALL = frozenset((*HERE.pids, *OTHER.pids, *ALONE.pids))


def shown(job: SimulatedRanks, now: float = 10) -> NcclAnswer:
    answer = parse_json(status_json(job.answer(now), (2, 28, 9)))
    assert isinstance(answer, NcclAnswer)
    return answer


def round_of(*answers: NcclAnswer, failure: RasFailure | None = None) -> RasRound:
    unanswered = None if failure is None else Unanswered(failure, "no luck")
    return RasRound(answers, unanswered, max(len(answers), 1), 2.0, 0.001, believed=ALL)


def reasons(found: MatchedJobs) -> dict[str, object]:
    return {job.key: job.reason for job in found.unmatched}


def test_each_job_gets_its_own_answer() -> None:
    big, small = shown(BIG), shown(SMALL)
    found = match([OTHER, HERE], round_of(big, small))
    assert found == MatchedJobs({"small": small, "big": big}, ())


def test_a_job_whose_port_another_one_has_is_told() -> None:
    found = match([HERE, OTHER], round_of(shown(BIG)))
    assert reasons(found) == {"small": Unmatched.PORT_TAKEN}
    assert "NCCL_RAS_ADDR" in found.unmatched[0].detail


def test_a_failure_is_told_of_every_job() -> None:
    found = match([HERE, OTHER], round_of(failure=RasFailure.REFUSED))
    assert reasons(found) == {"big": RasFailure.REFUSED, "small": RasFailure.REFUSED}
    assert found.unmatched[0].detail == "no luck"


def test_an_answer_is_believed_only_on_processes_of_its_own_user_and_namespace() -> None:
    """Another container's process may call itself 51, too."""
    answer = round_of(shown(SMALL))
    assert match([OTHER], replace(answer, believed=frozenset(HERE.pids))).matched == {}
    assert match([OTHER], answer).matched == {"small": shown(SMALL)}


ALWAYS, HANG, OFF = NcclMode.ALWAYS, NcclMode.HANG, NcclMode.OFF


def test_none_is_asked_without_a_job_of_several_gpus() -> None:
    schedule = RasSchedule()
    assert schedule.due(1e6, ALWAYS, []) is None
    assert schedule.due(1e6, ALWAYS, [replace(ALONE, suspected=True)]) is None
    request = schedule.due(1e6, ALWAYS, [ALONE, OTHER])
    assert request is not None
    assert list(request.wanted) == [151, 152]
    assert request.processes == {171: 71, 151: 51, 152: 52}


@pytest.mark.parametrize(
    ("mode", "hangs", "age", "asked"),
    [
        (OFF, True, 1e6, False),
        (HANG, False, 1e6, False),
        (HANG, True, 299.0, False),
        (HANG, True, 300.0, True),
        (ALWAYS, False, 1.0, True),
    ],
)
def test_modes(mode: NcclMode, hangs: bool, age: float, asked: bool) -> None:
    job = replace(HERE, hangs=hangs, suspected=hangs, age=age)
    request = RasSchedule().due(1e6, mode, [job])
    assert (request is not None) is asked
    if request is not None:
        assert (request.unknown, request.connections) == (
            (True, 4) if mode is ALWAYS else (False, 1)
        )


def moments(schedule: RasSchedule, after: RasRound, *, suspected: bool) -> float:
    """Seconds after a round's beginning (at 1000 s) at which the next one is due."""
    schedule.asked(1000, after)
    jobs = [replace(HERE, suspected=suspected)]
    return next(s for s in range(2000) if schedule.due(1000 + s, ALWAYS, jobs))


@pytest.mark.parametrize(
    ("failure", "calm", "suspected"),
    [
        (None, 30, 5),
        (RasFailure.REFUSED, 30, 5),
        (RasFailure.BAD_VERSION, 30, 5),
        (RasFailure.FOREIGN, 30, 5),
        (RasFailure.SILENT, 30, 5),
        (RasFailure.PROTOCOL, 62, 5),
        (RasFailure.SLOW, 122, 5),
        (RasFailure.TOO_LARGE, 122, 5),
        (RasFailure.NOT_NCCL, 602, 602),
        (RasFailure.CHANGED, 602, 602),
        (RasFailure.UNREACHABLE, 602, 602),
    ],
)
def test_when_the_next_round_is_due(failure: RasFailure | None, calm: int, suspected: int) -> None:
    answers = () if failure else (shown(BIG),)
    after = round_of(*answers, failure=failure)
    assert moments(RasSchedule(), after, suspected=False) == calm
    assert moments(RasSchedule(), after, suspected=True) == suspected


def test_a_failure_beside_an_answer_needs_no_rest() -> None:
    after = round_of(shown(BIG), failure=RasFailure.SLOW)
    assert moments(RasSchedule(), after, suspected=False) == 30


def test_the_history_keeps_jobs_apart_and_little_of_each() -> None:
    history = NcclHistory()
    for at in range(100, 400, 30):
        history.add(at, [shown(BIG, at), shown(SMALL, at)])
    big, small = history.readings(shown(BIG)), history.readings(shown(SMALL))
    assert [reading.at for reading in big] == [280, 310, 340, 370]
    assert {c.size for reading in small for c in reading.answer.communicators} == {2}
    history.add(1000, [shown(SMALL, 1000)])
    assert history.readings(shown(BIG)) == ()


def test_the_history_keeps_the_first_reading_of_a_standstill() -> None:
    history = NcclHistory()
    stuck = replace(SMALL, stuck=1, stuck_at=90)
    for at in range(60, 700, 5):
        history.add(at, [shown(stuck, at)])
    kept = history.readings(shown(stuck, 695))
    (found,) = stalled(kept)
    assert (found.since, kept[-1].at) == (90, 695)
    assert len(kept) <= 4


def test_the_history_sees_who_goes_missing_while_all_stands() -> None:
    history = NcclHistory()
    job = replace(SMALL, stuck=0, stuck_at=90, stopped=1, stopped_at=200)
    for at in range(60, 230, 5):
        history.add(at, [shown(job, at)])
    (gone,) = lost(history.readings(shown(job, 225)))
    assert (gone.rank.pid, gone.since) == (52, 200)
