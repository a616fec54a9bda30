"""NVLink-C2C: the links between a GPU and the CPU on its module (Grace)."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.model import LINK_LABELS, PERMANENT, Absent, GpuMetric, Reason, event_counter, gauge
from agent.polling import intervals
from agent.polling.reads import GpuRow, GpuRows, Read, ReadOutput
from agent.ranges import FLAG, Range
from agent.sources.context import GpuContext

_FIELD = "nvmlDeviceGetFieldValues {}, scope link"

LINKS = GpuMetric.gauge(
    "dgx_gpu_c2c_links",
    "Links between the GPU and the CPU on its module that are up.",
    _FIELD.format("170 and 171"),
    possible=Range(0, 64),
)
LINK_UP = gauge(
    "dgx_gpu_c2c_link_up",
    "1 while the link to the CPU is active, 0 while it is not.",
    _FIELD.format(171),
    LINK_LABELS,
    FLAG,
)
LINK_SPEED = gauge(
    "dgx_gpu_c2c_link_speed_bytes_per_second",
    "Capacity of one link to the CPU in each direction, in bytes per second.",
    _FIELD.format("172 (MB/s)"),
    LINK_LABELS,
    Range(0, 1e13),
)
ERRORS = event_counter(
    "dgx_gpu_c2c_errors_total",
    "Errors of a link to the CPU, by kind: interrupt, replay, and replay_back_to_back, which is a "
    "replay that had to be replayed.",
    _FIELD.format("231-233 (driver 570 and newer)"),
    (*LINK_LABELS, "kind"),
)

ALL = (LINKS, LINK_UP, LINK_SPEED, ERRORS)
KINDS = {
    "interrupt": FieldId.C2C_INTERRUPTS,
    "replay": FieldId.C2C_REPLAYS,
    "replay_back_to_back": FieldId.C2C_REPLAYS_AGAIN,
}
MB = 1e6
NO_C2C = Absent(Reason.MISSING, "this GPU has no C2C link to a CPU")


def _links(device: NvmlDevice) -> range:
    try:
        links = int(LINKS.checked(device.field(FieldId.C2C_LINKS)))
    except Absent as absent:
        if absent.reason in PERMANENT and absent.reason is not Reason.DRIVER:
            raise NO_C2C.without_traceback() from absent
        raise
    if not links:
        raise NO_C2C.without_traceback()
    return range(links)


def _read(device: NvmlDevice, out: ReadOutput) -> None:
    links = _links(device)
    states = device.fields([(FieldId.C2C_STATUS, link) for link in links])
    for link, state in zip(links, states, strict=True):
        out.add(LINK_UP, state, str(link))
    unknown = all(isinstance(state, Absent) for state in states)
    out.add(LINKS, NO_C2C.without_traceback() if unknown else sum(one == 1 for one in states))
    speeds = (GpuRow(LINK_SPEED, (FieldId.C2C_SPEED, n), (str(n),), times=MB) for n in links)
    errors = (
        GpuRow(ERRORS, (field, n), (str(n), kind)) for n in links for kind, field in KINDS.items()
    )
    GpuRows(device, (*speeds, *errors)).read(out)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    run = partial(_read, gpu_context.device)
    yield gpu_context.read("nvlink", "c2c", ALL, run, intervals.LINKS)
