"""Total, used, free, and reserved GPU memory."""

from collections.abc import Iterator

from agent.metrics import declared_beside
from agent.model import Absent, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import GpuContext
from agent.specs.sheets import load

_METRICS = declared_beside(__file__)
USED = _METRICS["dgx_gpu_memory_used_bytes"]
TOTAL = _METRICS["dgx_gpu_memory_total_bytes"]
FREE = _METRICS["dgx_gpu_memory_free_bytes"]
RESERVED = _METRICS["dgx_gpu_memory_reserved_bytes"]
BUS_WIDTH = _METRICS["dgx_gpu_memory_bus_width"]


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the memory read of a GPU. It requests other reads if used memory changes a lot."""
    device, before = gpu_context.device, -1

    def use(out: ReadOutput) -> None:
        nonlocal before
        try:
            info = device.memory(device.handle)
        except Absent as absent:  # an integrated GPU has no memory of its own
            sheet = load().gpu(device.identity.model)
            if absent.reason is Reason.UNSUPPORTED and sheet is not None and sheet.integrated:
                why = "the driver shows none: this GPU shares the memory of its host"
                raise Absent(Reason.UNSUPPORTED, why) from absent
            raise
        for metric, value in ((USED, info.used), (TOTAL, info.total), (FREE, info.free)):
            out.add(metric, value)
        if hasattr(info, "reserved"):
            out.add(RESERVED, info.reserved)
        if before >= 0 and abs(info.used - before) >= 64 << 20:  # a process started or ended
            gpu_context.state.woken = True
        before = info.used

    metrics = (USED, TOTAL, FREE, RESERVED)
    yield from gpu_context.declared("memory", _METRICS)
    yield gpu_context.read("memory", "use", metrics, use, intervals.TICK)
