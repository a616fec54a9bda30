"""Identity of a GPU, NVML's utilization, also of its video engines, and the recovery
action that the driver asks for."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.hardware.nvml import number
from agent.model import GPU_LABELS, GpuMetric, InDefault, Metric, gauge
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import FLAG, Range
from agent.sources.context import GpuContext

INFO = gauge(
    "dgx_gpu_info",
    "1 for each GPU, with its identity in the labels.",
    "nvmlDeviceGetName, GetArchitecture, GetPciInfo, GetSerial, GetVbiosVersion",
    (*GPU_LABELS, "model", "architecture", "pci_bus_id", "serial", "vbios_version"),
    FLAG,
)
UTILIZATION = GpuMetric.ratio(
    "dgx_gpu_utilization_ratio",
    "NVML's utilization, 0-1: the share of its last sample period in which a kernel or a copy ran. "
    "It reads 1 for bare copies and for kernels that only spin: prefer dgx_gpu_activity_ratio.",
    "nvmlDeviceGetUtilizationRates().gpu",
)
MEMORY_UTILIZATION = GpuMetric.ratio(
    "dgx_gpu_memory_utilization_ratio",
    "Share of NVML's last sample period, 0-1, in which device memory was read or written. It "
    "measures time, not bandwidth; GPUs before Hopper report nothing else of their memory.",
    "nvmlDeviceGetUtilizationRates().memory",
    shown=InDefault.FULL,
)
PERSISTENCE_MODE = GpuMetric.flag(
    "dgx_gpu_persistence_mode",
    "1 if the driver keeps the GPU initialised while it is unused.",
    "nvmlDeviceGetPersistenceMode",
    shown=InDefault.FULL,
)
RECOVERY_ACTION = GpuMetric.gauge(
    "dgx_gpu_recovery_action",
    "Action that the driver requests: 0 none, 1 reset the GPU, 2 reboot, 3 drain peer-to-peer "
    "traffic, "
    "4 drain and reset, 5 restart IMEX, 6 reset the bus, 7 reboot the node (driver 610 and newer).",
    "nvmlDeviceGetFieldValues 230 (driver 570 and newer)",
    possible=Range(0, 0x7FFFFFFF),
    step=0,
)

ENGINES: dict[Metric, str] = {
    GpuMetric.ratio(
        f"dgx_gpu_{name}_utilization_ratio",
        f"Share of time, 0-1, in which the {engine} worked, over the driver's last sampling "
        "period (1/6 to 1 s).",
        f"nvmlDeviceGet{call}Utilization",
        shown=InDefault.GROWN,
    ): call
    for name, call, engine in (
        ("decoder", "Decoder", "video decoder (NVDEC)"),
        ("encoder", "Encoder", "video encoder (NVENC)"),
    )
}
"""Video engines, which work beside the multiprocessors, and NVML's names of them."""

DECODER, ENCODER = ENGINES


def _engine(device: NvmlDevice, engine: str) -> float:
    percent, _period = device.get(f"{engine}Utilization")
    return number(percent, f"nvmlDeviceGet{engine}Utilization") / 100


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of a GPU."""
    device, state = gpu_context.device, gpu_context.state
    who, awake = device.identity, False

    def info(out: ReadOutput) -> None:
        out.add(INFO, 1, who.model, who.architecture, who.pci_bus_id, who.serial, who.vbios_version)

    def utilization(out: ReadOutput) -> None:
        """At a change from or to 0 the slower reads run at once."""
        nonlocal awake
        rates = device.get("UtilizationRates")
        out.add(UTILIZATION, rates.gpu / 100)
        out.add(MEMORY_UTILIZATION, rates.memory / 100)
        state.woken |= awake != (rates.gpu > 0)
        awake = rates.gpu > 0

    both = (UTILIZATION, MEMORY_UTILIZATION)
    yield gpu_context.read("gpu", "info", (INFO,), info, intervals.LINKS)
    yield gpu_context.read("gpu", "utilization", both, utilization, intervals.TICK)
    yield gpu_context.rows(
        "gpu",
        "state",
        intervals.LINKS,
        GpuRow(PERSISTENCE_MODE, "PersistenceMode"),
        GpuRow(RECOVERY_ACTION, FieldId.RECOVERY_ACTION),
    )
    engines = (GpuRow(metric, partial(_engine, engine=call)) for metric, call in ENGINES.items())
    yield gpu_context.rows("media", "engines", intervals.MEDIA, *engines)
