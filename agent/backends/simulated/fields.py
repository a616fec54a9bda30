"""`nvmlDeviceGetFieldValues`: one table of what each id answers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pynvml

from agent.backends.simulated import refusals
from agent.backends.simulated.gate import Facade, device_call
from agent.backends.simulated.gpu import PCIE_OVERHEAD, Gpu
from agent.backends.simulated.refusals import ALL_LINKS
from agent.backends.simulated.telemetry import ecc_errors

UINT, ULL, SINT = 1, 3, 5
"""`nvmlValueType_t` in use."""

MEMBERS = {UINT: "uiVal", ULL: "ullVal", SINT: "siVal"}
KIB = 1024.0
WRAP = 1 << 32
HBM_WARMER = 3  # degrees Celsius
LINK_VERSIONS = {7: 5, 9: 7}  # by architecture
LATENCY = 3  # us


class Context(NamedTuple):
    """What an answer is made of: the GPU, its link if one is meant, the world's time (s)."""

    gpu: Gpu
    scope: int
    now: float

    def total(self, name: str) -> float:
        return self.gpu.meter.read(name, self.now)

    def over_links(self, name: str) -> float:
        """A counter of one link, or summed over all."""
        links = self.gpu.links if self.scope == ALL_LINKS else [self.gpu.links[self.scope]]
        return sum(self.total(f"{name}{link.number}") for link in links)


class Answer(NamedTuple):
    """Type and value of one field."""

    kind: int
    value: Callable[[Context], float]


def _const(kind: int, value: float) -> Answer:
    return Answer(kind, lambda _: value)


def _ecc(severity: int, lifetime: int) -> Answer:
    return Answer(ULL, lambda c: ecc_errors(c.gpu, c.now, severity, lifetime))


def _link_error(name: str, link: int | None) -> Answer:
    """An error counter of the old ids: of one link, or of all where `link` is None."""
    if link is None:
        return Answer(ULL, lambda c: sum(c.total(f"{name}{each.number}") for each in c.gpu.links))
    return Answer(ULL, lambda c: c.total(f"{name}{link}"))


def _old_link_errors() -> dict[int, Answer]:
    """Ids 32-59 for links 0-5 with a total each, 96-119 for links 6-11."""
    table: dict[int, Answer] = {}
    for place, name in enumerate(("crc", "crc_data", "replay", "recovery")):
        first = 32 + 7 * place
        table |= {first + link: _link_error(name, link) for link in range(6)}
        table[first + 6] = _link_error(name, None)
        table |= {96 + 6 * place + link: _link_error(name, 6 + link) for link in range(6)}
    return table


def _speed(link: int) -> Answer:
    """MB/s of one link, 0 for one that is down."""
    return Answer(UINT, lambda c: _reported(c.gpu) * _is_up(c.gpu, link))


def _reported(gpu: Gpu) -> int:
    return gpu.model.links.reported if gpu.model.links else 0


def _is_up(gpu: Gpu, link: int) -> bool:
    return link < len(gpu.links) and gpu.active(gpu.links[link])


def _limit(c: Context) -> float:
    return c.gpu.model.power_limit * 1000


def _below(part: str) -> Answer:
    """A threshold as its distance from the highest operating temperature."""

    def distance(c: Context) -> float:
        known = c.gpu.model.thresholds
        return float((known.gpu_max or known.slowdown) - getattr(known, part))

    return Answer(SINT, distance)


def _remote_link(c: Context) -> float:
    link = c.gpu.links[c.scope]
    return link.number if link.peer_link is None else link.peer_link


def _switch_links(c: Context) -> float:
    return sum(link.peer is None for link in c.gpu.links)


ANSWERS: dict[int, Answer] = {
    1: _const(ULL, 1),
    2: _const(ULL, 1),
    3: _ecc(0, 0),
    4: _ecc(1, 0),
    5: _ecc(0, 1),
    6: _ecc(1, 1),
    **{i: _const(ULL, 0) for i in (29, 30, 31)},
    **_old_link_errors(),
    **{i: _const(ULL, 0) for i in (74, 76, 77, 79)},
    75: Answer(ULL, lambda c: c.total("thermal")),
    78: Answer(ULL, lambda c: c.total("low")),
    80: Answer(ULL, lambda c: c.total("thermal")),
    81: Answer(ULL, lambda c: c.total("thermal")),
    82: Answer(UINT, lambda c: round(c.gpu.celsius) + HBM_WARMER),
    83: Answer(ULL, lambda c: c.total("energy") * 1000),
    **{84 + link: _speed(link) for link in range(6)},
    90: _speed(0),
    91: Answer(UINT, lambda c: len(c.gpu.links)),
    94: Answer(UINT, lambda c: c.total("pcie_replays")),
    95: _const(UINT, 0),
    **{132 + link: _speed(6 + link) for link in range(6)},
    138: Answer(ULL, lambda c: c.over_links("tx") / KIB),
    139: Answer(ULL, lambda c: c.over_links("rx") / KIB),
    140: Answer(ULL, lambda c: c.over_links("tx") * c.gpu.wire_per_payload / KIB),
    141: Answer(ULL, lambda c: c.over_links("rx") * c.gpu.wire_per_payload / KIB),
    142: _const(ULL, 0),
    143: Answer(ULL, lambda c: c.gpu.remap_failed),
    144: _const(ULL, 0),
    145: Answer(ULL, lambda c: c.gpu.remap_failed),
    146: Answer(UINT, _remote_link),
    147: Answer(UINT, _switch_links),
    161: Answer(ULL, lambda c: c.over_links("replay")),
    162: Answer(ULL, lambda c: c.over_links("recovery")),
    163: Answer(ULL, lambda c: c.over_links("crc")),
    164: Answer(UINT, lambda c: _reported(c.gpu)),
    165: Answer(UINT, lambda c: c.gpu.active(c.gpu.links[c.scope])),
    166: Answer(UINT, lambda c: LINK_VERSIONS[c.gpu.model.architecture]),
    **{i: _const(UINT, 0) for i in (169, *range(173, 183))},
    185: Answer(UINT, lambda c: c.gpu.watts * 1000),
    186: Answer(UINT, lambda c: c.gpu.watts * 1000),
    187: Answer(UINT, lambda c: _limit(c) / 3.5),
    188: Answer(UINT, _limit),
    189: Answer(UINT, _limit),
    190: Answer(UINT, _limit),
    191: Answer(ULL, lambda c: c.total("energy") * 1000),
    192: Answer(UINT, _limit),
    193: _below("shutdown"),
    194: _below("slowdown"),
    195: _const(SINT, 0),
    196: _below("gpu_max"),
    197: Answer(UINT, lambda c: c.total("pcie_tx") * PCIE_OVERHEAD % WRAP),
    198: Answer(UINT, lambda c: c.total("pcie_rx") * PCIE_OVERHEAD % WRAP),
    230: _const(UINT, 0),
    251: _const(ULL, 0),
    252: Answer(ULL, lambda c: c.total("thermal")),
    253: _const(ULL, 0),
    269: _const(ULL, 0),
    270: Answer(ULL, lambda c: c.total("thermal")),
    271: _const(ULL, 0),
    301: _const(ULL, 0),
    302: _const(ULL, 0),
}

DOWN_SILENT = frozenset((138, 139, 140, 141, 164))
"""Fields that a link which is down refuses."""


class Fields(Facade):
    """Many questions in one call; each entry has its own return code."""

    @device_call
    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: Sequence[Any]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for entry, asked in zip(values, fields, strict=True):
            field, scope = asked if isinstance(asked, tuple | list) else (asked, 0)
            entry.fieldId, entry.scopeId = field, scope
            entry.nvmlReturn = self._code(gpu, field, scope)
            if not entry.nvmlReturn:
                self._fill(entry, Context(gpu, scope, self.world.now))
        return values

    def _code(self, gpu: Gpu, field: int, scope: int) -> int:
        code = refusals.field_code(field, scope, self.gate.asked(gpu))
        if code or field not in DOWN_SILENT or scope == ALL_LINKS:
            return code
        return 0 if gpu.active(gpu.links[scope]) else refusals.NOT_SUPPORTED

    def _fill(self, entry: Any, context: Context) -> None:
        answer = ANSWERS[entry.fieldId]
        entry.timestamp, entry.latencyUsec = self.world.micros(context.now), LATENCY
        entry.valueType = answer.kind
        setattr(entry.value, MEMBERS[answer.kind], int(answer.value(context)))
