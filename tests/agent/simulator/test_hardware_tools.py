"""The bare loop beside which the agent's price is reported asks what the agent asks, as often."""

import collections
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from agent import simulator as simulation
from agent.cli.assembly import Hardware
from agent.simulator.driver import NVML, CallRow
from tests.hardware.bare_loop import DECLARED, STATES, BareLoop, getter_of
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
    machine = simulation.SimulatedSystem(first_gpus(f"dgx-h200:{SCENARIOS[state]}", GPUS), clock)
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


SIMULATED = "agent/simulator/nvml.toml"


@pytest.fixture(autouse=True)
def _silent_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that succeeds and leaves each structure as the bindings made it."""
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda _: lambda *_: 0)


def members(getter: str, *arguments: int) -> set[str]:
    """The members of the structure, or the places in the list, that a getter returns."""
    answer = getattr(pynvml, f"nvmlDeviceGet{getter}")(None, *arguments)
    if isinstance(answer, list | tuple):
        return {"len", *map(str, range(len(answer)))}
    return {name for name, *_ in getattr(answer, "_fields_", ())}


def wrong_answer(getter: str, row: CallRow) -> set[str]:
    """Members that a simulated answer has and the real one has not."""
    gives = row.gives if isinstance(row.gives, dict) else map(str, range(len(row.gives)))
    return {*gives} - members(getter, *(valid[0] for valid in row.takes))


def wrong_calls(calls: list[str]) -> Iterator[str]:
    """Calls of declarations whose part is no member of the real answer."""
    for call in calls:
        getter, arguments = getter_of(call)
        part = call.partition(".")[2]
        if part and part not in members(getter, *arguments):
            yield call


def test_simulated_structures_have_the_members_of_the_real_ones() -> None:
    rows = {name: row for name, row in NVML.calls.items() if isinstance(row.gives, list | dict)}
    wrong = {name: found for name, row in rows.items() if (found := wrong_answer(name, row))}
    assert not wrong, f"{SIMULATED}: the bindings' structures have no such members: {wrong}"


def test_declared_calls_select_members_of_the_real_answers() -> None:
    wrong = [*wrong_calls([call for _, call in DECLARED if isinstance(call, str)])]
    assert not wrong, f"agent/sources/*.toml: the bindings' answers have no such part: {wrong}"


def test_a_member_that_does_not_exist_is_found() -> None:
    histogram = CallRow(gives={"max": 640, "none": 0, "nothing": 0})
    assert wrong_answer("RowRemapperHistogram", histogram) == {"nothing"}
    assert wrong_answer("MigMode", CallRow(gives=[0, 0, 0])) == {"2"}
    right = ["RowRemapperHistogram.none", "BAR1MemoryInfo.bar1Used", "RemappedRows.3", "PowerUsage"]
    wrong = ["RowRemapperHistogram.nothing", "BAR1MemoryInfo.used", "RemappedRows.4"]
    assert [*wrong_calls(right + wrong)] == wrong
