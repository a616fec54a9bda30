"""Device memory: how much there is, how much is used."""

from collections.abc import Iterator

from agent import beats
from agent.backends.device import Device
from agent.model import FINAL, GPU_LABELS, Absent, gauge, signal
from agent.probe import Probe
from agent.reads import Out, Read, Row

USED = gauge(
    "dgx_gpu_memory_used_bytes",
    "Device memory in use, in bytes, without what the driver reserves for itself (drivers before "
    "510 count that in).",
    "nvmlDeviceGetMemoryInfo version 2, else version 1",
    GPU_LABELS,
)
TOTAL = gauge(
    "dgx_gpu_memory_total_bytes",
    "Device memory of the GPU in bytes.",
    "nvmlDeviceGetMemoryInfo",
    GPU_LABELS,
)

BUS_WIDTH = signal(
    "dgx_gpu_memory_bus_width",
    "Width of the memory interface in bits.",
    "nvmlDeviceGetMemoryBusWidth (driver 510 and newer)",
    GPU_LABELS,
)

ARRIVAL = 64 << 20
"""A change of so many bytes between two ticks is a process that came or went."""


class Memory:
    """Memory each tick; a process that comes or goes wakes the slower reads."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._options = {"version": device.nvml.library.nvmlMemory_v2}
        self._before: int | None = None
        try:
            device.get("MemoryInfo", **self._options)
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            self._options = {}

    def read(self, out: Out) -> None:
        info = self._device.get("MemoryInfo", **self._options)
        out.add(USED, info.used)
        out.add(TOTAL, info.total)
        if self._before is not None and abs(info.used - self._before) >= ARRIVAL:
            self._device.woken = True
        self._before = info.used


BUS = (Row[Device](BUS_WIDTH, lambda d: d.get("MemoryBusWidth")),)


def reads(probe: Probe) -> Iterator[Read]:
    """The reads of one GPU."""
    memory = Memory(probe.device)
    yield probe.table("memory", "bus", BUS, beats.TOPOLOGY)
    yield probe.read("memory", "use", (USED, TOTAL), memory.read, beats.TICK)
