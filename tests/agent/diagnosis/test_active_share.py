"""Division of the active share, by figures that were measured on H100s and H200s."""

import random
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from agent.diagnosis.active_share import (
    ActiveSecond,
    WorkLevel,
    divide,
    in_lock_step,
    not_computing,
    only_spins,
    work_level,
)
from agent.diagnosis.power_levels import PowerLevels, power_levels
from agent.model import GpuKey

COLLECTIVES = tomllib.loads(Path(__file__).with_name("active_share.toml").read_text("utf-8"))
PEER = GpuKey(1, "GPU-1")
LIMIT = 450.0  # GB/s of NVLink, one direction


def second(  # noqa: PLR0917
    activity: float,
    sm: float,
    tensor: float | None,
    dram: float,
    nvlink: float,
    lower: float | None = None,
) -> ActiveSecond:
    """Percent as measured; NVLink in GB/s; `lower` the share of time at the lower power level."""
    power = None if lower is None else PowerLevels(296, 750, lower, distinct=True)
    of_tensor = None if tensor is None else tensor / 100
    sent = nvlink / LIMIT
    return ActiveSecond(activity / 100, sm / 100, of_tensor, dram / 100, sent, sent, power)


EXPOSED = {
    0.389: second(99.6, 63.0, 54.1, 20.4, 119.4, lower=0.403),
    0.377: second(99.8, 65.1, 56.5, 20.4, 119.8, lower=0.395),
    0.368: second(99.9, 67.1, 58.8, 20.1, 118.6, lower=0.353),
}
"""Dense products, then an all-reduce of 1 GiB, by the true share of communication."""

HUNG = second(100, 18.18, 0.0, 0.0, 0.0)
ALL_REDUCE = second(99.4, 17.3, 0.0, 27.0, 328.5)
BALANCED = second(99.9, 84.4, 10.2, 48.5, 1.5)


@pytest.mark.parametrize("true", EXPOSED)
def test_exposed_communication_is_reported_within_five_points(true: float) -> None:
    mine = EXPOSED[true]
    found = divide(mine, {PEER: mine})
    assert found.communicating == pytest.approx(true, abs=0.05)
    assert found.waiting == pytest.approx(0.0, abs=0.05)
    assert found.total == pytest.approx(mine.activity)


@pytest.mark.parametrize("true", EXPOSED)
def test_without_power_samples_no_more_is_communication_than_is(true: float) -> None:
    mine = replace(EXPOSED[true], power=None)
    found = divide(mine, {PEER: mine})
    assert 0.6 * true < found.communicating <= true
    assert found.busy == pytest.approx(mine.activity - found.communicating)


def test_all_reduce_only_is_communication() -> None:
    found = divide(ALL_REDUCE, {PEER: ALL_REDUCE})
    assert (found.communicating, found.busy) == (pytest.approx(0.994), pytest.approx(0.0))


def test_balanced_ranks_do_not_wait() -> None:
    other = replace(BALANCED, sm=0.843, dram=0.48, activity=0.998)
    for mine, theirs in ((BALANCED, other), (other, BALANCED)):
        found = divide(mine, {PEER: theirs})
        assert (found.busy, found.waits_for) == (mine.activity, None)


def test_a_kernel_that_only_spins_waits() -> None:
    assert only_spins(HUNG)
    assert not any(only_spins(mine) for mine in (BALANCED, *EXPOSED.values()))
    found = divide(HUNG, {PEER: HUNG})
    assert (found.waiting, found.busy, found.communicating) == (1.0, 0.0, 0.0)


def test_work_at_two_levels_of_power_does_not_wait() -> None:
    """A recommender on an H200: lookups wait for memory, and draw half of what products do."""
    mine = second(100, 98.9, 54.7, 25.1, 0.0, lower=0.37)
    found = divide(mine, {PEER: second(35, 34.0, 8.0, 12.0, 0.0)})
    assert found.waiting <= 0.03
    assert found.busy >= 0.97


def test_sm_activity_above_the_activity_leaves_no_negative_share() -> None:
    """GPM's figures are means of their own, and may differ by a little."""
    mine = second(99, 99.6, 0.0, 25.1, 100.0, lower=0.37)
    found = divide(mine, {PEER: mine})
    assert min(found.busy, found.communicating, found.waiting) >= 0.0
    assert not_computing(replace(mine, payload=None)) == 0.0


def test_a_late_rank_is_waited_for() -> None:
    """It sleeps 0.3 s a step: its own activity is low, and the other's SM is the spinning's."""
    culprit = second(16.7, 13.7, 1.7, 8.0, 0.3)
    waiter = second(100, 25.4, 1.7, 8.0, 0.3)
    found = divide(waiter, {PEER: culprit})
    assert found.waits_for == PEER
    assert found.waiting == pytest.approx(1 - 0.167, abs=0.05)
    its = divide(culprit, {PEER: waiter})
    assert (its.busy, its.waits_for) == (pytest.approx(0.167), None)


def test_an_overloaded_rank_is_waited_for() -> None:
    """It computes twice as much: both are active all the time, DRAM activity differs."""
    culprit = second(100, 87.9, 11.0, 53.0, 0.7)
    waiter = second(100, 49.9, 4.4, 21.0, 0.7)
    found = divide(waiter, {PEER: culprit})
    assert found.waits_for == PEER
    assert found.waiting == pytest.approx(1 - 21 / 53, abs=0.05)
    assert divide(culprit, {PEER: waiter}).waiting == 0.0


def test_who_sends_something_else_is_no_rank_of_the_same_collective() -> None:
    culprit = second(100, 87.9, 11.0, 53.0, 0.7)
    waiter = second(100, 49.9, 4.4, 21.0, 0.7)
    sends_more = replace(culprit, sent=(culprit.sent or 0.0) * 1.2)
    assert in_lock_step(waiter, culprit)
    assert not in_lock_step(waiter, sends_more)
    assert divide(waiter, {PEER: sends_more}).waits_for is None
    receives = replace(waiter, sent=0.0, payload=0.02, power=PowerLevels(100, 500, 0.5, True))
    found = divide(receives, {PEER: culprit})
    assert found.waits_for == PEER
    assert found.communicating == pytest.approx(0.02 * 1.5 / 0.78)
    assert found.waiting == pytest.approx(0.5 - found.communicating)
    silent = replace(waiter, sent=0.0), replace(culprit, sent=0.0)
    assert not in_lock_step(*silent)


def test_a_gpu_waits_no_longer_than_its_sm_activity_leaves() -> None:
    """A smaller model beside a larger one: 40 % of the DRAM activity, and as much SM activity."""
    larger = second(100, 87.9, 11.0, 53.0, 0.7)
    smaller = second(100, 87.0, 4.4, 21.0, 0.7)
    assert divide(smaller, {PEER: larger}).waiting < 0.22


def test_a_pipeline_waits_as_its_power_says() -> None:
    """Two stages, a bubble of 20 % each: power is low for 18.8 % of the time."""
    stage = second(100, 77.0, 50.0, 30.0, 2.0, lower=0.188)
    found = divide(stage, {PEER: stage})
    assert found.waiting + found.communicating == pytest.approx(0.20, abs=0.05)


@pytest.mark.parametrize(("most", "waits"), [(1.0, 0.844), (0.02, 0.0)], ids=("low", "full"))
def test_without_gpm_utilisation_counts_the_spinning(most: float, waits: float) -> None:
    waiter = ActiveSecond(1.0, payload=0.001, sent=0.001, spinning=most)
    culprit = ActiveSecond(0.156, payload=0.001, sent=0.001)
    found = divide(waiter, {PEER: culprit})
    assert (found.waits_for, found.waiting) == (PEER if waits else None, pytest.approx(waits))


def test_without_gpm_small_messages_take_longer_than_their_bytes() -> None:
    """All-reduces in a CUDA graph on two H100s: true 0.178."""
    mine = ActiveSecond(0.457, payload=0.0076, sent=0.0076, wire=2.24)
    assert divide(mine, {PEER: mine}).communicating == pytest.approx(0.178, abs=0.01)


def test_rest_at_the_lower_level_is_not_taken_from_the_active_share() -> None:
    """Inference in bursts: 126 W for 67 % of the time, and active for 32.5 %."""
    power = PowerLevels(126, 426, 0.67, distinct=True)
    mine = ActiveSecond(0.325, 0.28, 0.2, 0.2, 0.0, 0.0, power)
    assert divide(mine, {}).busy == 0.325
    assert divide(mine, {PEER: mine}).busy == 0.325


def test_what_moves_behind_the_culprits_kernels_is_no_communication_of_the_waiter() -> None:
    """Bytes alone do not say when they moved: once all are there, all transfer as long."""
    culprit = replace(second(100, 87.9, 11.0, 53.0, 0.7), payload=0.05, sent=0.05)
    waiter = replace(second(100, 49.9, 4.4, 21.0, 0.7, lower=0.6), payload=0.05, sent=0.05)
    found = divide(waiter, {PEER: culprit})
    assert found.waits_for == PEER
    assert found.communicating < 0.05
    assert found.waiting == pytest.approx(1 - 21 / 53, abs=0.05)


@pytest.mark.parametrize("late", [0.07, 0.11, 0.3])
def test_a_rank_that_is_a_little_late_is_named_by_power_alone(late: float) -> None:
    """It rests while the other spins: both at low power, one of them active."""
    low = PowerLevels(125, 600, late, distinct=True)
    waiter = ActiveSecond(1.0, payload=0.01, sent=0.01, power=low)
    culprit = ActiveSecond(1.0 - late, payload=0.01, sent=0.01, power=low)
    found = divide(waiter, {PEER: culprit})
    assert (found.waits_for, found.waiting) == (PEER, pytest.approx(late))
    assert divide(culprit, {PEER: waiter}).waits_for is None


@pytest.mark.parametrize("apart", [-0.04, 0.04])
def test_exposed_communication_that_power_shows_unevenly_names_no_one(apart: float) -> None:
    one = ActiveSecond(1.0, payload=0.27, sent=0.27, power=PowerLevels(296, 750, 0.39, True))
    other = replace(one, power=PowerLevels(296, 750, 0.39 + apart, True))
    assert divide(one, {PEER: other}).waits_for is None


def without_gpm(payload: float, watts: list[float]) -> ActiveSecond:
    """A GPU whose utilisation counts transfers; `payload` over the limit."""
    return ActiveSecond(1.0, payload=payload, sent=payload, power=power_levels(watts))


def dipping(share: float, low: float) -> list[float]:
    """300 samples around 600 W, some of them at `low`."""
    dice = random.Random(7)
    levels = [low] * round(300 * share)
    return [dice.gauss(w, 20) for w in levels + [600.0] * (300 - len(levels))]


@pytest.mark.parametrize(
    ("wire", "share"), [(None, 0.0), (1.25, 0.513), (1.7, 0.0)], ids=("unknown", "alone", "beside")
)
def test_without_gpm_the_wire_tells_whether_transfers_overlap(
    wire: float | None, share: float
) -> None:
    """Layers in halves, gathered before each of them: 144 GB/s, true 0.60."""
    mine = replace(without_gpm(0.32, dipping(0.5, 540)), wire=wire)
    found = divide(mine, {PEER: mine})
    assert found.communicating == pytest.approx(share, abs=0.005)
    assert found.waiting == 0.0


@pytest.mark.parametrize(("wire", "share"), [(1.2, 0.53), (1.7, 0.36)], ids=("alone", "beside"))
def test_transfers_that_overlap_with_nothing_leave_the_sms_to_them(
    wire: float, share: float
) -> None:
    """An all-reduce after each sweep over memory, in steps of 21 ms: true 0.53."""
    mine = replace(second(100, 53.2, 3.2, 49.6, 182.7), level=WorkLevel(0.541, 0.497), wire=wire)
    assert divide(mine, {PEER: mine}).communicating == pytest.approx(share, abs=0.01)


def test_without_gpm_a_lower_level_that_is_not_rare_shows_its_own_time() -> None:
    mine = without_gpm(0.33, dipping(0.5, 250))
    assert divide(mine, {PEER: mine}).communicating == pytest.approx(0.5, abs=0.02)


SHARDED = (
    replace(second(92.1, 27.7, 3.1, 6.4, 6.3), level=WorkLevel(0.58, 0.29)),
    replace(second(28.9, 14.5, 3.1, 6.3, 6.3), level=WorkLevel(0.60, 0.30)),
)
"""Two ranks launch kernel by kernel: they work 0.196 and 0.173 of the time, and transfer 0.03."""


def test_what_is_beneath_the_level_of_work_waits_for_the_peer_that_waits_less() -> None:
    mine, theirs = SHARDED
    found, its = divide(mine, {PEER: theirs}), divide(theirs, {PEER: mine})
    assert found.busy == pytest.approx(0.196, abs=0.03)
    assert (found.waiting, found.waits_for) == (pytest.approx(0.634, abs=0.05), PEER)
    assert its.busy == pytest.approx(0.173, abs=0.03)
    assert (its.waiting, its.waits_for) == (pytest.approx(0.04, abs=0.001), None)


def test_half_of_what_all_ranks_wait_while_one_rests_is_too_late_a_launch() -> None:
    mine, theirs = SHARDED
    found, its = divide(mine, {PEER: theirs}), divide(theirs, {PEER: mine})
    assert found.late == its.late == pytest.approx((0.289 - 6.3 / 30) / 2, abs=0.001)
    assert found.total == pytest.approx(mine.activity)


def test_phases_that_use_more_dram_than_others_do_not_wait() -> None:
    """GPT-2 at batch 32 on an H200: windows with 0.38 and 0.48 of DRAM, SM at 0.93 to 0.96."""
    level = work_level(WorkLevel(sm, dram) for sm, dram in ((0.96, 0.38), (0.93, 0.48)) * 5)
    mine = replace(second(99.8, 93.9, 41.0, 43.9, 2.0), level=level)
    assert divide(mine, {PEER: mine}).busy >= 0.99
    most = replace(mine, level=WorkLevel(0.96, 0.48))
    assert divide(most, {PEER: most}).busy >= 0.96


def test_a_collective_that_uses_more_dram_than_work_is_no_level_of_work() -> None:
    """Products of 0.3 s, then an all-reduce of 0.2 s on an H200."""
    windows = [WorkLevel(0.96, 0.16)] * 6 + [WorkLevel(0.17, 0.28)] * 4
    assert work_level(windows) == (0.96, pytest.approx(0.16))
    mine = replace(EXPOSED[0.377], level=work_level(windows))
    found = divide(mine, {PEER: mine})
    assert (found.communicating, found.waiting) == (pytest.approx(0.377, abs=0.05), 0.0)


def test_collectives_without_any_dram_are_no_work() -> None:
    """All-reduces of some KiB in a CUDA graph on an H100; the rank that comes later is active for
    less."""
    level = WorkLevel(0.05, 3e-5)
    mine = replace(second(57.1, 2.4, 0.0, 0.001, 6.8), level=level)
    theirs = replace(second(42.6, 1.5, 0.0, 0.001, 6.6), level=level)
    found, its = divide(mine, {PEER: theirs}), divide(theirs, {PEER: mine})
    assert found.busy == pytest.approx(0.0, abs=1e-9)
    assert found.communicating == its.communicating == pytest.approx(0.426)
    assert (found.waits_for, its.waits_for) == (PEER, None)


def test_a_single_window_has_no_level() -> None:
    """The largest may be an outlier."""
    assert work_level([WorkLevel(0.9, 0.4)]) is None


def test_a_pipeline_waits_in_every_window_and_its_power_tells() -> None:
    """Two stages, two microbatches: 30 % of the time they wait, all 100 ms alike."""
    power = PowerLevels(383, 660, 0.36, distinct=True)
    mine = replace(second(92.1, 55.4, 30.2, 23.5, 0.49), power=power, level=WorkLevel(0.65, 0.28))
    found = divide(mine, {PEER: mine})
    assert found.busy == pytest.approx(0.60, abs=0.05)
    assert divide(mine, {PEER: replace(mine, activity=0.99)}).late == pytest.approx(0.005)


@pytest.mark.parametrize(("activity", "busy"), [(0.42, 0.34), (0.52, 0.15)])
def test_of_a_gpu_that_mostly_rests_the_lower_power_is_no_wait(
    activity: float, busy: float
) -> None:
    """Answers are written kernel by kernel, then a model learns: two levels of power."""
    power = PowerLevels(180, 560, 0.85, distinct=True)
    mine = replace(second(100 * activity, 21.8, 7.1, 10.3, 0.5), power=power)
    mine = replace(mine, level=WorkLevel(0.8, 0.3))
    assert divide(mine, {PEER: mine}).busy == pytest.approx(busy, abs=0.01)


def test_of_a_rank_whose_peer_mostly_rests_the_lower_power_is_no_wait() -> None:
    """Decoding on two H200s, kernel by kernel: both do the same work (0.23), at little power."""
    level, power = WorkLevel(0.65, 0.51), PowerLevels(277, 761, 0.94, distinct=True)
    mine = replace(second(99.7, 30.4, 6.5, 11.9, 4.9), power=power, level=level)
    theirs = replace(second(27.2, 18.3, 6.5, 11.9, 4.9), level=level)
    assert divide(mine, {PEER: theirs}).busy == pytest.approx(0.23, abs=0.03)


@pytest.mark.parametrize(
    ("mine", "busy"),
    [
        (second(36.6, 12.7, 1.1, 2.0, 0.32), 0.13),  # it plays, and its peer learns
        (second(13.7, 3.9, 0.5, 1.5, 0.05), 0.03),
        (second(36.6, 22.7, 1.1, 2.0, 0.32), 0.366),  # too much SM activity to spin
        (replace(second(58.0, 18.5, 2.8, 4.8, 2.2), power=PowerLevels(164, 592, 0.94, True)), 0.14),
        (replace(second(100, 40.0, 4, 21, 2.2), power=PowerLevels(164, 592, 0.5, True)), 0.5),
    ],
)
def test_a_rank_that_sends_otherwise_waits_as_its_sm_activity_says(
    mine: ActiveSecond, busy: float
) -> None:
    found = divide(mine, {PEER: second(74.7, 62.6, 6.2, 18.6, 0.03)})
    assert found.busy == pytest.approx(busy, abs=0.03)
    assert found.busy + found.waiting + found.communicating == pytest.approx(mine.activity)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_take_as_long_as_their_bytes_on_the_wire(name: str) -> None:
    case = COLLECTIVES[name]
    mine = replace(second(*case["of"]), level=WorkLevel(*case["level"]), wire=case.get("wire"))
    found = divide(mine, {PEER: mine})
    assert found.communicating == pytest.approx(case["share"], abs=0.005)
    assert found.busy == pytest.approx(mine.activity - found.communicating, abs=0.02)


def test_a_rank_with_less_sm_activity_waits_though_its_work_uses_as_much_dram() -> None:
    """Experts on two H100s: true 0.53."""
    mine = replace(second(99.3, 42.0, 24.1, 18.9, 12.2), level=WorkLevel(0.43, 0.191))
    theirs = replace(second(99.7, 90.9, 71.5, 32.6, 12.2), level=WorkLevel(0.92, 0.318))
    found, its = divide(mine, {PEER: theirs}), divide(theirs, {PEER: mine})
    assert (found.waiting, found.waits_for) == (pytest.approx(0.53, abs=0.03), PEER)
    assert (its.waiting, its.waits_for) == (0.0, None)
