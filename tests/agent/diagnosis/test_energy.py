"""A GPU's energy by state and cause: what the counter grew by, no more and no less."""

from collections.abc import Sequence

import pytest

from agent.diagnosis.energy import NAMES, STATE_JOULES, EnergyByState, split
from agent.model import BUSY, Cause, Pair, State, TimedSeries
from agent.sources.power import ENERGY, SAMPLES
from tests.support import machines
from tests.support.machine_controls import reload_driver

DISK: Pair = (State.STARVED, Cause.DISK)
IDLE: Pair = (State.IDLE, Cause.NONE)


def test_low_samples_go_to_states_that_draw_little() -> None:
    watts = [100.0] * 20 + [500.0] * 30
    found = split({DISK: 0.4, BUSY: 0.6}, watts)
    assert found[DISK] == pytest.approx(0.4 * 100 / 340)
    assert found[BUSY] == pytest.approx(0.6 * 500 / 340)
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("watts", [(), (0.0, 0.0), (100.0,)])
def test_without_samples_that_differ_a_second_is_split_evenly(watts: Sequence[float]) -> None:
    assert split({DISK: 0.25, BUSY: 0.75}, watts) == {DISK: 0.25, BUSY: 0.75}


def played(
    counter: Sequence[tuple[int, float]], parts: dict[int, dict[Pair, float] | None]
) -> EnergyByState:
    """Sixty seconds and more of 100 W; the counter as it is read at some of them."""
    energy, read = EnergyByState(), dict(counter)
    now: dict[Pair, float] | None = {IDLE: 1.0}
    for second in range(max(read) + 3 + 2):
        now = parts.get(second, now)
        if second in read:
            energy.count(second, read[second])
        energy.enter(now, 1.0, 100.0)
    return energy


def test_what_the_counter_says_is_split_over_its_seconds() -> None:
    energy = played([(0, 5_000.0), (10, 6_200.0)], {6: {BUSY: 1.0}})
    assert energy.joules == pytest.approx({IDLE: 600.0, BUSY: 600.0}, rel=0.11)
    assert sum(energy.joules.values()) == pytest.approx(1_200.0)


def test_a_counter_that_begins_again_counts_from_0() -> None:
    energy = played([(0, 5_000.0), (10, 6_000.0), (20, 300.0)], {})
    assert sum(energy.joules.values()) == pytest.approx(1_300.0)


def test_seconds_without_a_state_are_unobserved() -> None:
    energy = played([(0, 0.0), (10, 1_000.0)], {0: None})
    assert energy.joules.get(None) == pytest.approx(1_000.0)


def test_between_two_readings_the_power_is_an_estimate() -> None:
    energy = played([(0, 0.0), (10, 1_000.0)], {})
    energy.enter({BUSY: 1.0}, 1.0, 400.0)
    assert energy.spent()[BUSY] == pytest.approx(400.0)
    assert BUSY not in energy.joules


def test_samples_of_20_ms_divide_a_second() -> None:
    energy = EnergyByState()
    energy.count(0, 0.0)
    energy.enter({IDLE: 1.0}, 0.0, 100.0)
    for second in range(1, 12):
        times = tuple(second - 1 + (n + 1) / 50 for n in range(50))
        watts = tuple(100.0 if n < 20 else 500.0 for n in range(50))
        energy.sample(TimedSeries(SAMPLES, ("0", "x"), times, watts))
        if second == 11:
            energy.count(10.0, 3_400.0)
        energy.enter({DISK: 0.4, BUSY: 0.6}, 1.0, 340.0)
    assert energy.joules == pytest.approx({DISK: 400.0, BUSY: 3_000.0})


@pytest.mark.parametrize("system", ["dgx-h100:starved-disk", "k40:training"])
def test_the_sums_are_the_counter(system: str) -> None:
    """Over minutes with a driver that is loaded again, with and without a counter."""
    bench = machines.simulated(system, gpus=1)

    def both() -> tuple[dict[str, float], dict[str, float]]:
        snapshot = bench.latest
        counted: dict[str, float] = {}
        spent: dict[str, float] = {}
        for metric, labels, value in snapshot.samples(snapshot.at):
            if metric is ENERGY:
                counted[labels[1]] = value
            elif metric is STATE_JOULES:
                spent[labels[1]] = spent.get(labels[1], 0.0) + value
        return counted, spent

    grown: dict[str, float] = {}
    before, _ = both()
    for second in range(120):
        if second == 60:
            reload_driver(bench.machine)
        bench.run(1)
        now, spent = both()
        for uuid, value in now.items():
            last = before.get(uuid, value)
            grown[uuid] = grown.get(uuid, 0.0) + (value - last if value >= last else value)
        before.update(now)
    assert len(grown) > 0
    for uuid, joules in grown.items():
        lag = 15 * joules / 200  # a reading is split up to 3 s later, and comes every 10 s
        assert spent[uuid] == pytest.approx(joules, abs=lag), uuid


def test_its_series_are_there_from_the_first_tick_and_stay() -> None:
    """A series that comes with its first joules loses these to `increase`."""
    bench = machines.simulated("dgx-h100:training", gpus=2).run(1)
    first = bench.samples.all(STATE_JOULES).keys()
    assert {labels[2:] for labels in first} == set(NAMES.values())
    assert len(first) == 2 * len(NAMES)
    bench.machine.lose(1)
    assert bench.run(30).samples.all(STATE_JOULES).keys() == first
