"""Device memory: how much there is, how much is used."""

from collections.abc import Iterator

from agent.model import Absent, GpuMetric, Reason
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import BYTES, Range
from agent.sources.context import GpuContext
from agent.specs.sheets import load

USED = GpuMetric.gauge(
    "dgx_gpu_memory_used_bytes",
    "Device memory in use, in bytes, without what the driver reserves for itself (drivers before "
    "510 include that).",
    "nvmlDeviceGetMemoryInfo version 2, else version 1",
    possible=BYTES,
)
TOTAL = GpuMetric.gauge(
    "dgx_gpu_memory_total_bytes",
    "Device memory of the GPU in bytes.",
    "nvmlDeviceGetMemoryInfo",
    possible=BYTES,
)
FREE = GpuMetric.internal(
    "dgx_gpu_memory_free_bytes",
    "Device memory that programs can still take, in bytes.",
    "nvmlDeviceGetMemoryInfo",
    possible=BYTES,
)
RESERVED = GpuMetric.internal(
    "dgx_gpu_memory_reserved_bytes",
    "Device memory that the driver keeps for itself, in bytes.",
    "nvmlDeviceGetMemoryInfo version 2 (driver 510 and newer)",
    possible=BYTES,
)
BUS_WIDTH = GpuMetric.internal(
    "dgx_gpu_memory_bus_width",
    "Width of the memory interface in bits.",
    "nvmlDeviceGetMemoryBusWidth (driver 510 and newer)",
    possible=Range(1, 65_536),
)

ARRIVAL = 64 << 20  # A change of so many bytes between two ticks is a process that came or went
UNIFIED = Absent(
    Reason.UNSUPPORTED, "the driver shows none: this GPU shares the memory of its host"
)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of a GPU; a process that comes or goes wakes the slower reads."""
    device, before = gpu_context.device, -1

    def use(out: ReadOutput) -> None:
        nonlocal before
        try:
            info = device.memory(device.handle)
        except Absent as absent:  # as a GPU refuses that is known to have no memory of its own
            sheet = load().gpu(device.identity.model)
            if absent.reason is Reason.UNSUPPORTED and sheet is not None and sheet.integrated:
                raise UNIFIED.without_traceback() from absent
            raise
        for metric, value in ((USED, info.used), (TOTAL, info.total), (FREE, info.free)):
            out.add(metric, value)
        if hasattr(info, "reserved"):
            out.add(RESERVED, info.reserved)
        if before >= 0 and abs(info.used - before) >= ARRIVAL:
            gpu_context.state.woken = True
        before = info.used

    metrics, bus = (USED, TOTAL, FREE, RESERVED), GpuRow(BUS_WIDTH, "MemoryBusWidth")
    yield gpu_context.rows("memory", "bus", intervals.TOPOLOGY, bus)
    yield gpu_context.read("memory", "use", metrics, use, intervals.TICK)
