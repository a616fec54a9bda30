"""PCIe: traffic, the link's generation and width, replays."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.gpm import FASTEST_PCIE, PCIE_UNIT, Gpm, GpmId
from agent.model import FINAL, Absent, GpuMetric, checked
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import Range
from agent.sources.context import GpuContext
from agent.specs.sheets import pcie_bytes_per_second

_BYTES = (
    "Bytes {} by the GPU over PCIe since the agent started, protocol overhead included (5-7 % of "
    "large copies). Integrated from rates, because the GPU's own byte counters have 32 bits and "
    "wrap in 78 ms at full speed: GPM means if GPM is available, else one 20 ms window per read."
)
_ORIGIN = "GPM metrics 20 and 21, else nvmlDeviceGetPcieThroughput"

TRANSMITTED = GpuMetric.counter(
    "dgx_pcie_transmitted_bytes_total", _BYTES.format("sent"), _ORIGIN, fastest=FASTEST_PCIE
)
RECEIVED = GpuMetric.counter(
    "dgx_pcie_received_bytes_total", _BYTES.format("received"), _ORIGIN, fastest=FASTEST_PCIE
)
GENERATION = GpuMetric.gauge(
    "dgx_pcie_generation",
    "PCIe generation of the link now; GPUs before Hopper let it fall when they idle.",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    possible=Range(1, 15),
)
GENERATION_LIMIT = GpuMetric.gauge(
    "dgx_pcie_generation_limit",
    "Highest PCIe generation of GPU and slot together.",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    possible=Range(1, 15),
)
WIDTH = GpuMetric.gauge(
    "dgx_pcie_width", "PCIe lanes in use.", "nvmlDeviceGetCurrPcieLinkWidth", possible=Range(1, 32)
)
WIDTH_LIMIT = GpuMetric.gauge(
    "dgx_pcie_width_limit",
    "Most PCIe lanes of GPU and slot together.",
    "nvmlDeviceGetMaxPcieLinkWidth",
    possible=Range(1, 32),
)
REPLAYS = GpuMetric.events(
    "dgx_pcie_replays_total",
    "PCIe packets that had to be sent again since the GPU's last reset.",
    "nvmlDeviceGetPcieReplayCounter",
)

BEYOND_DOUBT = 1.3
"""A rate above the link's by this factor is the driver's mistake (drivers 560-565 multiplied by
1000), not traffic."""

WAYS = {TRANSMITTED: GpmId.PCIE_TRANSMITTED, RECEIVED: GpmId.PCIE_RECEIVED}
TABLES = {
    ("link", intervals.PCIE_LINK): (
        GpuRow(GENERATION, "CurrPcieLinkGeneration"),
        GpuRow(WIDTH, "CurrPcieLinkWidth"),
    ),
    ("limits", intervals.TOPOLOGY): (
        GpuRow(GENERATION_LIMIT, "MaxPcieLinkGeneration"),
        GpuRow(WIDTH_LIMIT, "MaxPcieLinkWidth"),
    ),
    ("replays", intervals.LINKS): (GpuRow(REPLAYS, "PcieReplayCounter"),),
}


def _from_gpm(gpm: Gpm, out: ReadOutput) -> None:
    if gpm.measurement() is None:
        out.pending = True
        return
    for metric, which in WAYS.items():
        out.ask(metric, lambda which=which: gpm.total(which) * PCIE_UNIT)  # type: ignore[misc]


class PcieFromCall:
    """The blocking call of 20 ms a direction: GPUs take turns, two a tick."""

    def __init__(self, device: NvmlDevice, every: float) -> None:
        self._device = device
        self._integrals = {metric: Integral(metric, 3 * every) for metric in WAYS}
        self._possible: Range | None = None

    def read(self, out: ReadOutput) -> None:
        self._possible = self._possible or Range(0, _fastest(self._device))
        for direction, (metric, integral) in enumerate(self._integrals.items()):
            try:
                rate = self._device.number("PcieThroughput", direction) * 1e3
                checked(rate, self._possible, "nvmlDeviceGetPcieThroughput (B/s)")
                out.add(metric, integral.add(rate, out.at))
            except Absent as absent:
                if absent.reason in FINAL:
                    raise
                out.absent(metric, absent)


def _fastest(device: NvmlDevice) -> float:
    try:
        generation = int(GENERATION_LIMIT.checked(device.get("MaxPcieLinkGeneration")))
        width = int(WIDTH_LIMIT.checked(device.get("MaxPcieLinkWidth")))
    except Absent:
        return FASTEST_PCIE
    limit = pcie_bytes_per_second(generation, width)
    return FASTEST_PCIE if limit is None else limit * BEYOND_DOUBT


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    if gpu_context.gpm is not None:
        run = partial(_from_gpm, gpu_context.gpm)
        yield gpu_context.read("pcie", "gpm", WAYS, run, gpu_context.gpm_interval, run_on_wake=True)
    else:
        every = max(intervals.TICK, gpu_context.gpus / intervals.PCIE_CALLS_PER_TICK)
        call = PcieFromCall(gpu_context.device, every)
        yield gpu_context.read("pcie", "call", WAYS, call.read, every)
    for (part, interval), rows in TABLES.items():
        yield gpu_context.rows("pcie", part, interval, *rows)
