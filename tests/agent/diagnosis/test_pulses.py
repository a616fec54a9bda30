"""The pulse of whole machines: steps reported, counted, and not said where there are none."""

import pytest

from agent.clock import SystemClock
from agent.diagnosis import pulses
from agent.model import Reason, TimedSeries
from agent.simulator import SimulatedSystem, parse
from agent.sources import power, process
from tests.support.machine_controls import start_process
from tests.support.machines import AgentBench, played, simulated
from tests.support.nightly import shortly
from tests.support.simulated_machine import gpu

ENDS, COUNTED = 80, 40
"""Seconds that a scenario runs, and those at its end in which steps are counted; samples are read
every 2 s, and a step is found some steps later."""


def true_step(bench: AgentBench, index: int) -> float:
    one = bench.machine.gpus[index]
    return float(one.work.step * (one.model.pace if one.work.paced else 1.0))


@pytest.mark.parametrize(
    "name",
    shortly(
        [
            *("dgx-h100:training", "dgx-a100:training", "dgx-station-v100:training"),
            *("dgx-1-p100:training", "dgx-h100:starved-peer"),
            *("dgx-h100:late-rank", "dgx-a100:throttled"),
            "dgx-h100:exposed-communication",
        ],
        {
            *("dgx-h100:training", "dgx-a100:training"),
            *("dgx-h100:late-rank", "dgx-a100:throttled"),
        },
    ),
)
def test_every_gpu_of_a_training_has_its_step_and_its_steps(name: str) -> None:
    machine = played(name)
    before, after = (machine.at(end).samples for end in (ENDS - COUNTED, ENDS))
    bench, counted_before = machine.bench, before.all(pulses.STEPS)
    for identity in bench.agent.gpus.inventory.gpus:
        labels, step = identity.key.labels, true_step(bench, identity.index)
        assert after.value(pulses.STEP, *labels) == pytest.approx(step, rel=0.01)
        counted = after.all(pulses.STEPS)[labels] - counted_before[labels]
        assert counted == pytest.approx(COUNTED / step, abs=4.0 / step)
        assert 0.45 <= after.all(pulses.CONFIDENCE)[labels] <= 1


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        *(("held", Reason.FLAT), ("no-demand", Reason.FLAT)),
        *(("nvlink-saturated", Reason.FLAT), ("threads", Reason.IRREGULAR)),
        ("starved-disk", Reason.IRREGULAR),
    ],
)
def test_what_has_no_rhythm_has_a_reason_and_no_step(scenario: str, reason: Reason) -> None:
    machine = played(f"dgx-h100:{scenario}")
    look = machine.at(ENDS).samples
    assert look.all(pulses.STEP) == {}
    assert look.all(pulses.CONFIDENCE) == {}
    assert set(look.all(pulses.STEPS).values()) == {0}
    for identity in machine.bench.agent.gpus.inventory.gpus:
        absence = look.absence(pulses.STEP, *identity.key.labels)
        assert absence is not None
        assert absence.reason in (reason, Reason.IRREGULAR)
        assert absence.detail


def stepping(
    one: pulses.GpuPulse, begin: float, step: float, high: float = 600.0, low: float = 200.0
) -> float:
    """A minute of steps, of which three fifths are work; when it ends."""
    times = tuple(begin + 0.02 * number for number in range(3000))
    watts = tuple(
        (high if (at % step) < 0.6 * step else low) + number * 37 % 11  # no two are equal
        for number, at in enumerate(times)
    )
    for first in range(0, len(times), 100):
        part = slice(first, first + 100)
        series = TimedSeries(power.SAMPLES, ("0", "GPU-0"), times[part], watts[part])
        one.feed(series, series.times[-1])
    return times[-1] + 0.02


def test_of_several_loaders_no_step_is_believed() -> None:
    """Three loaders bring three batches a period, whose length is then no step's."""
    one = pulses.GpuPulse(occupied=True)
    end = stepping(one, 0.0, 0.21)
    assert one.step == pytest.approx(0.21, rel=0.01)
    one.ambiguous = pulses.SEVERAL
    before = one.steps
    stepping(one, end, 0.43)
    assert one.step is None
    assert one.reason is Reason.IRREGULAR
    assert one.steps == before > 100


@pytest.mark.parametrize(("swing", "shown"), [(30.0, False), (70.0, True)])
def test_the_rhythm_of_a_power_limit_is_no_step(swing: float, shown: bool) -> None:
    """An H200 that multiplies matrices at 692 of 700 W has swings of 0.95 s and 60 W."""
    one = pulses.GpuPulse(occupied=True)
    stepping(one, 0.0, 0.95, 692 + swing, 692 - swing)
    assert one.step == (pytest.approx(0.95, rel=0.01) if shown else None)
    assert one.reason is (None if shown else Reason.FLAT)
    assert one.steps > 50 if shown else one.steps == 0


@pytest.mark.parametrize("by_mps", [True, False])
def test_no_step_is_reported_several_processes_on_one_gpu(by_mps: bool) -> None:
    """Two clients of MPS on an H200, with steps of 115 and 126 ms, read as one of 122 ms."""
    bench = simulated("dgx-h100:training", gpus=1).run(40)
    (identity,) = bench.agent.gpus.inventory.gpus
    labels = identity.key.labels
    assert bench.samples.value(pulses.STEP, *labels) is not None
    if by_mps:
        server = start_process(bench.machine, 0)
        bench.machine.jobs.processes[server].name = process.MPS_SERVER
        bench.machine.jobs.processes[server].uid = 0
    start_process(bench.machine, 0)
    look = bench.run(10).samples
    assert look.value(pulses.STEP, *labels) is None
    absence = look.absence(pulses.STEP, *labels)
    assert absence is not None
    assert (absence.reason, absence.detail) == (Reason.IRREGULAR, pulses.SHARED)
    named = {pid for *_, pid in look.all(process.SHARE)}
    assert not by_mps or str(server) not in named


def test_a_gpu_without_a_process_needs_no_step() -> None:
    look = played("dgx-station-v100:idle").at(5).samples
    assert look.all(pulses.STEP) == {}
    assert look.absence(pulses.STEP, *next(iter(look.all(pulses.STEPS)))) is None


def test_steps_of_a_job_before_stay_counted() -> None:
    bench = simulated("dgx-a100:training", gpus=1).run(40)
    before = bench.samples.all(pulses.STEPS)
    bench.machine.set_scenario("idle")
    bench.run(20)
    assert bench.samples.all(pulses.STEP) == {}
    kept = bench.samples.all(pulses.STEPS)
    assert all(kept[labels] >= steps > 0 for labels, steps in before.items())
    bench.machine.set_scenario("training")
    bench.run(40)
    counted = bench.samples.all(pulses.STEPS)
    assert all(counted[labels] > steps + 40 for labels, steps in kept.items())


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_a_fast_simulation_keeps_its_samples_for_as_long(speed: float) -> None:
    """The driver's buffer holds 2.4 s of the time in which the agent's thread must come back."""
    clock = SystemClock(speed)
    machine = SimulatedSystem(parse("dgx-station-v100:training"), clock)
    clock.skip(60.0)
    machine.nvml.nvmlInit()
    samples = machine.nvml.nvmlDeviceGetSamples(gpu(machine), 0, 0)[1]
    kept = (samples[-1].timeStamp - samples[0].timeStamp) / 1e6
    assert kept == pytest.approx(min(2.36 * speed, 18.0), rel=0.01)
