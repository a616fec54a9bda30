"""GPM: samples are copies of the counters, metrics are differences over time."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from agent.simulator import driver
from agent.simulator.call_guard import Call, address_of, pointer_to, refuse
from agent.simulator.driver import LINK_SLOTS
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu
from agent.simulator.mig import instances

SAMPLES = 0x5000_0000  # Address below the first sample
PCIE_UNIT = 1_054_800.0  # bytes, as measured on H100s
NVLINK_UNIT = 1_024_000.0  # Documented as MiB, measured to be this many bytes of payload

Shares = dict[str, float]
WHOLE = -1


class GpmCounters(NamedTuple):
    """The counters of a GPU, or of its GPU instance, at one time (s)."""

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
    **{62 + 2 * link: _links("rx", link) for link in range(LINK_SLOTS)},
    **{63 + 2 * link: _links("tx", link) for link in range(LINK_SLOTS)},
}
"""Metric id to its value from the counters' mean rates; ids not listed are refused."""


def _alloc(nvml: Any) -> Any:
    address = nvml.next_address(SAMPLES)
    nvml.samples[address] = None
    return pointer_to(address, pynvml.c_nvmlGpmSample_t)


def _address(nvml: Any, sample: Any) -> int:
    address = address_of(sample)
    return address if address in nvml.samples else refuse(driver.INVALID_ARGUMENT)


def _free(nvml: Any, sample: Any) -> None:
    del nvml.samples[_address(nvml, sample)]


def _get(nvml: Any, gpu: SimulatedGpu, sample: Any) -> Any:
    now = nvml.machine.now
    taken = GpmCounters((gpu.index, WHOLE), now, gpu.meter.copy(now))
    nvml.samples[_address(nvml, sample)] = taken
    return sample


def _get_of_instance(nvml: Any, gpu: SimulatedGpu, number: int, sample: Any) -> Any:
    """An instance with a process works as the whole GPU would; another rests."""
    found = next((one for one in instances(gpu) if one.profile.number == number), None)
    if found is None:
        refuse(driver.INVALID_ARGUMENT)
    now = nvml.machine.now
    totals = gpu.meter.copy(now) if found.processes else {}
    nvml.samples[_address(nvml, sample)] = GpmCounters((gpu.index, number), now, totals)
    return sample


def _metrics(nvml: Any, question: Any) -> Any:
    if question.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
        refuse(driver.VERSION_MISMATCH)
    older, newer = (nvml.samples[_address(nvml, s)] for s in (question.sample1, question.sample2))
    if older is None or newer is None or older.of != newer.of or newer.at < older.at:
        refuse(driver.INVALID_ARGUMENT)
    rates = _rates(older, newer)
    for slot in question.metrics[: question.numMetrics]:
        metric = METRICS.get(slot.metricId)
        if metric is None:
            slot.nvmlReturn, slot.value = driver.NOT_SUPPORTED, 0.0
        else:
            slot.nvmlReturn, slot.value = driver.ANSWERED, metric(rates)
    return nvml.guard.answer("nvmlGpmMetricsGet", older.of[0], question)


def _rates(older: GpmCounters, newer: GpmCounters) -> Shares:
    """Mean rates per second; not a number where no time has passed, none where an instance had no
    process at one of both."""
    seconds = newer.at - older.at
    if not seconds:
        return dict.fromkeys(newer.totals, math.nan)
    before = older.totals
    if not before:
        return {}
    return {name: (total - before.get(name, 0.0)) / seconds for name, total in newer.totals.items()}


CALLS: dict[str, Call] = {
    "nvmlGpmQueryDeviceSupport": Call(
        lambda _, g: pynvml.c_nvmlGpmSupport_t(pynvml.NVML_GPM_SUPPORT_VERSION, int(g.model.gpm)),
        since=(520,),
    ),
    "nvmlGpmSampleAlloc": Call(_alloc, since=(520,), of_gpu=False),
    "nvmlGpmSampleFree": Call(_free, since=(520,), of_gpu=False),
    "nvmlGpmSampleGet": Call(_get, lambda q: q.model.gpm and not q.mig, (520,)),
    "nvmlGpmMigSampleGet": Call(_get_of_instance, lambda q: q.model.gpm and q.mig, (520,)),
    "nvmlGpmMetricsGet": Call(_metrics, since=(520,), of_gpu=False),
}
