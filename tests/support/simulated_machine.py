"""Helpers for tests of simulated machines: a machine under a frozen clock, questions to it."""

from collections.abc import Callable
from typing import Any

import pynvml

from agent.simulator import SimulatedSystem, parse
from tests.support.frozen_clock import FrozenClock

ALL_LINKS = 0xFFFFFFFF
INVALID, NO_SYMBOL = 2, 13
NOT_FOUND = 6
FABRIC = pynvml.c_nvmlGpuFabricInfo_v2_t


def start(spec: str, seconds: float = 0.0) -> tuple[SimulatedSystem, FrozenClock]:
    clock = FrozenClock()
    machine = SimulatedSystem(parse(spec), clock)
    machine.nvml.nvmlInit()
    clock.advance(seconds)
    return machine, clock


def gpu(machine: SimulatedSystem, index: int = 0) -> Any:
    return machine.nvml.nvmlDeviceGetHandleByIndex(index)


def code(call: Callable[..., Any], *args: Any) -> int:
    """The NVML code of a call; 0 where it answers, 13 for pynvml's own mismatch error."""
    try:
        call(*args)
    except pynvml.NVMLError as error:
        return int(error.value)
    except pynvml.NVMLLibraryMismatchError:
        return NO_SYMBOL
    return 0


def get(machine: SimulatedSystem, name: str, *args: Any, index: int = 0) -> Any:
    return getattr(machine.nvml, f"nvmlDeviceGet{name}")(gpu(machine, index), *args)


def field(machine: SimulatedSystem, number: int, scope: int = 0, index: int = 0) -> tuple[int, int]:
    """(return code, value) of one field."""
    (entry,) = get(machine, "FieldValues", [(number, scope)], index=index)
    member = {1: "uiVal", 3: "ullVal", 5: "siVal"}.get(entry.valueType, "ullVal")
    return entry.nvmlReturn, getattr(entry.value, member)


def gpm(
    machine: SimulatedSystem, clock: FrozenClock, seconds: float, *ids: int, index: int = 0
) -> list[float]:
    library = machine.nvml
    older, newer = library.nvmlGpmSampleAlloc(), library.nvmlGpmSampleAlloc()
    library.nvmlGpmSampleGet(gpu(machine, index), older)
    clock.advance(seconds)
    library.nvmlGpmSampleGet(gpu(machine, index), newer)
    question = library.c_nvmlGpmMetricsGet_t()
    question.version = library.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics, question.sample1, question.sample2 = len(ids), older, newer
    for slot, number in zip(question.metrics, ids, strict=False):
        slot.metricId = number
    library.nvmlGpmMetricsGet(question)
    library.nvmlGpmSampleFree(older)
    library.nvmlGpmSampleFree(newer)
    return [question.metrics[place].value for place in range(len(ids))]


def host_counters(machine: SimulatedSystem) -> list[Any]:
    """Disk and NIC counters by device."""
    psutil = machine.host.psutil
    return [psutil.disk_io_counters(perdisk=True), psutil.net_io_counters(pernic=True)]
