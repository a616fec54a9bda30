"""Figures of a job by hand: savings from ending a cause, and steps a second over its life."""

import pytest

from agent.bounds import RATES_KEPT
from agent.diagnosis.advice import ADVICE, peer_advice, saving_advice
from agent.jobs.job import PEER, savings
from agent.jobs.speed import JobSpeed
from agent.model import BUSY, Cause, GpuKey, Pair, State

A, B = GpuKey(0, "GPU-a"), GpuKey(1, "GPU-b")
DISK: Pair = (State.STARVED, Cause.DISK)
CPU: Pair = (State.STARVED, Cause.CPU)
HEAT: Pair = (State.THROTTLED, Cause.THERMAL)


def test_one_gpu_wins_what_it_lost_and_the_second_cause_is_next() -> None:
    first, second = savings({A: {BUSY: 50.0, DISK: 40.0, CPU: 10.0}})
    assert (first.pair, first.lost, first.saved, first.then) == (DISK, 40.0, 40.0, CPU)
    assert (second.pair, second.saved, second.then) == (CPU, 10.0, DISK)


def test_a_cure_saves_no_more_than_the_other_gpu_allows() -> None:
    """B waits 30 s for A, but is slowed by heat itself: without A's disk, B sets the pace."""
    found = savings({A: {BUSY: 60.0, DISK: 40.0}, B: {BUSY: 60.0, HEAT: 10.0, PEER: 30.0}})
    disk = next(saving for saving in found if saving.pair == DISK)
    assert (disk.saved, disk.then, disk.then_gpu) == (30.0, HEAT, B)


def test_no_gpu_is_called_the_slowest_where_all_are_alike() -> None:
    (disk, *_) = savings({A: {BUSY: 60.0, DISK: 40.0}, B: {BUSY: 61.0, DISK: 39.0}})
    assert disk.then_gpu is None


def test_a_cause_of_a_gpu_that_waits_anyway_saves_nothing() -> None:
    found = savings({A: {BUSY: 100.0}, B: {BUSY: 50.0, CPU: 20.0, PEER: 30.0}})
    cpu = next(saving for saving in found if saving.pair == CPU)
    assert (cpu.lost, cpu.saved, cpu.then, cpu.then_gpu) == (20.0, 0.0, BUSY, A)


def test_waiting_for_a_peer_is_cured_by_an_even_load() -> None:
    (peer,) = savings({A: {BUSY: 100.0}, B: {BUSY: 60.0, PEER: 40.0}})
    assert (peer.pair, peer.lost, peer.saved) == (PEER, 40.0, pytest.approx(20.0))


def test_the_step_of_those_that_wait_is_that_of_the_gpu_they_wait_for() -> None:
    late: dict[Pair, float] = {BUSY: 60.0, CPU: 30.0, DISK: 10.0}
    for seconds, step in (
        (late, f"For GPU 0: {ADVICE[CPU]}"),
        ({BUSY: 100.0}, peer_advice("GPU 0")),
        (late | {PEER: 30.0}, peer_advice()),
    ):
        found = savings({A: seconds, B: {BUSY: 60.0, PEER: 40.0}})
        assert [saving_advice(one) for one in found if one.pair == PEER] == [step]


@pytest.mark.parametrize("seconds", [{}, {BUSY: 100.0}, {BUSY: 99.5, DISK: 0.5}])
def test_where_next_to_nothing_was_lost_nothing_is_to_win(seconds: dict[Pair, float]) -> None:
    assert savings({A: seconds}) == ()
    assert savings({}) == ()


def run(speed: JobSpeed, start: int, seconds: int, step: float | None) -> int:
    for now in range(start, start + seconds):
        speed.take(now + 1.0, 1.0, step)
    return start + seconds


def test_the_first_hour_is_the_reference_and_stays_it() -> None:
    speed = JobSpeed(0.0)
    now = run(speed, 0, 50, 0.5)
    assert speed.reference is None, "not before a minute"
    now = run(speed, now, 3600, 0.5)
    now = run(speed, now, 7200, 0.6)
    assert speed.reference == pytest.approx(0.5)


def test_the_mean_counts_the_time_with_steps_alone() -> None:
    speed = JobSpeed(0.0)
    now = run(speed, 0, 100, None)
    now = run(speed, now, 100, 0.5)
    now = run(speed, now, 100, 0.25)
    assert speed.mean == pytest.approx(3.0)
    assert list(speed.rates)[:10] == [None] * 10


@pytest.mark.parametrize(("paused", "mean"), [(2, 2.0), (10, None)])
def test_a_job_whose_pauses_show_no_rhythm_has_no_mean(paused: int, mean: float | None) -> None:
    """A starved job steps as fast as a healthy one, between its waits."""
    speed, now = JobSpeed(0.0), 0
    for _ in range(10):
        now = run(speed, now, 100 - paused, 0.5)
        now = run(speed, now, paused, None)
    assert speed.mean == (mean and pytest.approx(mean))


def test_a_job_without_steps_has_no_speed() -> None:
    speed = JobSpeed(0.0)
    run(speed, 0, 5000, None)
    assert (speed.mean, speed.reference) == (None, None)
    assert len(speed.rates) == RATES_KEPT
