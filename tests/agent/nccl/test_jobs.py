"""Choice of a host's jobs to ask about, the time of the next question, and what is kept."""

from dataclasses import replace

import pytest

from agent.hardware.nccl import NcclAnswer, RasRound
from agent.jobs.nccl_jobs import (
    TAKEN,
    LocalJob,
    NcclHistory,
    NcclMode,
    RasSchedule,
    lost,
    match,
)
from agent.model import Absent, Reason
from tests.support.nccl_service import SimulatedRanks

BIG = SimulatedRanks(tuple(range(31, 39)), ("10.0.0.1",) * 4 + ("10.0.0.2",) * 4)
SMALL = SimulatedRanks((51, 52), ("10.0.0.1",) * 2, name="beef")
HERE = LocalJob("big", {131 + n: pid for n, pid in enumerate(BIG.pids[:4])}, 4)
OTHER = LocalJob("small", {151: 51, 152: 52}, 2)
ALONE = LocalJob("alone", {171: 71}, 1)
ALL = frozenset((*HERE.pids, *OTHER.pids, *ALONE.pids))


def shown(job: SimulatedRanks, now: float = 10) -> NcclAnswer:
    return job.answer(now)


def round_of(*answers: NcclAnswer, failure: Reason | None = None) -> RasRound:
    return RasRound(answers, Absent(failure, "no luck") if failure else None, 2.0, 0.001, ALL)


def test_each_job_gets_its_own_answer_or_why_there_is_none() -> None:
    big, small = shown(BIG), shown(SMALL)
    assert match([OTHER, HERE], round_of(big, small)) == ({"small": small, "big": big}, {})
    assert match([HERE, OTHER], round_of(big)) == ({"big": big}, {"small": TAKEN})
    own, without = match([HERE, OTHER], round_of(failure=Reason.MISSING))
    assert (own, {k: str(v) for k, v in without.items()}) == (
        {},
        {"big": "no luck", "small": "no luck"},
    )


def test_an_answer_is_believed_only_on_processes_of_its_own_user_and_namespace() -> None:
    """Another container's process may call itself 51, too."""
    answer = round_of(shown(SMALL))
    assert match([OTHER], replace(answer, believed=frozenset(HERE.pids)))[0] == {}
    assert match([OTHER], answer)[0] == {"small": shown(SMALL)}
    failed = replace(round_of(failure=Reason.MISSING), believed=frozenset(HERE.pids))
    assert match([OTHER], failed)[1] == {"small": TAKEN}, "what another's service says is no reason"
    assert match([HERE], failed)[1] == {"big": failed.failure}


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
        (Reason.MISSING, 30, 5),
        (Reason.UNSUPPORTED, 30, 5),
        (Reason.DENIED, 30, 5),
        (Reason.STALLED, 602, 5),
        (Reason.FAILED, 602, 602),
    ],
)
def test_when_the_next_round_is_due(failure: Reason | None, calm: int, suspected: int) -> None:
    answers = () if failure else (shown(BIG),)
    after = round_of(*answers, failure=failure)
    assert moments(RasSchedule(), after, suspected=False) == calm
    assert moments(RasSchedule(), after, suspected=True) == suspected


def test_a_failure_beside_an_answer_needs_no_rest() -> None:
    after = round_of(shown(BIG), failure=Reason.STALLED)
    assert moments(RasSchedule(), after, suspected=False) == 30


def test_the_history_keeps_jobs_apart_and_little_of_each() -> None:
    history = NcclHistory()
    for at in range(100, 400, 30):
        history.add(at, [shown(BIG, at), shown(SMALL, at)])
    big, small = history.readings(shown(BIG)), history.readings(shown(SMALL))
    assert [reading.at for reading in big] == [340, 370]
    assert {len(c.ranks) for reading in small for c in reading.answer.communicators} == {2}
    history.add(1000, [shown(SMALL, 1000)])
    assert history.readings(shown(BIG)) == ()


def test_the_history_sees_who_goes_missing_while_all_stands() -> None:
    history = NcclHistory()
    job = replace(SMALL, stuck=0, stuck_at=90, stopped=1, stopped_at=200)
    for at in range(60, 210, 5):
        assert lost(history.readings(shown(job, at))) == ()
        history.add(at, [shown(job, at)])
    (gone,) = lost(history.readings(shown(job, 205)))
    assert gone.pid == 52
