"""The price of watching GPUs, without one: its arithmetic and its goals."""

import os
import sys
import time

import pytest

from tests.hardware import cost, price
from tests.hardware.bench import Figure
from tests.hardware.price import Measuring, Window


def windows(program: str, state: str, *cpus: float) -> list[Window]:
    return [Window(program, state, cpu, 50.0, 30.0) for cpu in cpus]


def shown(
    state: str, agent: tuple[float, ...], bare: tuple[float, ...], gpus: int
) -> dict[str, Figure]:
    found = [*windows(cost.AGENT, state, *agent), *windows(cost.BARE, state, *bare)]
    return {figure.name: figure for figure in price.cpu_figures(Measuring(state, found), gpus)}


@pytest.mark.parametrize("seconds", [5.0, 15.0, 30.0])
def test_a_program_is_priced_as_if_scraped_each_fifteen_seconds(seconds: float) -> None:
    """10 ms a second, and 30 ms a scrape: 12 ms a second, in windows of any length."""
    scrapes = [price.Spent(0.030 + 0.010 * 0.2, 0.2)] * max(1, round(seconds / 15))
    window = price.Spent(0.010 * seconds + 0.030 * len(scrapes), seconds)
    assert price.cpu_rate(window, scrapes) == pytest.approx(0.012)
    assert price.cpu_rate(price.Spent(0.010 * seconds, seconds), []) == pytest.approx(0.010)


def test_goals_of_eight_gpus_are_scaled_and_the_ratio_is_not() -> None:
    found = shown("idle", (4.0, 4.4), (3.0, 4.0), gpus=2)
    own, ratio = found["CPU agent, idle"], found["CPU agent over bare loop, idle"]
    assert (own.value, own.most, own.holds) == (pytest.approx(4.2), 3.75, False)
    assert (ratio.value, ratio.most, ratio.holds) == (pytest.approx(1.2), 1.15, False)
    assert "1.333 1.100" in ratio.note
    assert shown("idle", (14.0,), (13.0,), gpus=8)["CPU agent, idle"].holds


def test_what_is_above_its_goal_is_reported_by_source() -> None:
    measuring = Measuring("idle", windows(cost.AGENT, "idle", 20.0), {"gpu": 3.0, "nvlink": 9.5})
    (line,) = price.by_source(measuring)
    assert line.endswith("nvlink 9.50 gpu 3.00; all else 7.50")


def test_other_programs_have_no_goal() -> None:
    measuring = Measuring("idle", windows(cost.NVITOP, "idle", 500.0))
    assert all(figure.holds for figure in price.cpu_figures(measuring, 8))


def test_windows_count_by_their_length() -> None:
    found = [Window("a", "idle", 10.0, 1.0, 30.0), Window("a", "idle", 40.0, 1.0, 10.0)]
    assert price.mean_cpu(found, "a") == pytest.approx(17.5)


def test_what_training_loses_is_a_mean_of_pairs_with_its_error() -> None:
    slower = price.slowed_figure([(1.001, 1.0), (1.003, 1.0)])
    assert (slower.value, slower.holds) == (pytest.approx(0.2), False)
    assert "standard error 0.100 of 2 pairs" in slower.note
    assert price.slowed_figure([(0.999, 1.0), (1.001, 1.0)]).holds


def test_a_program_that_ends_before_it_answers_is_reported() -> None:
    broken = cost.Program("broken", (sys.executable, "-c", "raise SystemExit('no GPU')"), port=1)
    with pytest.raises(RuntimeError, match="broken did not get ready: no GPU"), broken.running():
        pass


def test_the_cpu_of_a_process_is_what_it_knows_itself() -> None:
    here = cost.cpu_seconds(os.getpid())
    assert here == pytest.approx(time.process_time(), abs=0.5)
    assert cost._cpu_ticks(os.getpid()) / cost.TICKS == pytest.approx(here, abs=0.5)
