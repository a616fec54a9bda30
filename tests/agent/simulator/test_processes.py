"""Threads, processes and cgroups of simulated jobs: as the kernel writes them, and consistent."""

import time
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.simulator import SimulatedSystem, parse
from agent.simulator.meter import JITTER, Meter, StepRates
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import lose, start_process
from tests.support.simulated_machine import gpm, gpu, start


def read(machine: SimulatedSystem, path: str) -> str:
    return machine.host.files.read(path)


def trainer(machine: SimulatedSystem, index: int = 0) -> int:
    return machine.gpus[index].processes[0].pid


def fields(machine: SimulatedSystem, path: str) -> list[str]:
    """The fields of a stat file after the name: state, parent, ..."""
    return read(machine, path).rpartition(")")[2].split()


def states(
    machine: SimulatedSystem, clock: FrozenClock, path: str, readings: int = 400
) -> dict[str, float]:
    """Share of readings at which each state was found."""
    found = []
    for _ in range(readings):
        clock.advance(0.05)
        found.append(fields(machine, path)[0])
    return {state: found.count(state) / readings for state in "RDS"}


def test_a_checkpoint_shows_in_any_100_seconds() -> None:
    machine, clock = start("dgx-h100:checkpoint")
    pid = trainer(machine)
    active = []
    for _ in range(300):
        (activity,) = gpm(machine, clock, 1.0, 1)
        active.append(activity > 50)
    assert trainer(machine) == pid, "one job trains, saves, and trains on"
    shares = [sum(active[at : at + 100]) / 100 for at in range(200)]
    assert (min(shares), max(shares)) == pytest.approx((0.15, 0.25), abs=0.02)


def test_a_server_without_requests_spins_and_answers_now_and_then() -> None:
    machine, clock = start("dgx-h100:no-demand", 5.0)
    pid = trainer(machine)
    assert states(machine, clock, f"/proc/{pid}/stat")["R"] == 1.0
    assert fields(machine, f"/proc/{pid}/stat")[1] == "1", "no job with the others"
    activity = [gpm(machine, clock, 0.5, 1)[0] for _ in range(600)]
    bursts = [n for n, share in enumerate(activity) if share]
    assert all(any(at <= n < at + 200 for n in bursts) for at in range(400))
    assert 0.005 < sum(activity) / 600 / 100 < 0.03
    assert len({b - a for a, b in pairwise(bursts) if b - a > 2}) > 5


def test_parts_of_a_scenario_heal_nothing_and_end_no_process() -> None:
    machine, clock = start("dgx-h100:checkpoint", 5.0)
    lose(machine, 3)
    other = start_process(machine, 1)
    machine.driver.fail("nvmlDeviceGetPowerUsage", 999)
    clock.advance(200.0)
    machine.advance()
    assert machine.gpus[3].lost
    assert [p.pid for p in machine.gpus[1].processes] == [trainer(machine, 1), other]
    assert machine.driver.failures
    machine.set_scenario("checkpoint")
    assert not machine.gpus[3].lost
    assert [p.pid for p in machine.gpus[1].processes] == [trainer(machine, 1)]


def test_who_is_gone_has_no_files() -> None:
    machine, _ = start("dgx-h100:training", 5.0)
    pid = trainer(machine)
    machine.set_scenario("idle")
    for name in ("io", "net/dev", "schedstat", f"task/{pid}/schedstat"):
        with pytest.raises(FileNotFoundError):
            read(machine, f"/proc/{pid}/{name}")


SAMPLE = 0.02  # s between two of the power buffer


def correlation(values: list[float], lag: int) -> float:
    """Return the autocorrelation of a series at `lag` samples: 1 for equal."""
    mean = fmean(values)
    off = [value - mean for value in values]
    shifted = sum(a * b for a, b in zip(off, off[lag:], strict=False)) / (len(off) - lag)
    return shifted / (sum(a * a for a in off) / len(off))


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
    machine = SimulatedSystem(parse("dgx-h100:training"), clock := SystemClock(200.0))
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
    step = machine.gpus[0].work.step * machine.gpus[0].model.pace
    assert correlation(watts, round(2 * step / SAMPLE)) > 0.7
