"""Steps of simulated work: what power, GPM, NVLink and utilisation show of each phase."""

import time
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.simulator import SYSTEMS, SimulatedSystem, build, models, parse, scenarios
from agent.simulator.meter import JITTER, StepMeter, StepRates
from tests.support.frozen_clock import FrozenClock
from tests.support.simulated_machine import get, gpm, gpu, start

ACTIVITY, SM, TENSOR, DRAM, NVLINK = 1, 2, 5, 10, 61
SAMPLE = 0.02  # s between two of the power buffer

PERIODIC = (
    "training",
    "starved-disk",
    "starved-network",
    "starved-cpu",
    "starved-peer",
    "exposed-communication",
    "late-rank",
    "threads",
    "throttled",
)
APERIODIC = ("idle", "held", "hang", "no-demand", "starved-host-thread", "nvlink-saturated")


def power(machine: SimulatedSystem, clock: FrozenClock, seconds: float, index: int) -> list[float]:
    """The gapless power samples (W) of one GPU, from now on."""
    handle = gpu(machine, index)
    newest = machine.nvml.nvmlDeviceGetSamples(handle, 0, 0)[1][-1].timeStamp
    watts = []
    for _ in range(int(seconds / 1.5)):
        clock.advance(1.5)
        samples = machine.nvml.nvmlDeviceGetSamples(handle, 0, newest)[1]
        stamps = [newest, *(sample.timeStamp for sample in samples)]
        assert all(b - a == pytest.approx(20_000, abs=1) for a, b in pairwise(stamps))
        newest = stamps[-1]
        watts += [sample.sampleValue.uiVal / 1000 for sample in samples]
    return watts


def correlation(values: list[float], lag: int) -> float:
    """Return the autocorrelation of a series at `lag` samples: 1 for equal."""
    mean = fmean(values)
    off = [value - mean for value in values]
    shifted = sum(a * b for a, b in zip(off, off[lag:], strict=False)) / (len(off) - lag)
    return shifted / (sum(a * a for a in off) / len(off))


def step_of(machine: SimulatedSystem, index: int) -> float:
    return machine.gpus[index].work.step * machine.gpus[index].model.pace


@pytest.mark.parametrize("system", SYSTEMS)
def test_power_repeats_with_the_step(system: str) -> None:
    for name in set(PERIODIC) & set(scenarios.possible(models.ALL[system])):
        machine, clock = start(f"{system}:{name}", 10.0)
        step = step_of(machine, 0)
        for index in range(min(2, len(machine.gpus))):
            watts = power(machine, clock, max(15.0, 12 * step), index)
            whole = [correlation(watts, round(n * step / SAMPLE)) for n in (2, 4)]
            between = correlation(watts, round(2.5 * step / SAMPLE))
            assert min(whole) > 0.6, (name, index)
            assert min(whole) - between > 0.3, (name, index)


@pytest.mark.parametrize("name", APERIODIC)
def test_power_without_steps_never_repeats(name: str) -> None:
    machine, clock = start(f"dgx-h200:{name}", 20.0)
    watts = power(machine, clock, 60.0, 0)
    assert max(correlation(watts, lag) for lag in range(12, 250)) < 0.4


def test_communication_is_seen_in_short_windows() -> None:
    machine, clock = start("dgx-h200:exposed-communication", 10.0)
    windows = [gpm(machine, clock, 0.05, SM, TENSOR, NVLINK) for _ in range(700)]
    rate = 0.92 * 450e9 / (412.5 / 354.4) / 1_024_000
    computing = [w for w in windows if w[1] == pytest.approx(93.7, abs=1e-6)]
    reducing = [w for w in windows if w[1] == 0]
    assert len(computing) / 700 > 0.4
    assert len(reducing) / 700 > 0.2
    assert all((w[0], w[2]) == pytest.approx((96.5, 0.0), abs=1e-6) for w in computing)
    assert all(w[0] == pytest.approx(17.6, abs=0.1) for w in reducing)
    assert all(w[2] == pytest.approx(rate, rel=1e-3) for w in reducing)
    assert fmean(w[2] for w in windows) / rate == pytest.approx(0.39, abs=0.005)
    assert fmean(w[1] for w in windows) == pytest.approx(0.61 * 93.7, rel=0.01)


def test_energy_is_the_sum_of_power_samples() -> None:
    machine, clock = start("dgx-h200:exposed-communication", 10.0)
    before = get(machine, "TotalEnergyConsumption")
    watts = power(machine, clock, 30.0, 0)
    assert fmean(watts) == pytest.approx(
        (get(machine, "TotalEnergyConsumption") - before) / 30_000, rel=0.005
    )
    low, high = 0.41 * 700, 1.05 * 700
    assert sum(w < (low + high) / 2 for w in watts) / len(watts) == pytest.approx(0.39, abs=0.02)
    assert sum(w < 1.05 * low for w in watts) > 0.3 * len(watts)
    assert sum(w > 0.95 * high for w in watts) > 0.5 * len(watts)


def test_each_sensor_resolves_what_it_does() -> None:
    for system, together in (("dgx-a100", 5), ("dgx-h200", 1), ("dgx-1-p100", 1)):
        machine, clock = start(f"{system}:training", 10.0)
        watts = power(machine, clock, 15.0, 0)
        changes = sum(a != b for a, b in pairwise(watts))
        assert len(watts) / changes == pytest.approx(together, rel=0.05)


def test_power_usage_is_a_mean_on_hopper_alone() -> None:
    def spread(system: str) -> float:
        machine, clock = start(f"{system}:exposed-communication", 10.0)
        readings = []
        for _ in range(50):
            clock.advance(0.13)
            readings.append(get(machine, "PowerUsage"))
        return float((max(readings) - min(readings)) / fmean(readings))

    assert spread("dgx-h100") < 0.2
    assert spread("dgx-1-v100") > 0.6


def test_one_rank_comes_late_and_the_others_wait() -> None:
    machine, clock = start("dgx-h200:late-rank", 10.0)
    assert step_of(machine, 0) == pytest.approx(0.23 / 0.89)
    peer, late = (
        [gpm(machine, clock, 0.004, ACTIVITY, TENSOR, index=i) for _ in range(4000)] for i in (0, 1)
    )
    resting = sum(w[0] < 1 for w in late) / 4000
    spinning = sum(w[1] < 1 for w in peer) / 4000
    assert (resting, spinning) == pytest.approx((0.10, 0.10), abs=0.02)
    assert all(w[0] > 90 for w in peer)
    assert fmean(w[0] for w in late) == pytest.approx(0.89 * 97, abs=0.5)


def test_steps_differ_and_none_is_lost() -> None:
    rates = StepRates((0.1, 0.15), {"work": (1.0, 0.0), "steps": (4.0, 4.0)})
    meter = StepMeter()
    meter.flow(0.0, {"ticks": 2.0}, rates, 0.0)
    moments = [n * 0.01 for n in range(200_000)]
    read = [meter.read("work", at) for at in moments]
    assert all(a <= b for a, b in pairwise(read))
    assert read[-1] == pytest.approx(0.4 * moments[-1], abs=0.1)
    assert meter.read("steps", 2000.0) == pytest.approx(8000, abs=1.0)
    assert meter.read("ticks", 2000.0) == 4000.0
    starts = [at for (a, b), at in zip(pairwise(read), moments, strict=False) if a == b][::15]
    assert len(starts) > 1000
    begins = [before for _, before, _, _ in (rates.place(n * 0.25) for n in range(100))]
    assert max(abs(b - round(b)) for b in begins) <= JITTER
    assert len({round(b % 1, 6) for b in begins}) > 50


def test_rates_change_without_a_jump() -> None:
    rates = StepRates((0.1, 0.15), {"work": (1.0, 0.0)})
    whole, cut = StepMeter(), StepMeter()
    whole.flow(0.0, {}, rates, 0.0)
    cut.flow(0.0, {}, rates, 0.0)
    for at in (0.03, 0.27, 5.11):
        cut.flow(at, {}, rates, 0.0)
    for at in (5.2, 17.77):
        assert cut.read("work", at) == pytest.approx(whole.read("work", at), abs=1e-9)
    assert cut.read("work", 0.2) == pytest.approx(whole.read("work", 0.2), abs=1e-9)


def test_a_fast_clock_has_the_same_steps() -> None:
    machine = build(parse("dgx-h100:training"), clock := SystemClock(200.0))
    ahead = clock.time() - clock.monotonic()
    time.sleep(0.05)
    assert clock.time() - clock.monotonic() == pytest.approx(ahead, abs=1.0), "so are its times"
    machine.nvml.nvmlInit()
    clock.skip(10.0)
    samples: Any = machine.nvml.nvmlDeviceGetSamples(gpu(machine), 0, 0)[1]
    stamps = [sample.timeStamp for sample in samples]
    assert 119 < len(stamps) <= 18 / SAMPLE  # the buffer lasts as long for who reads it
    assert all(b - a == pytest.approx(20_000, abs=1) for a, b in pairwise(stamps))
    watts = [sample.sampleValue.uiVal / 1000 for sample in samples]
    assert correlation(watts, round(2 * step_of(machine, 0) / SAMPLE)) > 0.7
