"""The tools of the hardware tests on simulated machines: saturation, and the bare loop beside which
the agent's price is reported: it asks what the agent asks, as often."""

import collections
from collections.abc import Iterator
from typing import Any

import pytest

from agent import simulator as simulation
from agent.cli.assembly import Hardware
from tests.hardware import saturation
from tests.hardware.bare_loop import STATES, BareLoop
from tests.hardware.bench import Figure, Watcher
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import first_gpus
from tests.support.nightly import NIGHTLY

BEFORE, LOAD, AFTER = 15, 40, 16
GPUS = 2


class FrozenWatcher(Watcher):
    """A watcher of a simulated machine, whose seconds pass at once."""

    def __init__(self, name: str) -> None:
        clock = FrozenClock()
        machine = simulation.build(first_gpus(name, GPUS), clock)
        super().__init__(Hardware(lambda: machine.nvml, machine.host, simulated=True), clock=clock)
        self.machine = machine


def watched(system: str, quiet: str, load: str) -> tuple[FrozenWatcher, saturation.Span]:
    """A machine that is quiet, then under load for so many seconds, then quiet again."""
    watcher = FrozenWatcher(f"{system}:{quiet}")
    watcher.ticks(BEFORE)
    start = watcher.clock.monotonic()
    watcher.machine.set_scenario(load)
    watcher.ticks(LOAD)
    span = saturation.Span(start, watcher.clock.monotonic())
    watcher.machine.set_scenario(quiet)
    watcher.ticks(AFTER)
    return watcher, span


def off(figures: Iterator[Figure]) -> list[str]:
    return [str(figure) for figure in figures if not figure.holds]


@pytest.mark.parametrize("quiet", ["idle", "training"])
def test_links_are_full_for_as_long_as_the_load_runs(quiet: str) -> None:
    watcher, span = watched("dgx-h200", quiet, "nvlink-saturated")
    for device in saturation.devices(watcher):
        for way in saturation.BOTH:
            assert not off(saturation.full(watcher, "nvlink", device, way, span))


def test_what_is_full_and_should_not_be_or_the_reverse_is_off() -> None:
    watcher, span = watched("dgx-h200", "idle", "starved-pcie")
    assert not off(saturation.full(watcher, "pcie", "gpu0", "receive", span))
    assert not off(saturation.quiet(watcher, "pcie", "gpu1", "receive", span))
    assert len(off(saturation.quiet(watcher, "pcie", "gpu0", "receive", span))) == 2
    assert len(off(saturation.full(watcher, "nvlink", "gpu0", "transmit", span))) == 2


def test_a_load_that_ran_longer_than_it_was_saturated_is_off() -> None:
    watcher, span = watched("dgx-h200", "idle", "nvlink-saturated")
    longer = saturation.Span(span.start - 10, span.end)
    shown = off(saturation.full(watcher, "nvlink", "gpu0", "transmit", longer))
    assert "saturated: 40 s in [45.5, 54.5]" in shown[-1]


def test_the_first_piece_of_a_load_counts() -> None:
    lines = [{"at": 10.0}, {"at": 10.5}, {"at": 11.0}, {"at": 20.0}]
    assert saturation.span_of(lines) == saturation.Span(9.5, 20.0)
    with pytest.raises(RuntimeError):
        saturation.span_of(lines[:2])


SECONDS = 60
SCENARIOS = {"idle": "idle", "all-reduce": "nvlink-saturated", "training": "training"}
"""The scenario that is in this state of the loop."""


class CountedLibrary:
    """A library whose answers are counted: by name, those for fields by their number of fields."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: collections.Counter[str] = collections.Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        if not name.startswith("nvml") or not callable(value):
            return value

        def counted(*arguments: Any, **options: Any) -> Any:
            fields = f" {len(arguments[1])}" if name == "nvmlDeviceGetFieldValues" else ""
            answer = value(*arguments, **options)
            self.calls[name + fields] += 1
            return answer

        return counted


@pytest.mark.parametrize("state", ["idle", "all-reduce", pytest.param("training", marks=NIGHTLY)])
def test_the_bare_loop_asks_what_the_agent_asks(state: str) -> None:
    """From the second minute on, when what is found out once has been."""
    clock = FrozenClock()
    machine = simulation.build(first_gpus(f"dgx-h200:{SCENARIOS[state]}", GPUS), clock)
    agents, loops = CountedLibrary(machine.nvml), CountedLibrary(machine.nvml)
    hardware = Hardware(lambda: agents, machine.host, simulated=True)
    watcher = Watcher(hardware, clock=clock)
    loops.nvmlInit()
    loop = BareLoop(loops, STATES[state])
    for second in range(12 + SECONDS):
        if second == 12:
            agents.calls.clear()
            loops.calls.clear()
        loop.tick(second)
        watcher.ticks(1.0)
    assert set(agents.calls) == set(loops.calls)
    for name, count in agents.calls.items():
        assert loops.calls[name] == pytest.approx(count, abs=GPUS, rel=0.04), name
