"""Periods of series other than power, and what the GPUs of a job agree on."""

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.jobs.pulse import NoPulse, PulseReading
from agent.jobs.series_period import Period, agree, periodicity, step_of
from tests.support import power_signals as power
from tests.support.power_signals import Samples


def split(samples: Samples) -> tuple[list[float], list[float]]:
    return [time for time, _ in samples], [value for _, value in samples]


def test_a_coarse_series_tells_long_steps() -> None:
    """GPM windows of 0.25 s, with steps longer than power samples reach back."""
    windows = power.sampled(power.steps(25.0), 240, every=0.25, over=0.25, scatter=0.01)
    period = periodicity(*split(windows))
    assert period is not None
    assert period.seconds == pytest.approx(25.0, rel=0.01)
    assert 0.9 < period.strength <= 1


def test_a_fine_series_tells_short_steps() -> None:
    reads = power.sampled(power.steps(0.048), 10, every=0.008, over=0.006, scatter=0.0)
    period = periodicity(*split(reads))
    assert period is not None
    assert period.seconds == pytest.approx(0.048, rel=0.01)


def test_times_may_scatter_and_reads_be_lost() -> None:
    reads = power.sampled(power.steps(2.2), 30, every=0.05, over=0.05, scatter=0.008)
    kept = [read for number, read in enumerate(reads) if number % 13]
    period = periodicity(*split(kept))
    assert period is not None
    assert period.seconds == pytest.approx(2.2, rel=0.01)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [(1.0, 5.0)],
        [(1.0, 5.0)] * 100,
        power.sampled(power.steps(2.2), 1.5, every=0.05),
        power.sampled(power.steps(2.2), 8.0, every=0.05),  # fewer than four periods
        power.sampled(power.steps(0.15), 30, every=0.05, over=0.05),  # three values each
        power.sampled(power.bursts(1.0), 60, every=0.05),
        power.sampled(power.flat(), 60, every=0.05, noise=0.0),
    ],
    ids=["none", "one", "at-once", "few", "short", "coarse", "irregular", "flat"],
)
def test_without_a_period_nothing_is_told(samples: Samples) -> None:
    assert periodicity(*split(samples)) is None


def test_halves_must_agree() -> None:
    half = power.until(power.steps(1.0), 15)
    changing = power.sampled(power.then(half, power.steps(1.3)), 30, every=0.05)
    assert periodicity(*split(changing)) is None


# The step of a GPU


def of_power(
    seconds: float | None = None, reason: NoPulse | None = None, short: float | None = None
) -> PulseReading:
    confidence = 0.9 if seconds else 0.0
    return PulseReading(seconds, confidence, 0, reason, None, None, short)


GPM, NVLINK = Period(2.88, 0.96), Period(2.05, 0.8)


@pytest.mark.parametrize(
    ("reading", "others", "step"),
    [
        (of_power(0.335), [GPM], Period(0.335, 0.9)),
        (of_power(0.335), [], Period(0.335, 0.9)),
        (None, [NVLINK, GPM], GPM),
        (None, [], None),
        (
            of_power(reason=NoPulse.TOO_SHORT, short=0.0803),
            [Period(0.077, 0.9)],
            Period(0.077, 0.9),
        ),
        (of_power(reason=NoPulse.TOO_SHORT, short=0.0803), [Period(0.0353, 0.9), GPM], None),
        (of_power(reason=NoPulse.TOO_SHORT), [GPM], None),
        (of_power(reason=NoPulse.IRREGULAR), [GPM], None),
        (of_power(reason=NoPulse.IRREGULAR), [GPM, Period(31.0, 0.7)], Period(31.0, 0.7)),
        (of_power(reason=NoPulse.FLAT), [], None),
    ],
)
def test_other_series_speak_where_power_cannot(
    reading: PulseReading | None, others: list[Period], step: Period | None
) -> None:
    assert step_of(reading, others) == step


# The step of a job


@pytest.mark.parametrize(
    ("seconds", "step"),
    [
        ([], None),
        ([None, None], None),
        ([0.2], 0.2),
        ([0.2, None], 0.2),
        ([0.2, 0.202], 0.201),
        ([0.2, 0.25], None),
        ([0.2, 0.2, 0.25], 0.2),
        ([0.2, 0.2, 0.25, 0.25], None),
        ([0.1, 0.4], 0.4),  # one GPU does not tell accumulated gradients apart
        ([0.4] * 7 + [0.8], 0.4),  # one GPU logs each second step
        ([0.1, 0.1, 0.4, 0.4], 0.4),
        ([0.1, 0.2, 0.4], 0.4),
        ([0.1, 0.25, 0.4], None),
        ([0.1, 1.3], None),  # 13 parts
    ],
)
def test_gpus_of_a_job_agree_or_nothing_is_told(
    seconds: list[float | None], step: float | None
) -> None:
    agreed = agree(None if one is None else Period(one, 0.9) for one in seconds)
    assert (agreed and agreed.seconds) == (step and pytest.approx(step))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=16), st.randoms())
def test_the_order_of_gpus_does_not_matter(seconds: list[float], chance: Random) -> None:
    periods = [Period(one, exp(-one)) for one in seconds]
    before = agree(periods)
    chance.shuffle(periods)
    assert agree(periods) == before
