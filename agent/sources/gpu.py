"""GPU identity, utilization of the GPU and its video engines, and the requested recovery action."""

from collections.abc import Iterator

from agent.metrics import declared_beside
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
INFO = _METRICS["dgx_gpu_info"]
UTILIZATION = _METRICS["dgx_gpu_utilization_ratio"]
MEMORY_UTILIZATION = _METRICS["dgx_gpu_memory_utilization_ratio"]


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the reads of a GPU's identity, utilization, and recovery action."""
    device, state = gpu_context.device, gpu_context.state
    who, awake = device.identity, False

    def info(out: ReadOutput) -> None:
        out.add(INFO, 1, who.model, who.architecture, who.pci_bus_id, who.serial, who.vbios_version)

    def utilization(out: ReadOutput) -> None:
        """Read utilization. When it changes to or from 0, request some other reads immediately."""
        nonlocal awake
        rates = device.get("UtilizationRates")
        out.add(UTILIZATION, rates.gpu / 100)
        out.add(MEMORY_UTILIZATION, rates.memory / 100)
        state.woken |= awake != (rates.gpu > 0)
        awake = rates.gpu > 0

    both = (UTILIZATION, MEMORY_UTILIZATION)
    yield gpu_context.read("gpu", "info", (INFO,), info, intervals.LINKS)
    yield gpu_context.read("gpu", "utilization", both, utilization, intervals.TICK)
    yield from gpu_context.declared("gpu", _METRICS)
