"""NVML's calls that NVIDIA withdraws: none is in use without another one that is asked first."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from agent.simulator.fields import FIELDS
from agent.sources import clocks, gpu, temperature
from tests.support.machines import simulated
from tests.support.repository import ROOT

SOURCE = Path(pynvml.__file__).read_text(encoding="utf-8")
WITHDRAWN = frozenset(
    re.findall(r"^# DEPRECATED.*\n(?:#.*\n)*def (nvml\w+)\(", SOURCE, re.MULTILINE | re.IGNORECASE)
)
WITHDRAWN_FIELDS = frozenset(
    map(int, re.findall(r"NVML_FI_\w+ += (\d+) *# *Deprecated", SOURCE, re.IGNORECASE))
)
CALL = re.compile(r'"(?:nvmlDeviceGet)?(\w+)"')

REPLACED = {
    "nvmlDeviceGetTemperature": "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfo": "nvmlDeviceGetGpuFabricInfoV",
}
"""Withdrawn calls in use, as a fallback for older drivers alone, and what is asked first."""


def calls_in_use() -> set[str]:
    """NVML's functions that the agent names, in full or as the end of nvmlDeviceGet..."""
    rooms = ("agent/hardware", "agent/polling", "agent/sources")
    texts = [path.read_text() for room in rooms for path in (ROOT / room).rglob("*.py")]
    names = {name for text in texts for name in CALL.findall(text)}
    whole = {f"nvmlDeviceGet{name}" for name in names} | names
    return {name for name in whole if name in dir(pynvml) and name.startswith("nvml")}


def test_the_bindings_name_what_is_withdrawn() -> None:
    assert len(WITHDRAWN) > 15
    assert REPLACED.keys() <= WITHDRAWN
    assert len(calls_in_use()) > 40


def test_a_withdrawn_call_is_a_fallback() -> None:
    assert calls_in_use() & WITHDRAWN == REPLACED.keys()
    assert set(REPLACED.values()) <= calls_in_use()


def test_no_withdrawn_field_is_in_use() -> None:
    assert WITHDRAWN_FIELDS
    assert WITHDRAWN_FIELDS.isdisjoint(FIELDS)


@pytest.mark.parametrize("system", ["dgx-h100:training", "dgx-h100@525:training"])
def test_a_library_without_them_costs_nothing_where_the_others_are(system: str) -> None:
    whole, bench = simulated(system, gpus=2).run(2), simulated(system, gpus=2)
    modern = "@525" not in system
    for old, new in REPLACED.items():
        bench.machine.driver.fail(old if modern else new, 13)
    bench.run(2)
    for metric in (temperature.TEMPERATURE, temperature.MARGIN, clocks.REASONS, gpu.UTILIZATION):
        assert bench.samples.all(metric) == whole.samples.all(metric) != {}


@pytest.mark.parametrize("system", ["dgx-h100:mig", "dgx-1-p100:training", "dgx-h100@525:training"])
def test_no_other_withdrawn_call_is_made(system: str) -> None:
    """Names that are put together as they are needed stand in no source."""
    bench, made = simulated(system, gpus=2), set[str]()

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(bench.machine.nvml, name)

        def noting(*args: Any, **options: Any) -> Any:
            made.add(name)
            return call(*args, **options)

        return noting

    for name in [name for name in dir(bench.machine.nvml) if name.startswith("nvml")]:
        setattr(bench.machine.nvml, name, noted(name))
    bench.run(2)
    assert len(made) > 30
    assert made & WITHDRAWN <= REPLACED.keys()
