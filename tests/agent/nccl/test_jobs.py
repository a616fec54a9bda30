"""Which of a host's jobs were told of, when to ask again, and what is kept."""

from dataclasses import replace

import pytest

from agent.hardware.nccl_answer import NcclAnswer, RasFailure, Unanswered
from agent.hardware.nccl_json import parse_json
from agent.hardware.nccl_ras import RasRound
from agent.hardware.nccl_text import parse_text
from agent.jobs.collectives import lost, stalled
from agent.jobs.nccl_jobs import (
    LocalJob,
    MatchedJobs,
    NcclHistory,
    RasSchedule,
    Unmatched,
    match,
)
from tests.support.nccl_json import status_json
from tests.support.nccl_service import SimulatedRanks
from tests.support.nccl_text import status_text

BIG = SimulatedRanks(tuple(range(31, 39)), ("10.0.0.1",) * 4 + ("10.0.0.2",) * 4)
SMALL = SimulatedRanks((51, 52), ("10.0.0.1",) * 2, name="beef")
HERE = LocalJob("big", frozenset(BIG.pids[:4]), 4)
OTHER = LocalJob("small", frozenset(SMALL.pids), 2)
ALONE = LocalJob("alone", frozenset((71,)), 1)


def told(job: SimulatedRanks, now: float = 10) -> NcclAnswer:
    answer = parse_json(status_json(job.answer(now), (2, 28, 9)))
    assert isinstance(answer, NcclAnswer)
    return answer


def told_in_text(job: SimulatedRanks, now: float = 0) -> NcclAnswer:
    answer = parse_text(status_text(job.answer(now), (2, 27, 5)))
    assert isinstance(answer, NcclAnswer)
    return answer


def round_of(*answers: NcclAnswer, failure: RasFailure | None = None) -> RasRound:
    unanswered = None if failure is None else Unanswered(failure, "no luck")
    return RasRound(answers, unanswered, 0, max(len(answers), 1), 2.0, 0.001)


def reasons(found: MatchedJobs) -> dict[str, object]:
    return {job.key: job.reason for job in found.unmatched}


def test_each_job_gets_its_own_answer() -> None:
    big, small = told(BIG), told(SMALL)
    found = match([OTHER, HERE], round_of(big, small))
    assert found == MatchedJobs({"small": small, "big": big}, ())


def test_a_job_whose_port_another_one_has_is_told() -> None:
    found = match([HERE, OTHER], round_of(told(BIG)))
    assert reasons(found) == {"small": Unmatched.PORT_TAKEN}
    assert "NCCL_RAS_ADDR" in found.unmatched[0].detail


def test_a_failure_is_told_of_every_job() -> None:
    found = match([HERE, OTHER], round_of(failure=RasFailure.REFUSED))
    assert reasons(found) == {"big": RasFailure.REFUSED, "small": RasFailure.REFUSED}
    assert found.unmatched[0].detail == "no luck"


def test_text_without_names_is_the_only_jobs_own() -> None:
    answer = told_in_text(BIG)
    assert match([HERE], round_of(answer)).matched == {"big": answer}


def test_text_without_names_is_nobodys_where_several_may_be_meant() -> None:
    found = match([HERE, OTHER], round_of(told_in_text(BIG)))
    assert reasons(found) == {"big": Unmatched.NOT_NAMED, "small": Unmatched.NOT_NAMED}


def test_text_of_a_smaller_job_is_another_ones() -> None:
    found = match([HERE], round_of(told_in_text(SMALL)))
    assert reasons(found) == {"big": Unmatched.PORT_TAKEN}


def test_text_that_names_a_rank_is_known_by_it() -> None:
    stuck = told_in_text(replace(BIG, stuck=1, stuck_at=5), 9)
    found = match([HERE, OTHER], round_of(stuck))
    assert found.matched == {"big": stuck}
    assert reasons(found) == {"small": Unmatched.PORT_TAKEN}


def test_nobody_is_asked_without_a_job_of_several_gpus() -> None:
    schedule = RasSchedule()
    assert not schedule.due(1e6, [], suspected=True)
    assert not schedule.due(1e6, [ALONE], suspected=True)
    assert schedule.due(1e6, [ALONE, OTHER], suspected=False)
    assert schedule.worth_asking([ALONE, OTHER]) == (OTHER,)


def test_nobody_is_asked_when_off() -> None:
    assert not RasSchedule(enabled=False).due(1e6, [HERE], suspected=True)


def moments(schedule: RasSchedule, after: RasRound, *, suspected: bool) -> float:
    """Seconds after a round's beginning (at 1000 s) at which the next one is due."""
    schedule.asked(1000, after)
    return next(s for s in range(2000) if schedule.due(1000 + s, [HERE], suspected=suspected))


@pytest.mark.parametrize(
    ("failure", "calm", "suspected"),
    [
        (None, 30, 5),
        (RasFailure.REFUSED, 30, 5),
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
    answers = () if failure else (told(BIG),)
    after = round_of(*answers, failure=failure)
    assert moments(RasSchedule(), after, suspected=False) == calm
    assert moments(RasSchedule(), after, suspected=True) == suspected


def test_a_failure_beside_an_answer_needs_no_rest() -> None:
    after = round_of(told(BIG), failure=RasFailure.SLOW)
    assert moments(RasSchedule(), after, suspected=False) == 30


def test_the_history_keeps_jobs_apart_and_little_of_each() -> None:
    history = NcclHistory()
    for at in range(100, 400, 30):
        history.add(at, [told(BIG, at), told(SMALL, at)])
    big, small = history.readings(told(BIG)), history.readings(told(SMALL))
    assert [reading.at for reading in big] == [280, 310, 340, 370]
    assert {c.size for reading in small for c in reading.answer.communicators} == {2}
    history.add(1000, [told(SMALL, 1000)])
    assert history.readings(told(BIG)) == ()


def test_the_history_keeps_the_first_reading_of_a_standstill() -> None:
    history = NcclHistory()
    stuck = replace(SMALL, stuck=1, stuck_at=90)
    for at in range(60, 700, 5):
        history.add(at, [told(stuck, at)])
    kept = history.readings(told(stuck, 695))
    (found,) = stalled(kept)
    assert (found.since, kept[-1].at) == (90, 695)
    assert len(kept) <= 4


def test_the_history_sees_who_goes_missing_while_all_stands() -> None:
    history = NcclHistory()
    job = replace(SMALL, stuck=0, stuck_at=90, stopped=1, stopped_at=200)
    for at in range(60, 230, 5):
        history.add(at, [told(job, at)])
    (gone,) = lost(history.readings(told(job, 225)))
    assert (gone.rank.pid, gone.since) == (52, 200)


def test_the_history_of_text_follows_a_job_by_its_totals() -> None:
    history = NcclHistory()
    stuck = replace(BIG, stuck=1, stuck_at=90)
    for at in (80, 92, 97):
        history.add(at, [told_in_text(stuck, at)])
    (found,) = stalled(history.readings(told_in_text(stuck, 97)))
    assert [rank.pid for rank in found.behind] == [32]
    assert history.readings(told_in_text(SMALL)) == ()
