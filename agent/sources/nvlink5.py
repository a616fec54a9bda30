"""NVLink 5 (Blackwell): how well each link carries bits; NVLink-C2C (Grace): the links between a
GPU and the CPU on its module."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.model import LINK_LABELS, PERMANENT, Absent, GpuMetric, Reason, event_counter, gauge
from agent.polling import intervals
from agent.polling.reads import GpuRow, GpuRows, Read, ReadOutput
from agent.ranges import FLAG, RATIO, Range
from agent.sources.context import GpuContext, NvlinkConfig

_COUNT = "nvmlDeviceGetFieldValues {}, scope link (Blackwell and newer, driver 560 and newer)"

EFFECTIVE_ERRORS = event_counter(
    "dgx_nvlink_effective_errors_total",
    "Errors that forward error correction could not correct; the data is sent again, which costs "
    "time and loses nothing. A link that has many is about to fail.",
    _COUNT.format(219),
    LINK_LABELS,
)
BIT_ERRORS = gauge(
    "dgx_nvlink_bit_error_ratio",
    "Bit errors of one NVLink over the bits that it carried: effective, after forward error "
    "correction; symbol, after retransmission too.",
    _COUNT.format("220 and 222"),
    (*LINK_LABELS, "kind"),
    RATIO,
)
_FIELD = "nvmlDeviceGetFieldValues {}, scope link"

C2C_LINKS = GpuMetric.gauge(
    "dgx_gpu_c2c_links",
    "Links between the GPU and the CPU on its module that are up.",
    _FIELD.format("170 and 171"),
    possible=Range(0, 64),
)
C2C_LINK_UP = gauge(
    "dgx_gpu_c2c_link_up",
    "1 while the link to the CPU is active, 0 while it is not.",
    _FIELD.format(171),
    LINK_LABELS,
    FLAG,
)
C2C_LINK_SPEED = gauge(
    "dgx_gpu_c2c_link_speed_bytes_per_second",
    "Capacity of one link to the CPU in each direction, in bytes per second.",
    _FIELD.format("172 (MB/s)"),
    LINK_LABELS,
    Range(0, 1e13),
)
C2C_ERRORS = event_counter(
    "dgx_gpu_c2c_errors_total",
    "Errors of a link to the CPU, by kind: interrupt, replay, and replay_back_to_back, which is a "
    "replay that had to be replayed.",
    _FIELD.format("231-233 (driver 570 and newer)"),
    (*LINK_LABELS, "kind"),
)

RATIOS = {"effective": FieldId.NVLINK5_EFFECTIVE_BER, "symbol": FieldId.NVLINK5_SYMBOL_BER}
KINDS = {
    "interrupt": FieldId.C2C_INTERRUPTS,
    "replay": FieldId.C2C_REPLAYS,
    "replay_back_to_back": FieldId.C2C_REPLAYS_AGAIN,
}
NO_C2C = Absent(Reason.MISSING, "this GPU has no C2C link to a CPU")


def ratio(packed: float) -> float:
    """A packed bit error rate as a number (nvml.h, NVLink BER: eight bits of exponent, then four of
    mantissa); one that is not packed so is beyond any ratio."""
    whole = int(packed)
    return packed if whole >> 12 else float(whole >> 8) * 10.0 ** -(whole & 0xFF)


class LinkQuality:
    """Counters and bit error ratios of all links of one GPU."""

    def __init__(self, gpu_context: GpuContext) -> None:
        self._gpu = gpu_context
        self._refused = False

    def interval(self) -> float:
        return intervals.TOPOLOGY if self._refused else intervals.LINKS

    def read(self, out: ReadOutput) -> None:
        device = self._gpu.device
        if not self._gpu.configuration.current[NvlinkConfig].per_link:
            raise Absent(Reason.NOT_CONFIGURED, "nvlink.per_link is false")
        links = device.links()
        counts = device.fields([(FieldId.NVLINK5_EFFECTIVE_ERRORS, link) for link in links])
        refusals = [one for one in counts if isinstance(one, Absent) and one.reason in PERMANENT]
        self._refused = len(refusals) == len(links)
        if self._refused:
            raise refusals[0]
        for link, count in zip(links, counts, strict=True):
            out.add(EFFECTIVE_ERRORS, count, str(link))
        for kind, field in RATIOS.items():
            answers = device.fields([(field, link) for link in links])
            for link, answer in zip(links, answers, strict=True):
                known = answer if isinstance(answer, Absent) else ratio(answer)
                out.add(BIT_ERRORS, known, str(link), kind)


def _links(device: NvmlDevice) -> range:
    try:
        links = int(C2C_LINKS.checked(device.field(FieldId.C2C_LINKS)))
    except Absent as absent:
        if absent.reason in PERMANENT and absent.reason is not Reason.DRIVER:
            raise NO_C2C.without_traceback() from absent
        raise
    if not links:
        raise NO_C2C.without_traceback()
    return range(links)


def _c2c(device: NvmlDevice, out: ReadOutput) -> None:
    links = _links(device)
    states = device.fields([(FieldId.C2C_STATUS, link) for link in links])
    for link, state in zip(links, states, strict=True):
        out.add(C2C_LINK_UP, state, str(link))
    unknown = all(isinstance(state, Absent) for state in states)
    out.add(C2C_LINKS, NO_C2C.without_traceback() if unknown else sum(one == 1 for one in states))
    speeds = (GpuRow(C2C_LINK_SPEED, (FieldId.C2C_SPEED, n), (str(n),), times=1e6) for n in links)
    kinds = KINDS.items()
    errors = (GpuRow(C2C_ERRORS, (f, n), (str(n), kind)) for n in links for kind, f in kinds)
    GpuRows(device, (*speeds, *errors)).read(out)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    found, ratios = LinkQuality(gpu_context), (EFFECTIVE_ERRORS, BIT_ERRORS)
    yield gpu_context.read("nvlink", "quality", ratios, found.read, found.interval)
    run, metrics = partial(_c2c, gpu_context.device), (C2C_LINKS, C2C_LINK_UP, C2C_LINK_SPEED)
    yield gpu_context.read("nvlink", "c2c", (*metrics, C2C_ERRORS), run, intervals.LINKS)
