"""Simulates field IDs (`nvmlDeviceGetFieldValues`) and GPM. nvml.toml contains the field IDs that
the agent queries, with their values. Other IDs are not supported. A GPM sample is a copy of the
counters. A GPM metric is a rate between two samples.
"""

import math
import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pynvml

from agent.simulator import driver
from agent.simulator.driver import NVML, FieldRow, address_of, pointer_to, refuse
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu
from agent.simulator.mig import instances

MOMENT = 150e-6  # s between two answers to one field ID
ENTRY = struct.Struct("<IIqqIIQ")  # `nvmlFieldValue_t`; setting pynvml fields is slow

FIELDS = {field: row for row in NVML.fields for field in row.ids}


def field_code(field: int, scope: int, gpu: SimulatedGpu) -> int:
    """Return the NVML return code for a field ID and scope. If a link is down, its own fields and
    the fields for the sum of all links are not supported."""
    row = FIELDS.get(field)
    if row is None or gpu.driver.numbers < row.since or not gpu.supports(row.of):
        return driver.NOT_SUPPORTED
    if not (row.per_link or row.summed) or (row.summed and scope == driver.ALL_ONES):
        return driver.ANSWERED
    code = gpu.link_code(scope)
    down = not code and row.summed and not gpu.active(gpu.links[scope])
    return driver.NOT_SUPPORTED if down else code


def _value(row: FieldRow, gpu: SimulatedGpu, scope: int, now: float) -> float:
    if row.counts:
        links = gpu.links if scope == driver.ALL_ONES else [gpu.links[scope]]
        counter = f"wire_{row.counts}" if row.wire else row.counts
        names = [f"{counter}{link.number}" for link in links]
        return sum(gpu.meter.read_all(names, now)) / row.unit
    if row.hotter is not None:
        return round(gpu.celsius(now)) + row.hotter
    if row.wraps:
        return gpu.meter.read(row.total, now) * PCIE_OVERHEAD % 2**32
    if row.total:
        return gpu.meter.read(row.total, now)
    return float(attrgetter(row.gives)(gpu)) if row.gives else 0


def _values(nvml: Any, gpu: SimulatedGpu, questions: Sequence[Any]) -> Any:
    entries = []
    for place, one in enumerate(questions):
        at = nvml.machine.now - MOMENT * questions[place + 1 :].count(one)
        field, scope = one if isinstance(one, tuple | list) else (one, 0)
        code = field_code(field, scope, gpu)
        if code:
            entries.append(ENTRY.pack(field, scope, 0, 0, 0, code, 0))
            continue
        number, micros = _value(FIELDS[field], gpu, scope, at), nvml.machine.micros(at)
        entries.append(ENTRY.pack(field, scope, micros, 0, FIELDS[field].kind, code, int(number)))
    return (pynvml.c_nvmlFieldValue_t * len(entries)).from_buffer_copy(b"".join(entries))


SAMPLES = 0x5000_0000  # Address before the first sample


class GpmCounters(NamedTuple):
    """A GPM sample: the counters of a GPU or GPU instance at time `at` (s)."""

    of: tuple[int, ...]  # GPU index, and GPU instance ID if it is not the whole GPU
    at: float
    totals: dict[str, float]


def _alloc(nvml: Any) -> Any:
    address = SAMPLES + next(nvml.addresses)
    nvml.samples[address] = None
    return pointer_to(address, pynvml.c_nvmlGpmSample_t)


def _address(nvml: Any, sample: Any) -> int:
    address = address_of(sample)
    return address if address in nvml.samples else refuse(driver.INVALID_ARGUMENT)


def _free(nvml: Any, sample: Any) -> None:
    del nvml.samples[_address(nvml, sample)]


def _get(nvml: Any, gpu: SimulatedGpu, *asked: Any) -> Any:
    """Take a GPM sample of a GPU. With two arguments, the first is a GPU instance to sample
    instead. An instance is as active as the whole GPU, or idle if it has no process."""
    *numbers, sample = asked
    of = {one.profile.number: one for one in instances(gpu)}
    if not of.keys() >= set(numbers):
        refuse(driver.INVALID_ARGUMENT)
    idle = any(not of[number].processes for number in numbers)
    now, place = nvml.machine.now, (gpu.index, *numbers)
    totals = {} if idle else gpu.meter.copy(now)
    nvml.samples[_address(nvml, sample)] = GpmCounters(place, now, totals)
    return sample


def _metrics(nvml: Any, question: Any) -> Any:
    if question.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
        refuse(driver.VERSION_MISMATCH)
    older, newer = (nvml.samples[_address(nvml, s)] for s in (question.sample1, question.sample2))
    if older is None or newer is None or older.of != newer.of or newer.at < older.at:
        refuse(driver.INVALID_ARGUMENT)
    rates = _rates(older, newer)
    for slot in question.metrics[: question.numMetrics]:
        slot.nvmlReturn, slot.value = driver.NOT_SUPPORTED, 0.0
        if row := NVML.gpm.get(str(slot.metricId)):
            links = range(driver.MOST_LINKS) if row.summed else ("",)
            total = sum(rates.get(f"{row.counts}{link}", 0.0) for link in links)
            factor = PCIE_OVERHEAD if row.pcie else row.factor
            slot.nvmlReturn, slot.value = driver.ANSWERED, total * factor / row.unit
    return question


def _rates(older: GpmCounters, newer: GpmCounters) -> dict[str, float]:
    """Return the mean rates per second between two samples. If no time has passed, the rates are
    NaN. If a GPU instance had no process in the older sample, the result is empty."""
    seconds = newer.at - older.at
    if not seconds:
        return dict.fromkeys(newer.totals, math.nan)
    before = older.totals
    if not before:
        return {}
    return {name: (total - before.get(name, 0.0)) / seconds for name, total in newer.totals.items()}


ANSWERS: dict[str, Callable[..., Any]] = {
    "FieldValues": _values,
    "nvmlGpmQueryDeviceSupport": lambda _, g: pynvml.c_nvmlGpmSupport_t(
        pynvml.NVML_GPM_SUPPORT_VERSION, int(g.model.gpm)
    ),
    "nvmlGpmSampleAlloc": _alloc,
    "nvmlGpmSampleFree": _free,
    "nvmlGpmSampleGet": _get,
    "nvmlGpmMigSampleGet": _get,
    "nvmlGpmMetricsGet": _metrics,
}
