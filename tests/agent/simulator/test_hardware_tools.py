"""The bare loop beside which the agent's price is reported asks what the agent asks, as often."""

import collections
from typing import Any

import pytest

from agent import simulator as simulation
from agent.cli.assembly import Hardware
from tests.hardware.bare_loop import STATES, BareLoop
from tests.hardware.bench import Watcher
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import first_gpus
from tests.support.nightly import NIGHTLY

GPUS = 2


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
    differ = set(agents.calls) ^ set(loops.calls)
    assert not differ, f"{sorted(differ)}: correct GETTERS or FIELDS in tests/hardware/bare_loop.py"
    for name, count in agents.calls.items():
        assert loops.calls[name] == pytest.approx(count, abs=GPUS, rel=0.04), name
