"""The simulated machine: demand, counters, samples, faults, the host and the controls."""

import math
import threading
from itertools import pairwise
from statistics import fmean

import pytest

from agent.clock import SystemClock
from agent.simulator import SYSTEMS, SimulatedSystem, models, parse, scenarios
from tests.support.call_count import calls_of
from tests.support.frozen_clock import FrozenClock
from tests.support.patience import PATIENCE
from tests.support.simulated_machine import NOT_FOUND, code, field, get, gpm, gpu, start


def test_no_time_between_samples_is_not_a_number() -> None:
    machine, clock = start("dgx-h100:training", 1.0)
    (activity,) = gpm(machine, clock, 0.0, 1)
    assert math.isnan(activity)


def test_samples_are_newer_than_what_was_seen() -> None:
    machine, clock = start("dgx-1-v100:training", 30.0)
    kind, samples = get(machine, "Samples", 1, 0)
    stamps = [s.timeStamp for s in samples]
    assert kind == 1
    assert len(samples) == 71
    assert {b - a for a, b in pairwise(stamps)} == {200_000}
    assert stamps[-1] == round(clock.time() * 1e6)
    assert all(90 <= s.sampleValue.uiVal <= 100 for s in samples)
    call = machine.nvml.nvmlDeviceGetSamples
    assert code(call, gpu(machine), 1, stamps[-1]) == NOT_FOUND
    clock.advance(0.5)
    assert len(get(machine, "Samples", 1, stamps[-1])[1]) == 2
    power = get(machine, "Samples", 0, 0)[1]
    assert len(power) == 119
    assert power[-1].timeStamp - power[0].timeStamp == pytest.approx(118 * 20_000, abs=2)
    assert fmean(p.sampleValue.uiVal for p in power) == pytest.approx(273_000, rel=0.02)
    assert [p.timeStamp for p in get(machine, "Samples", 0, power[-4].timeStamp)[1]] == [
        p.timeStamp for p in power[-3:]
    ]


def test_the_tour_begins_with_a_fault_and_says_the_next_scenario() -> None:
    system = models.ALL["dgx-h100"]
    stops = scenarios.stops(system)
    assert [name for name, _ in stops[:3]] == ["starved-disk", "training", "starved-network"]
    assert scenarios.playing(system, "tour", 0.0) == "starved-disk, in 120 s training"
    assert scenarios.playing(system, "tour", 119.6) == "starved-disk, in 0 s training"
    assert scenarios.playing(system, "tour", 120.0) == "training, in 30 s starved-network"
    whole = sum(seconds for _, seconds in stops)
    assert scenarios.playing(system, "tour", whole + 1.0) == "starved-disk, in 119 s training"
    assert scenarios.playing(system, "held", 1e6) == "held"


@pytest.mark.parametrize("speed", [1.0, 10.0, 20.0])
def test_a_prometheus_that_starts_with_the_machine_sees_its_port_up(speed: float) -> None:
    """It learns its targets after five seconds, at any speed, and scrapes within five more."""
    clock = FrozenClock()
    clock.speed = speed
    machine = SimulatedSystem(parse("dgx-a100:driver-hang+infiniband-down"), clock)
    down = []
    for _ in range(2):
        clock.advance(11.0 * speed)
        machine.advance()
        down.append(machine.devices.hcas[0].faults["down"])
    assert down == [0, 1]


def test_counters_never_fall_on_the_tour() -> None:
    machine, clock = start("dgx-h100@580", 0.1)
    counters = [(i, s) for i in (4, 6, 74, 75, 78, 83, 138, 140, 161, 163, 270) for s in (0, 2)]
    before = [0] * len(counters)
    seen = set()
    stops = scenarios.stops(models.ALL["dgx-h100"])
    for _ in range(int(sum(seconds for _, seconds in stops)) // 5):
        clock.advance(5.0)
        machine.advance()
        seen.add(machine.scenario)
        if machine.scenario == "driver-hang":
            continue
        read = zip(get(machine, "FieldValues", counters), before, strict=True)
        now = [old if v.nvmlReturn else v.value.ullVal for v, old in read]
        assert all(a >= b for a, b in zip(now, before, strict=True))
        before = now
    assert seen == set(scenarios.possible(models.ALL["dgx-h100"])) - {"tour"}


def test_a_long_gap_is_caught_up_quickly() -> None:
    machine, clock = start("dgx-h200:training", 10.0)
    clock.advance(86_400.0)
    assert calls_of(machine.advance) < 1000
    assert get(machine, "UtilizationRates").gpu > 90
    spent = 0.91 * 700 * 86_410 * 1000
    assert get(machine, "TotalEnergyConsumption") == pytest.approx(spent, rel=0.02)


@pytest.mark.parametrize("system", SYSTEMS)
def test_heat_and_throttling_stay_apart(system: str) -> None:
    machine, clock = start(f"{system}:throttled", 60.0)
    slowdown = get(machine, "TemperatureThreshold", 1)
    assert get(machine, "Temperature", 0) <= slowdown - 3
    assert get(machine, "ClockInfo", 1) / get(machine, "MaxClockInfo", 1) < 0.65
    assert get(machine, "CurrentClocksThrottleReasons") & 0x40
    machine.set_scenario("gpu-hot")
    clock.advance(30.0)
    assert get(machine, "Temperature", 0) == slowdown + 1
    assert get(machine, "ClockInfo", 1) / get(machine, "MaxClockInfo", 1) > 0.95


def test_a_hung_driver_blocks_under_a_running_clock() -> None:
    machine = SimulatedSystem(parse("gtx-1080:training"), SystemClock())
    machine.nvml.nvmlInit()
    handle = gpu(machine)
    machine.driver.hung = True
    caller = threading.Thread(target=machine.nvml.nvmlDeviceGetPowerUsage, args=(handle,))
    caller.start()
    caller.join(0.1)
    assert caller.is_alive()
    assert machine.host.files.read("/proc/uptime")
    machine.driver.hung = False
    caller.join(PATIENCE)
    assert not caller.is_alive()


def test_without_the_fabric_manager_links_carry_nothing() -> None:
    """It aborts jobs when it ends, and a GPU that has not joined the fabric reaches no other."""
    sent = []
    for fault in ("", "+fabric-service"):
        machine, clock = start(f"dgx-h100:nvlink-saturated{fault}")
        before = field(machine, 138)[1]
        clock.advance(10.0)
        sent.append(field(machine, 138)[1] - before)
    assert sent[0] > 0 == sent[1]


def test_two_runs_are_the_same() -> None:
    def run(stops: int) -> list[int]:
        machine, clock = start("dgx-h100:training")
        for _ in range(stops):
            clock.advance(24.0 / stops)
            machine.advance()
        return [
            get(machine, "TotalEnergyConsumption"),
            get(machine, "PowerUsage"),
            field(machine, 138)[1],
        ]

    assert run(24) == run(24)
    assert run(1) == pytest.approx(run(120), rel=1e-9)


def test_a_simulated_second_costs_little() -> None:
    machine, clock = start("dgx-h200:training", 3.0)
    (newest, *_) = reversed(get(machine, "Samples", 0, 0)[1])
    clock.advance(1.0)
    assert calls_of(machine.advance) < 100
    samples = machine.nvml.nvmlDeviceGetSamples
    read = calls_of(lambda: samples(gpu(machine), 0, newest.timeStamp))
    assert read < 3000, "50 samples of one GPU: 1 ms of an idle core"
