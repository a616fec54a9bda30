"""Simulated answers and declarations name members of the structures that NVML's bindings return."""

from collections.abc import Iterator

import pynvml
import pytest

from agent.simulator.driver import NVML, CallRow
from tests.hardware.bare_loop import DECLARED, getter_of

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
