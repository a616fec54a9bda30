"""NVLink 5 (Blackwell): how well each link carries bits."""

from collections.abc import Iterator

from agent.hardware.fields import FieldId
from agent.model import LINK_LABELS, PERMANENT, Absent, Reason, event_counter, gauge
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.ranges import RATIO
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

RATIOS = {"effective": FieldId.NVLINK5_EFFECTIVE_BER, "symbol": FieldId.NVLINK5_SYMBOL_BER}
ALL = (EFFECTIVE_ERRORS, BIT_ERRORS)

EXPONENT, MANTISSA = 0xFF, 0xF
"""Bits of a bit error rate as the driver packs it, the exponent lowest (nvml.h, NVLink BER)."""


def ratio(packed: float) -> float:
    """A packed bit error rate as a number; one that is not packed so is beyond any ratio."""
    whole = int(packed)
    if whole >> 12:
        return packed
    return float((whole >> 8) & MANTISSA) * 10.0 ** -(whole & EXPONENT)


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


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    quality = LinkQuality(gpu_context)
    yield gpu_context.read("nvlink", "quality", ALL, quality.read, quality.interval)
