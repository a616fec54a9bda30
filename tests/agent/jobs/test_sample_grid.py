"""Samples are counted, not timed."""

import random

import pytest

from agent.jobs.sample_grid import LEARNED_FROM, LONGEST_GAP, SampleGrid

Samples = list[tuple[float, float]]


def even(count: int, spacing: float = 0.02, first: float = 5.0, scatter: float = 0.0) -> Samples:
    chance = random.Random(1)
    return [
        (first + i * spacing + chance.uniform(-scatter, scatter), float(i)) for i in range(count)
    ]


def placed(grid: SampleGrid, samples: Samples) -> list[list[float]]:
    return grid.place(samples)


def test_even_samples_are_taken_as_they_come() -> None:
    grid = SampleGrid()
    series = placed(grid, even(300, scatter=0.004))
    assert series == [[], [float(i) for i in range(300)]]
    assert grid.spacing == pytest.approx(0.02, rel=0.002)
    assert grid.latest == pytest.approx(5.0 + 299 * 0.02, abs=0.004)


def test_nothing_is_handed_out_until_the_spacing_is_known() -> None:
    grid = SampleGrid()
    assert placed(grid, even(LEARNED_FROM)) == [[]]
    assert grid.spacing == 0.0


def test_what_comes_again_is_left_out() -> None:
    grid, samples = SampleGrid(), even(300)
    placed(grid, samples[:200])
    assert placed(grid, samples[120:]) == [[float(i) for i in range(200, 300)]]


def test_a_spacing_that_is_not_quite_even_is_followed_for_an_hour() -> None:
    grid = SampleGrid()
    placed(grid, even(100, spacing=0.0201))
    count = 0
    for start in range(100, 180_000, 1000):
        new = [(5.0 + i * 0.02, float(i)) for i in range(start + 10, start + 1010)]
        count += sum(len(values) for values in placed(grid, new))
    assert abs(count - 180_000) < 50
    assert grid.spacing == pytest.approx(0.02, rel=1e-4)


def test_few_lost_samples_are_on_a_line() -> None:
    samples = [sample for sample in even(120) if sample[1] not in {90.0, 91.0}]
    assert placed(SampleGrid(), samples)[1] == pytest.approx([float(i) for i in range(120)])


def test_more_lost_samples_are_the_recent_mean() -> None:
    samples = [(time, 7.0) for time, number in even(200) if not 100 <= number < 150]
    assert placed(SampleGrid(), samples)[1] == pytest.approx([7.0] * 200)


def test_after_a_long_gap_a_series_begins() -> None:
    grid = SampleGrid()
    before = even(200)
    after = even(200, first=before[-1][0] + (LONGEST_GAP + 1) * 0.02)
    placed(grid, before)
    assert placed(grid, after) == [[], [number for _, number in after]]


def test_a_long_gap_while_the_spacing_is_learned() -> None:
    grid = SampleGrid()
    assert placed(grid, even(40)) == [[]]
    after = even(200, first=60.0)
    assert placed(grid, after)[-1] == [number for _, number in after]


@pytest.mark.parametrize("spacing", [0.05, 0.1, 0.01])
def test_another_spacing_is_another_series(spacing: float) -> None:
    grid = SampleGrid()
    placed(grid, even(200))
    *_, last = placed(grid, even(400, spacing=spacing, first=9.1))
    assert grid.spacing == pytest.approx(spacing, rel=0.01)
    assert len(last) > 200
    assert last[-1] == 399.0
