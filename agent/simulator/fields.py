"""`nvmlDeviceGetFieldValues`: one table of what each id answers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pynvml

from agent.simulator import refusals
from agent.simulator.call_guard import NvmlPart, device_call
from agent.simulator.gpu import PCIE_OVERHEAD, SimulatedGpu
from agent.simulator.gpu_models import C2cModel
from agent.simulator.refusals import ALL_LINKS
from agent.simulator.telemetry import ecc_errors

UINT, ULL, SINT = 1, 3, 5
"""`nvmlValueType_t` in use."""

MEMBERS = {UINT: "uiVal", ULL: "ullVal", SINT: "siVal"}
KIB = 1024.0
WRAP = 1 << 32
HBM_WARMER = 3  # degrees Celsius
LINK_VERSIONS = {7: 5, 9: 7, 10: 8}  # by architecture
LATENCY = 3  # us
CPU = 135.0  # W of a Grace and its memory: nvidia-smi of a GB200, module less both GPUs
HEALTHY_BER = 0x010F
"""A bit error rate of 1e-15: exponent in the lowest byte, mantissa above it."""


class FieldContext(NamedTuple):
    """What an answer is made of: the GPU, its link if one is meant, the machine's time (s)."""

    gpu: SimulatedGpu
    scope: int
    now: float

    def total(self, name: str) -> float:
        return self.gpu.meter.read(name, self.now)

    def over_links(self, name: str) -> float:
        """A counter of one link, or summed over all."""
        links = self.gpu.links if self.scope == ALL_LINKS else [self.gpu.links[self.scope]]
        return sum(self.total(f"{name}{link.number}") for link in links)

    @property
    def of_module(self) -> bool:
        """Whether the module with its CPU is meant, not the GPU."""
        return self.scope == refusals.MODULE


class FieldAnswer(NamedTuple):
    """Type and value of one field."""

    kind: int
    value: Callable[[FieldContext], float]


def _const(kind: int, value: float) -> FieldAnswer:
    return FieldAnswer(kind, lambda _: value)


def _ecc(severity: int, lifetime: int) -> FieldAnswer:
    return FieldAnswer(ULL, lambda c: ecc_errors(c.gpu, c.now, severity, lifetime))


def _link_error(name: str, link: int | None) -> FieldAnswer:
    """An error counter of the old ids: of one link, or of all where `link` is None."""
    if link is None:
        return FieldAnswer(
            ULL, lambda c: sum(c.total(f"{name}{each.number}") for each in c.gpu.links)
        )
    return FieldAnswer(ULL, lambda c: c.total(f"{name}{link}"))


def _old_link_errors() -> dict[int, FieldAnswer]:
    """Ids 32-59 for links 0-5 with a total each, 96-119 for links 6-11."""
    table: dict[int, FieldAnswer] = {}
    for place, name in enumerate(("crc", "crc_data", "replay", "recovery")):
        first = 32 + 7 * place
        table |= {first + link: _link_error(name, link) for link in range(6)}
        table[first + 6] = _link_error(name, None)
        table |= {96 + 6 * place + link: _link_error(name, 6 + link) for link in range(6)}
    return table


def _speed(link: int) -> FieldAnswer:
    """MB/s of one link, 0 for one that is down."""
    return FieldAnswer(UINT, lambda c: _reported(c.gpu) * _is_up(c.gpu, link))


def _reported(gpu: SimulatedGpu) -> int:
    return gpu.model.links.reported if gpu.model.links else 0


def _is_up(gpu: SimulatedGpu, link: int) -> bool:
    return link < len(gpu.links) and gpu.active(gpu.links[link])


def _limit(c: FieldContext) -> float:
    module = c.gpu.model.module_limit if c.of_module else None
    return (module or c.gpu.model.power_limit) * 1000


def _drawn(c: FieldContext, watts: float) -> float:
    """Milliwatts: a module has two GPUs that work alike, a CPU and its memory."""
    return (2 * watts + CPU if c.of_module else watts) * 1000


def _moved(name: str) -> FieldAnswer:
    return FieldAnswer(ULL, lambda c: int(c.over_links(name)))


def _c2c(c: FieldContext) -> C2cModel:
    return c.gpu.model.c2c or C2cModel(0, 0)


def _below(part: str) -> FieldAnswer:
    """A threshold as its distance from the highest operating temperature."""

    def distance(c: FieldContext) -> float:
        known = c.gpu.model.thresholds
        return float((known.gpu_max or known.slowdown) - getattr(known, part))

    return FieldAnswer(SINT, distance)


def _remote_link(c: FieldContext) -> float:
    link = c.gpu.links[c.scope]
    return link.number if link.peer_link is None else link.peer_link


def _switch_links(c: FieldContext) -> float:
    return sum(link.peer is None for link in c.gpu.links)


ANSWERS: dict[int, FieldAnswer] = {
    # ECC errors and retired pages
    1: _const(ULL, 1),
    2: _const(ULL, 1),
    3: _ecc(0, 0),
    4: _ecc(1, 0),
    5: _ecc(0, 1),
    6: _ecc(1, 1),
    **{i: _const(ULL, 0) for i in (29, 30, 31)},
    **_old_link_errors(),
    # Times of low clocks, by reason; memory temperature, energy
    **{i: _const(ULL, 0) for i in (74, 76, 77, 79)},
    75: FieldAnswer(ULL, lambda c: c.total("thermal")),
    78: FieldAnswer(ULL, lambda c: c.total("low")),
    80: FieldAnswer(ULL, lambda c: c.total("thermal")),
    81: FieldAnswer(ULL, lambda c: c.total("thermal")),
    82: FieldAnswer(UINT, lambda c: round(c.gpu.celsius(c.now)) + HBM_WARMER),
    83: FieldAnswer(ULL, lambda c: c.total("energy") * 1000),
    # NVLink: speeds, number; PCIe replays
    **{84 + link: _speed(link) for link in range(6)},
    90: _speed(0),
    91: FieldAnswer(UINT, lambda c: len(c.gpu.links)),
    94: FieldAnswer(UINT, lambda c: c.total("pcie_replays")),
    95: _const(UINT, 0),
    **{132 + link: _speed(6 + link) for link in range(6)},
    # NVLink: bytes of data and on the wire
    138: FieldAnswer(ULL, lambda c: c.over_links("tx") / KIB),
    139: FieldAnswer(ULL, lambda c: c.over_links("rx") / KIB),
    140: FieldAnswer(ULL, lambda c: c.over_links("tx") * c.gpu.wire_per_payload / KIB),
    141: FieldAnswer(ULL, lambda c: c.over_links("rx") * c.gpu.wire_per_payload / KIB),
    # Remapped rows; ends, errors and states of NVLinks
    142: _const(ULL, 0),
    143: FieldAnswer(ULL, lambda c: c.gpu.remap_failed + c.gpu.health.rows),
    144: _const(ULL, 0),
    145: FieldAnswer(ULL, lambda c: c.gpu.remap_failed),
    146: FieldAnswer(UINT, _remote_link),
    147: FieldAnswer(UINT, _switch_links),
    161: FieldAnswer(ULL, lambda c: c.over_links("replay")),
    162: FieldAnswer(ULL, lambda c: c.over_links("recovery")),
    163: FieldAnswer(ULL, lambda c: c.over_links("crc")),
    164: FieldAnswer(UINT, lambda c: _reported(c.gpu)),
    165: FieldAnswer(UINT, lambda c: c.gpu.active(c.gpu.links[c.scope])),
    166: FieldAnswer(UINT, lambda c: LINK_VERSIONS[c.gpu.model.architecture]),
    # NVLink to the CPU; 173-182 are PCIe errors by kind (PCIE_COUNT_...)
    **{i: _const(UINT, 0) for i in (169, *range(173, 183))},
    170: FieldAnswer(UINT, lambda c: _c2c(c).number),
    171: _const(UINT, 1),
    172: FieldAnswer(UINT, lambda c: _c2c(c).reported),
    # Power and its limits, energy, thresholds of temperature, bytes of PCIe
    185: FieldAnswer(UINT, lambda c: _drawn(c, c.gpu.buffers.usage(c.now))),
    186: FieldAnswer(UINT, lambda c: _drawn(c, c.gpu.buffers.watts(c.now))),
    187: FieldAnswer(UINT, lambda c: _limit(c) / 3.5),
    188: FieldAnswer(UINT, _limit),
    189: FieldAnswer(UINT, _limit),
    190: FieldAnswer(UINT, _limit),
    191: FieldAnswer(ULL, lambda c: c.total("energy") * 1000),
    192: FieldAnswer(UINT, _limit),
    193: _below("shutdown"),
    194: _below("slowdown"),
    195: _const(SINT, 0),
    196: _below("gpu_max"),
    197: FieldAnswer(UINT, lambda c: c.total("pcie_tx") * PCIE_OVERHEAD % WRAP),
    198: FieldAnswer(UINT, lambda c: c.total("pcie_rx") * PCIE_OVERHEAD % WRAP),
    # NVLink 5
    202: _moved("tx"),
    204: _moved("rx"),
    **{i: _const(ULL, 0) for i in (*range(206, 213), 214, 221)},
    213: FieldAnswer(ULL, lambda c: c.over_links("recovery")),
    215: FieldAnswer(ULL, lambda c: c.over_links("recovery")),
    219: FieldAnswer(ULL, lambda c: c.over_links("replay")),
    220: _const(ULL, HEALTHY_BER),
    222: _const(ULL, HEALTHY_BER),
    # Recovery action; errors of the links to the CPU; times of low clocks again
    230: FieldAnswer(UINT, lambda c: c.gpu.health.recovery),
    **{i: _const(ULL, 0) for i in (231, 232, 233)},
    234: _const(UINT, 0),
    251: _const(ULL, 0),
    252: FieldAnswer(ULL, lambda c: c.total("thermal")),
    253: _const(ULL, 0),
    269: _const(ULL, 0),
    270: FieldAnswer(ULL, lambda c: c.total("thermal")),
    271: _const(ULL, 0),
    301: _const(ULL, 0),
    302: _const(ULL, 0),
    **{i: _const(UINT, 0) for i in (303, 304, 307)},
}

DOWN_SILENT = refusals.FIFTH | {138, 139, 140, 141, 164}
"""Fields that a link which is down refuses."""


class SimulatedFields(NvmlPart):
    """Many questions in one call; each entry has its own return code."""

    @device_call
    def nvmlDeviceGetFieldValues(self, gpu: SimulatedGpu, fields: Sequence[Any]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for entry, asked in zip(values, fields, strict=True):
            field, scope = asked if isinstance(asked, tuple | list) else (asked, 0)
            entry.fieldId, entry.scopeId = field, scope
            entry.nvmlReturn = self._code(gpu, field, scope)
            if not entry.nvmlReturn:
                self._fill(entry, FieldContext(gpu, scope, self.machine.now))
        return values

    def _code(self, gpu: SimulatedGpu, field: int, scope: int) -> int:
        code = refusals.field_code(field, scope, self.guard.asked(gpu))
        if code or field not in DOWN_SILENT or scope == ALL_LINKS:
            return code
        return 0 if gpu.active(gpu.links[scope]) else refusals.NOT_SUPPORTED

    def _fill(self, entry: Any, context: FieldContext) -> None:
        answer = ANSWERS[entry.fieldId]
        entry.timestamp, entry.latencyUsec = self.machine.micros(context.now), LATENCY
        entry.valueType = answer.kind
        setattr(entry.value, MEMBERS[answer.kind], int(answer.value(context)))
