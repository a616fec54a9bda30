"""GPM: samples are copies of the counters, metrics are differences over time."""

import ctypes
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from agent.simulator import refusals
from agent.simulator.call_guard import NvmlPart, device_call, library_call, refuse
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu
from agent.simulator.mig import instances
from agent.simulator.refusals import LINK_SLOTS

SAMPLES = 0x5000_0000
"""Address of the first sample."""

PCIE_UNIT = 1_054_800.0  # bytes, as measured on H100s
NVLINK_UNIT = 1_024_000.0
"""Documented as MiB, measured to be this many bytes of payload."""

Shares = dict[str, float]
WHOLE = -1
FIRST_LINK = 62


class _Sample(NamedTuple):
    of: tuple[int, int]  # GPU, and its GPU instance or WHOLE
    at: float
    totals: Shares


def _share(name: str) -> Callable[[Shares], float]:
    return lambda rates: 100.0 * rates.get(name, 0.0)


def _pcie(name: str) -> Callable[[Shares], float]:
    return lambda rates: rates.get(name, 0.0) * PCIE_OVERHEAD / PCIE_UNIT


def _links(direction: str, *links: int) -> Callable[[Shares], float]:
    names = [f"{direction}{link}" for link in links]
    return lambda rates: sum(rates.get(name, 0.0) for name in names) / NVLINK_UNIT


METRICS: dict[int, Callable[[Shares], float]] = {
    1: _share("activity"),
    2: _share("sm"),
    3: _share("occupancy"),
    5: _share("tensor"),
    10: _share("dram"),
    20: _pcie("pcie_tx"),
    21: _pcie("pcie_rx"),
    60: _links("rx", *range(LINK_SLOTS)),
    61: _links("tx", *range(LINK_SLOTS)),
    **{FIRST_LINK + 2 * link: _links("rx", link) for link in range(LINK_SLOTS)},
    **{FIRST_LINK + 2 * link + 1: _links("tx", link) for link in range(LINK_SLOTS)},
}
"""Metric id to its value from the counters' mean rates; ids not listed are refused."""


CYCLES: dict[int, str] = {249: "sm", 250: "tensor", 252: "tensor"}
"""Metric id of R610 to the counter whose cycles it says since the machine began; 248 shows all."""

SINCE_CYCLES = (610,)
ELAPSED, LAST_CYCLES = 248, 260
SM_HERTZ = 1e9


class SimulatedGpm(NvmlPart):
    """Samples live here, by address, until they are freed."""

    _samples: dict[int, _Sample | None]
    _next: int

    @device_call
    def nvmlGpmQueryDeviceSupport(self, gpu: SimulatedGpu) -> Any:
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        support.isSupportedDevice = int(gpu.model.gpm)
        return support

    @library_call
    def nvmlGpmSampleAlloc(self) -> Any:
        address, self._next = self._next, self._next + 16
        self._samples[address] = None
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlGpmSample_t)

    @library_call
    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._samples[self._address(sample)]

    @device_call
    def nvmlGpmSampleGet(self, gpu: SimulatedGpu, sample: Any) -> Any:
        now = self.machine.now
        self._samples[self._address(sample)] = _Sample((gpu.index, WHOLE), now, gpu.meter.copy(now))
        return sample

    @device_call
    def nvmlGpmMigSampleGet(self, gpu: SimulatedGpu, number: int, sample: Any) -> Any:
        """An instance with a process works as the whole GPU would; another rests."""
        found = next((one for one in instances(gpu) if one.profile.number == number), None)
        if found is None:
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        now = self.machine.now
        totals = gpu.meter.copy(now) if found.processes else {}
        self._samples[self._address(sample)] = _Sample((gpu.index, number), now, totals)
        return sample

    @library_call
    def nvmlGpmMetricsGet(self, question: Any) -> Any:
        if question.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            refuse(refusals.VERSION_MISMATCH)
        older, newer = self._taken(question.sample1), self._taken(question.sample2)
        if older.of != newer.of or newer.at < older.at:
            refuse(refusals.INVALID_ARGUMENT)
        rates = _rates(older, newer)
        counted = self.machine.driver.numbers >= SINCE_CYCLES
        for place in range(question.numMetrics):
            slot = question.metrics[place]
            if ELAPSED <= slot.metricId <= LAST_CYCLES and counted:
                _count(slot, newer)
            else:
                _answer(slot, rates)
        return self.guard.answer("nvmlGpmMetricsGet", older.of[0], question)

    def _address(self, sample: Any) -> int:
        address = ctypes.cast(sample, ctypes.c_void_p).value or 0
        if address not in self._samples:
            refuse(refusals.INVALID_ARGUMENT)
        return address

    def _taken(self, sample: Any) -> _Sample:
        taken = self._samples[self._address(sample)]
        if taken is None:
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        return taken


def _rates(older: _Sample, newer: _Sample) -> Shares:
    """Mean rates per second; not a number where no time has passed, none where an instance had no
    process at one of both."""
    seconds = newer.at - older.at
    if not seconds:
        return dict.fromkeys(newer.totals, math.nan)
    before = older.totals
    if not before:
        return {}
    return {name: (total - before.get(name, 0.0)) / seconds for name, total in newer.totals.items()}


def _count(slot: Any, sample: _Sample) -> None:
    """Cycles up to the newer sample; the pipes that no simulated kernel uses counted none."""
    name = CYCLES.get(slot.metricId, "")
    seconds = sample.at if slot.metricId == ELAPSED else sample.totals.get(name, 0.0)
    slot.nvmlReturn, slot.value = refusals.ANSWERED, float(int(seconds * SM_HERTZ))


def _answer(slot: Any, rates: Shares) -> None:
    metric = METRICS.get(slot.metricId)
    slot.nvmlReturn = refusals.NOT_SUPPORTED if metric is None else refusals.ANSWERED
    slot.value = 0.0 if metric is None else metric(rates)
