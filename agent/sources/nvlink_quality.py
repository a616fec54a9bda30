"""NVLink 5 (Blackwell): how well each link carries bits."""

from collections.abc import Callable, Iterator

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.model import Absent, Reason, event_counter, gauge
from agent.polling import intervals
from agent.polling.field_rows import FieldRow, FieldRows
from agent.polling.gpu_state import GpuState
from agent.polling.nvlinks import LINK_LABELS, NO_NVLINK, links_of
from agent.polling.reads import PERMANENT, Read, ReadOutput
from agent.ranges import RATIO
from agent.sources.gpu_context import GpuContext
from agent.sources.options import NvlinkConfig

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

    def __init__(self, gpu_context: GpuContext, links: tuple[int, ...]) -> None:
        self._gpu_context = gpu_context
        self._counters = FieldRows(
            gpu_context.device,
            [
                FieldRow((FieldId.NVLINK5_EFFECTIVE_ERRORS, link), EFFECTIVE_ERRORS, (str(link),))
                for link in links
            ],
        )
        self._ratios = [(link, kind, field) for link in links for kind, field in RATIOS.items()]

    def read(self, out: ReadOutput) -> None:
        if not self._gpu_context.configuration.current[NvlinkConfig].per_link:
            raise Absent(Reason.NOT_CONFIGURED, "nvlink.per_link is false")
        self._counters.read(out)
        questions = [(field, link) for link, _, field in self._ratios]
        answers = self._gpu_context.device.fields(questions)
        for (link, kind, _), answer in zip(self._ratios, answers, strict=True):
            known = answer if isinstance(answer, Absent) else ratio(answer)
            out.add(BIT_ERRORS, known, str(link), kind)


def _links(device: NvmlDevice, state: GpuState) -> tuple[int, ...]:
    """The links that have these counters. Raises Absent where none has."""
    links = links_of(device, state)
    questions = [(FieldId.NVLINK5_EFFECTIVE_ERRORS, link) for link in links]
    answers = device.fields(questions)
    refusals = [answer for answer in answers if isinstance(answer, Absent)]
    if not links:
        raise NO_NVLINK.without_traceback()
    if len(refusals) == len(links) and all(one.reason in PERMANENT for one in refusals):
        raise refusals[0]
    return links


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The read of one GPU."""

    def find() -> Callable[[ReadOutput], None]:
        return LinkQuality(gpu_context, _links(gpu_context.device, gpu_context.state)).read

    yield gpu_context.found("nvlink", "quality", ALL, find, intervals.LINKS)
