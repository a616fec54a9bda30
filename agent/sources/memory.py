"""Device memory: how much there is, how much is used."""

from collections.abc import Iterator

from agent.model import Absent, GpuMetric, Reason
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import BYTES, Range
from agent.sources.context import GpuContext
from agent.specs.machine import MachineSpecs

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


SHARED = Absent(Reason.UNSUPPORTED, "the driver shows none: this GPU shares the memory of its host")


class MemoryUse:
    """Memory each tick; a process that comes or goes wakes the slower reads."""

    def __init__(self, gpu_context: GpuContext) -> None:
        self._gpu = gpu_context
        self._before: int | None = None

    def read(self, out: ReadOutput) -> None:
        device = self._gpu.device
        try:
            info = device.memory(device.handle)
        except Absent as absent:  # as a GPU refuses that is known to have no memory of its own
            sheet = self._gpu.configuration.current[MachineSpecs].specs.gpu(device.identity.model)
            if absent.reason is Reason.UNSUPPORTED and sheet is not None and sheet.integrated:
                raise SHARED.without_traceback() from absent
            raise
        out.add(USED, info.used)
        out.add(TOTAL, info.total)
        out.add(FREE, info.free)
        if hasattr(info, "reserved"):
            out.add(RESERVED, info.reserved)
        if self._before is not None and abs(info.used - self._before) >= ARRIVAL:
            self._gpu.state.woken = True
        self._before = info.used


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    metrics, memory = (USED, TOTAL, FREE, RESERVED), MemoryUse(gpu_context)
    yield gpu_context.rows("memory", "bus", intervals.TOPOLOGY, GpuRow(BUS_WIDTH, "MemoryBusWidth"))
    yield gpu_context.read("memory", "use", metrics, memory.read, intervals.TICK)
