"""Steps of simulated work: none is lost, whatever changes and however fast the clock runs."""

import time
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.simulator import SimulatedSystem, build, parse
from agent.simulator.meter import JITTER, Meter, StepRates
from tests.support.simulated_machine import gpu

SAMPLE = 0.02  # s between two of the power buffer


def correlation(values: list[float], lag: int) -> float:
    """Return the autocorrelation of a series at `lag` samples: 1 for equal."""
    mean = fmean(values)
    off = [value - mean for value in values]
    shifted = sum(a * b for a, b in zip(off, off[lag:], strict=False)) / (len(off) - lag)
    return shifted / (sum(a * a for a in off) / len(off))


def step_of(machine: SimulatedSystem, index: int) -> float:
    return machine.gpus[index].work.step * machine.gpus[index].model.pace


def test_steps_differ_and_none_is_lost() -> None:
    rates = StepRates((0.1, 0.15), {"work": (1.0, 0.0), "steps": (4.0, 4.0)})
    meter = Meter()
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
    whole, cut = Meter(), Meter()
    whole.flow(0.0, {}, rates, 0.0)
    cut.flow(0.0, {}, rates, 0.0)
    for at in (0.03, 0.27, 5.11):
        cut.flow(at, {}, rates, 0.0)
    for at in (5.2, 17.77):
        assert cut.read("work", at) == pytest.approx(whole.read("work", at), abs=1e-9)
    assert cut.read("work", 0.2) == pytest.approx(whole.read("work", 0.2), abs=1e-9)


def test_a_fast_clock_has_the_same_steps() -> None:
    machine = build(parse("dgx-h100:training"), clock := SystemClock(200.0))
    least, most = [], []  # how far its time is ahead, however late each look is
    for pause in (0.0, 0.05):
        time.sleep(pause)
        before, at, after = clock.monotonic(), clock.time(), clock.monotonic()
        least.append(at - after)
        most.append(at - before)
    assert max(least) <= min(most) + 1e-3, "so are its times"
    machine.nvml.nvmlInit()
    clock.skip(10.0)
    samples: Any = machine.nvml.nvmlDeviceGetSamples(gpu(machine), 0, 0)[1]
    stamps = [sample.timeStamp for sample in samples]
    assert 119 < len(stamps) <= 18 / SAMPLE  # the buffer lasts as long for who reads it
    assert all(b - a == pytest.approx(20_000, abs=1) for a, b in pairwise(stamps))
    watts = [sample.sampleValue.uiVal / 1000 for sample in samples]
    assert correlation(watts, round(2 * step_of(machine, 0) / SAMPLE)) > 0.7
