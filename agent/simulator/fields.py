"""Counters by number: `nvmlDeviceGetFieldValues`, and GPM.

A table has the ids that the agent asks for, with their answers; any other id is not supported.
Samples of GPM are copies of the counters, its metrics are differences over time.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pynvml

from agent.simulator import driver
from agent.simulator.driver import (
    MOST_LINKS,
    Call,
    Driver,
    Question,
    address_of,
    pointer_to,
    refuse,
)
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu
from agent.simulator.mig import instances
from agent.simulator.models import AMPERE, BLACKWELL, PASCAL, VOLTA

UINT, ULL = 1, 3  # `nvmlValueType_t` in use, whose members of the union begin with the same bytes
ENTRY = struct.Struct("<IIqqIIQ")  # `nvmlFieldValue_t`, of which pynvml sets each field slowly

ALL_LINKS = 0xFFFFFFFF
KIB = 1024.0
HBM_WARMER = 3  # degrees Celsius


class FieldContext(NamedTuple):
    """Context of an answer: the GPU, its link if the question names one, the machine's time (s)."""

    gpu: SimulatedGpu
    scope: int
    now: float

    def over_links(self, name: str) -> float:
        links = self.gpu.links if self.scope == ALL_LINKS else [self.gpu.links[self.scope]]
        return sum(self.gpu.meter.read_all([f"{name}{link.number}" for link in links], self.now))

    def wire(self, name: str) -> float:
        return self.over_links(name) * self.gpu.wire_per_payload / KIB


Answers = Callable[[Question], bool]
Value = float | str | Callable[[FieldContext], float]
"""A figure, or how to get it; a text names a counter of the GPU."""


def _from(architecture: int) -> Answers:
    return lambda q: q.arch >= architecture


def _hbm(q: Question) -> bool:
    return q.arch >= VOLTA and q.model.bus_width >= 1024  # bits


def _link_errors(q: Question) -> bool:
    """Return whether links count these errors: up to the fourth generation (nvml.h at id 161)."""
    return q.linked and AMPERE <= q.arch < BLACKWELL


def _counts_wire(q: Question) -> bool:
    return q.counts_nvlink and q.arch >= VOLTA


_ROWS: tuple[tuple[Iterable[int], Driver, Answers, int, Value], ...] = (
    # ids, the first driver that knows them, the GPUs that answer them, their type, their value
    # times of low clocks by reason (ns), memory temperature
    ((74, 76, 77, 79), (450,), _from(PASCAL), ULL, 0),
    ((82,), (450,), _hbm, UINT, lambda c: round(c.gpu.celsius(c.now)) + HBM_WARMER),
    # NVLink: KiB of data and on the wire, errors
    ((138,), (450,), lambda q: q.counts_nvlink, ULL, lambda c: c.over_links("tx") / KIB),
    ((139,), (450,), lambda q: q.counts_nvlink, ULL, lambda c: c.over_links("rx") / KIB),
    ((140,), (450,), _counts_wire, ULL, lambda c: c.wire("tx")),
    ((141,), (450,), _counts_wire, ULL, lambda c: c.wire("rx")),
    ((161,), (520,), _link_errors, ULL, lambda c: c.over_links("replay")),
    ((162,), (520,), _link_errors, ULL, lambda c: c.over_links("recovery")),
    ((163,), (520,), _link_errors, ULL, lambda c: c.over_links("crc")),
    # NVLink 5
    ((202,), (560,), lambda q: q.linked_by_5, ULL, lambda c: int(c.over_links("tx"))),
    ((204,), (560,), lambda q: q.linked_by_5, ULL, lambda c: int(c.over_links("rx"))),
    ((*range(206, 213), 214, 221), (560,), lambda q: q.linked_by_5, ULL, 0),
    ((213,), (560,), lambda q: q.linked_by_5, ULL, lambda c: c.over_links("recovery")),
    # recovery action; times of low clocks under their newest ids
    ((230,), (570,), _from(PASCAL), UINT, lambda c: c.gpu.health.recovery),
    ((269, 271), (580, 82), _from(PASCAL), ULL, 0),
    ((270,), (580, 82), _from(PASCAL), ULL, "thermal"),
)
FIELDS = {field: row for row in _ROWS for field in row[0]}

SUMMED = frozenset({138, 139, 140, 141, *range(201, 223)})
"""Fields of a single link, or of all at once; a link that is down refuses them."""

PER_LINK = SUMMED | {161, 162, 163}


def field_code(field: int, scope: int, asked: Question) -> int:
    """The return code of an entry of `nvmlDeviceGetFieldValues`."""
    row = FIELDS.get(field)
    if row is None or asked.driver < row[1] or not row[2](asked):
        return driver.NOT_SUPPORTED
    if field in PER_LINK and not (field in SUMMED and scope == ALL_LINKS):
        return asked.link_code(scope)
    return driver.ANSWERED


def _values(nvml: Any, gpu: SimulatedGpu, questions: Sequence[Any]) -> Any:
    now, asked, entries = nvml.machine.now, nvml.asked(gpu), []
    micros = nvml.machine.micros(now)
    for one in questions:
        field, scope = one if isinstance(one, tuple | list) else (one, 0)
        code = field_code(field, scope, asked)
        if not code and field in SUMMED and scope != ALL_LINKS:
            code = driver.ANSWERED if gpu.active(gpu.links[scope]) else driver.NOT_SUPPORTED
        if code:
            entries.append(ENTRY.pack(field, scope, 0, 0, 0, code, 0))
            continue
        *_, kind, value = FIELDS[field]
        if callable(value):
            value = value(FieldContext(gpu, scope, now))
        number = gpu.meter.read(value, now) if isinstance(value, str) else value
        entries.append(ENTRY.pack(field, scope, micros, 0, kind, code, int(number)))
    return (pynvml.c_nvmlFieldValue_t * len(entries)).from_buffer_copy(b"".join(entries))


SAMPLES = 0x5000_0000  # Address below the first sample
PCIE_UNIT = 1_054_800.0  # bytes, as measured on H100s
NVLINK_UNIT = 1_024_000.0  # Documented as MiB, measured to be this many bytes of payload

Shares = dict[str, float]
WHOLE = -1


class GpmCounters(NamedTuple):
    """The counters of a GPU, or of its GPU instance, at a time (s)."""

    of: tuple[int, int]  # GPU, and its GPU instance or WHOLE
    at: float
    totals: Shares


def _share(name: str) -> Callable[[Shares], float]:
    return lambda rates: 100.0 * rates.get(name, 0.0)


def _pcie(name: str) -> Callable[[Shares], float]:
    return lambda rates: rates.get(name, 0.0) * PCIE_OVERHEAD / PCIE_UNIT


def _links(direction: str) -> Callable[[Shares], float]:
    names = [f"{direction}{link}" for link in range(MOST_LINKS)]
    return lambda rates: sum(rates.get(name, 0.0) for name in names) / NVLINK_UNIT


METRICS: dict[int, Callable[[Shares], float]] = {
    1: _share("activity"),
    2: _share("sm"),
    3: _share("occupancy"),
    5: _share("tensor"),
    10: _share("dram"),
    20: _pcie("pcie_tx"),
    21: _pcie("pcie_rx"),
    60: _links("rx"),
    61: _links("tx"),
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
    return question


def _rates(older: GpmCounters, newer: GpmCounters) -> Shares:
    """Mean rates per second; not a number if no time has passed, empty if an instance had no
    process at the older or the newer time."""
    seconds = newer.at - older.at
    if not seconds:
        return dict.fromkeys(newer.totals, math.nan)
    before = older.totals
    if not before:
        return {}
    return {name: (total - before.get(name, 0.0)) / seconds for name, total in newer.totals.items()}


CALLS: dict[str, Call] = {
    "nvmlDeviceGetFieldValues": Call(_values),
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
