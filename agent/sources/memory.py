"""Device memory: how much there is, how much is used."""

from collections.abc import Iterator

from agent.hardware.device import NvmlDevice
from agent.model import FINAL, GPU_LABELS, Absent, Reason, gauge, internal
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, ValueRow
from agent.ranges import BYTES, Range
from agent.sources.gpu_context import GpuContext
from agent.specs.machine import MachineSpecs

USED = gauge(
    "dgx_gpu_memory_used_bytes",
    "Device memory in use, in bytes, without what the driver reserves for itself (drivers before "
    "510 count that in).",
    "nvmlDeviceGetMemoryInfo version 2, else version 1",
    GPU_LABELS,
    BYTES,
)
TOTAL = gauge(
    "dgx_gpu_memory_total_bytes",
    "Device memory of the GPU in bytes.",
    "nvmlDeviceGetMemoryInfo",
    GPU_LABELS,
    BYTES,
)
FREE = internal(
    "dgx_gpu_memory_free_bytes",
    "Device memory that programs can still take, in bytes.",
    "nvmlDeviceGetMemoryInfo",
    GPU_LABELS,
    BYTES,
)
RESERVED = internal(
    "dgx_gpu_memory_reserved_bytes",
    "Device memory that the driver keeps for itself, in bytes.",
    "nvmlDeviceGetMemoryInfo version 2 (driver 510 and newer)",
    GPU_LABELS,
    BYTES,
)

BUS_WIDTH = internal(
    "dgx_gpu_memory_bus_width",
    "Width of the memory interface in bits.",
    "nvmlDeviceGetMemoryBusWidth (driver 510 and newer)",
    GPU_LABELS,
    Range(1, 65_536),
)

ARRIVAL = 64 << 20
"""A change of so many bytes between two ticks is a process that came or went."""


SHARED = Absent(Reason.UNSUPPORTED, "the driver shows none: this GPU shares the memory of its host")


class MemoryUse:
    """Memory each tick; a process that comes or goes wakes the slower reads."""

    def __init__(self, gpu_context: GpuContext) -> None:
        self._device = device = gpu_context.device
        self._state = gpu_context.state
        self._configuration = gpu_context.configuration
        self._options = {"version": device.nvml.library.nvmlMemory_v2}
        self._before: int | None = None
        try:
            device.get("MemoryInfo", **self._options)
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            self._options = {}

    def read(self, out: ReadOutput) -> None:
        try:
            info = self._device.get("MemoryInfo", **self._options)
        except Absent as absent:
            raise self._why(absent) from absent
        out.add(USED, info.used)
        out.add(TOTAL, info.total)
        out.add(FREE, info.free)
        if self._options:
            out.add(RESERVED, info.reserved)
        if self._before is not None and abs(info.used - self._before) >= ARRIVAL:
            self._state.wake()
        self._before = info.used

    def _why(self, absent: Absent) -> Absent:
        """A GPU that is known to have no memory of its own refuses for that reason."""
        sheet = self._configuration.current[MachineSpecs].specs.gpu(self._device.identity.model)
        shared = sheet is not None and sheet.integrated
        refused = absent.reason is Reason.UNSUPPORTED
        return SHARED.without_traceback() if shared and refused else absent


BUS = (ValueRow[NvmlDevice](BUS_WIDTH, lambda d: d.number("MemoryBusWidth")),)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of one GPU."""
    memory = MemoryUse(gpu_context)
    yield gpu_context.table("memory", "bus", BUS, intervals.TOPOLOGY)
    metrics = (USED, TOTAL, FREE, RESERVED)
    yield gpu_context.read("memory", "use", metrics, memory.read, intervals.TICK)
