"""Two levels of power distinguished, and one level not taken for two."""

import random

import pytest

from agent.diagnosis.power_levels import FEWEST, power_levels


def two(low: float, high: float, share: float, noise: float = 12.0) -> list[float]:
    """300 samples, of which so large a share lies at the lower level."""
    dice = random.Random(3)
    return [dice.gauss(low if n < 300 * share else high, noise) for n in range(300)]


@pytest.mark.parametrize(
    ("low", "high", "share"),
    [
        (296, 750, 0.403),  # an all-reduce after dense products
        (296, 750, 0.353),
        (126, 426, 0.67),  # inference in bursts
        (124, 437, 0.835),  # decoding in the main process between steps
        (201, 760, 0.188),  # a stage of a pipeline
        (207, 620, 0.06),  # pauses of 28 ms between steps of 258 ms
    ],
)
def test_what_is_done_in_turn_has_two_levels(low: float, high: float, share: float) -> None:
    found = power_levels(two(low, high, share))
    assert found is not None
    assert found.distinct
    assert found.lower_share == pytest.approx(share, abs=0.02)
    assert (found.lower, found.upper) == (
        pytest.approx(low, rel=0.05),
        pytest.approx(high, rel=0.05),
    )


def broad(least: float, most: float) -> list[float]:
    """Even between two figures."""
    return [least + (most - least) * n / 299 for n in range(300)]


@pytest.mark.parametrize(
    "watts",
    [
        broad(501, 631),  # training that never waits
        broad(148, 175),  # launches are the limit
        broad(236, 358),  # steps too short to resolve
        broad(124, 125),  # a server that spins for requests
        two(125, 125, 0.5, noise=0.3),  # a hang
        [126.0] * 300,
        two(480, 640, 0.5),  # 0.75 of the upper: one broad level was never lower than 0.7
    ],
)
def test_what_never_waits_has_one(watts: list[float]) -> None:
    found = power_levels(watts)
    assert found is not None
    assert not found.distinct


def test_few_samples_say_nothing() -> None:
    watts = two(296, 750, 0.4)[:: 300 // FEWEST]
    assert power_levels(watts[: FEWEST - 1]) is None
    assert power_levels(watts[:FEWEST]) is not None
    assert power_levels([]) is None


def test_the_order_of_samples_is_of_no_account() -> None:
    watts = two(296, 750, 0.4)
    assert power_levels(watts) == power_levels(watts[::-1])


def test_short_bursts_are_not_counted_longer_than_they_are() -> None:
    """14 ms of work every 74 ms; power follows within 6 ms, and never comes to rest at a level."""
    watts, each_millisecond = 130.0, []
    for n in range(6000):
        watts += ((650.0 if n % 74 < 14 else 130.0) - watts) / 6
        each_millisecond.append(watts)
    found = power_levels(each_millisecond[::20])
    assert found is not None
    assert found.lower_share < 0.79, "the mean of the upper level is low, and so is the cut"
