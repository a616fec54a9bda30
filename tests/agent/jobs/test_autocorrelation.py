"""The autocorrelation by one product is the one by the book."""

from math import sin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.jobs.pulse import autocorrelation


def by_the_book(values: list[float], lag: int) -> float:
    early, late = values[: len(values) - lag], values[lag:]
    mean_early, mean_late = sum(early) / len(early), sum(late) / len(late)
    together = sum((a - mean_early) * (b - mean_late) for a, b in zip(early, late, strict=True))
    spread = sum((a - mean_early) ** 2 for a in early) * sum((b - mean_late) ** 2 for b in late)
    return float(together / spread**0.5)


def without_trend(values: list[float]) -> list[float]:
    """Nothing to take off: both halves have the mean 0."""
    half = [*values, 100.0, 100.0, -100.0, -100.0]
    half += [-value for value in half]
    return half + half[::-1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=8, max_size=60))
def test_each_coefficient_is_pearsons(some: list[float]) -> None:
    values = without_trend(some)
    lags = len(values) // 2
    found = autocorrelation([value + 500 for value in values], lags).at_lag
    assert len(found) == lags
    assert found == pytest.approx([by_the_book(values, lag) for lag in range(lags)], abs=0.02)


def test_a_trend_is_taken_off() -> None:
    wave = [sin(i / 2) for i in range(256)]
    plain = autocorrelation([500 + 30 * value for value in wave], 128)
    climbing = autocorrelation([500 + 30 * value + i for i, value in enumerate(wave)], 128)
    assert climbing.at_lag == pytest.approx(plain.at_lag, abs=0.05)


def test_what_does_not_vary_enough_correlates_with_nothing() -> None:
    assert autocorrelation([5.0] * 64, 32).at_lag == [1.0] + [0.0] * 31
    hardly = [100 + i % 2 for i in range(64)]
    assert autocorrelation(hardly, 32, flat=0.03).at_lag == [1.0] + [0.0] * 31
    assert autocorrelation(hardly, 32, flat=0.005).at_lag[1] == pytest.approx(-1.0, abs=0.01)


def test_the_largest_sums_fit() -> None:
    values = [0.0, 1.0] * 512
    found = autocorrelation(values, 512).at_lag
    assert found[1] == pytest.approx(-1.0, abs=1e-6)
    assert found[510] == pytest.approx(1.0, abs=1e-6)
