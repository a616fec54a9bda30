"""Steps a second over a job's life."""

import pytest

from agent.bounds import RATES_KEPT
from agent.jobs.speed import JobSpeed


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
