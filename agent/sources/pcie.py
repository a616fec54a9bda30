"""PCIe: traffic, link generation, link width, replays, and the switches above a GPU."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.files import FileTree, read_int, read_text
from agent.hardware.gpm import PCIE_UNIT, Gpm, GpmId
from agent.metrics import declared_beside
from agent.model import FINAL, Absent, Reason, checked
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.reads import Read, ReadOutput
from agent.ranges import FASTEST_PCIE, Range
from agent.sources.context import GpuContext
from agent.specs.sheets import pcie_bytes_per_second

_METRICS = declared_beside(__file__)
TRANSMITTED = _METRICS["dgx_pcie_transmitted_bytes_total"]
RECEIVED = _METRICS["dgx_pcie_received_bytes_total"]
GENERATION = _METRICS["dgx_pcie_generation"]
GENERATION_LIMIT = _METRICS["dgx_pcie_generation_limit"]
WIDTH = _METRICS["dgx_pcie_width"]
WIDTH_LIMIT = _METRICS["dgx_pcie_width_limit"]
MOMENT = (
    _METRICS["dgx_pcie_transmitted_moment_bytes_per_second"],
    _METRICS["dgx_pcie_received_moment_bytes_per_second"],
)
UPLINK = _METRICS["dgx_pcie_uplink_bytes_per_second"]

BEYOND_DOUBT = 1.3
"""A traffic rate above the link rate times this factor is a driver error. Drivers 560 to 565
returned rates that were 1000 times too high."""

WAYS = {TRANSMITTED: GpmId.PCIE_TRANSMITTED, RECEIVED: GpmId.PCIE_RECEIVED}
DEVICES = "/sys/bus/pci/devices"
SPEEDS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""PCIe generation by link speed in GT/s, as written by the kernel."""


def _from_gpm(gpm: Gpm, out: ReadOutput) -> None:
    if gpm.measurement() is None:
        out.pending = True
        return
    for metric, which in WAYS.items():
        out.ask(metric, lambda which=which: gpm.total(which) * PCIE_UNIT)  # type: ignore[misc]


class PcieFromCall:
    """Reads PCIe traffic with an NVML call that takes 20 ms per direction."""

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


FIELDS = 197, 198
"""Field IDs for bytes sent and received, which include protocol overhead."""

LEAST_COPIED = 1e8
"""Bytes per second below which copies take less than 2 % of the time and are not measured."""


def _moment(context: GpuContext, out: ReadOutput) -> None:
    """Add the rates of PCIe within a moment, which are those of a copy if one runs. Add nothing if
    GPM reports less than LEAST_COPIED, or that NVLink carries data: kernels that wait read host
    memory."""
    gpm = context.gpm
    if gpm is not None:
        values = gpm.latest.values if gpm.latest is not None else {}
        most = PCIE_UNIT * max(values.get(way, 0.0) for way in WAYS.values())
        if most < LEAST_COPIED or gpm.links_carry:
            return
    if context.state.has_processes:
        for metric, rate in zip(MOMENT, context.device.rates(FIELDS), strict=True):
            out.add(metric, rate)


def _fastest(device: NvmlDevice) -> float:
    try:
        generation = int(GENERATION_LIMIT.checked(device.get("MaxPcieLinkGeneration")))
        width = int(WIDTH_LIMIT.checked(device.get("MaxPcieLinkWidth")))
    except Absent:
        return FASTEST_PCIE
    limit = pcie_bytes_per_second(generation, width)
    return FASTEST_PCIE if limit is None else limit * BEYOND_DOUBT


def upstream_ports(path: str) -> list[str]:
    """Return the addresses of the upstream ports of the switches above a device, from its sysfs
    path.

    Below the root port, each switch has an upstream port and then a downstream port. For example,
    pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:08.0/0000:06:00.0 contains a single upstream port,
    0000:04:00.0.
    """
    chain = [part for part in path.split("/") if part.count(":") == 2 and "." in part]
    return chain[1:-2:2]


def _uplink(files: FileTree, port: str) -> float:
    """Return the capacity (bytes/s) of the link above a port. Raise Absent if it is unknown."""
    speed = read_text(files, f"{DEVICES}/{port}/max_link_speed").split(" ")[0]
    lanes = read_int(files, f"{DEVICES}/{port}/current_link_width")
    found = pcie_bytes_per_second(SPEEDS.get(speed, 0), lanes)
    if found is None:
        raise Absent(Reason.UNKNOWN, f"{DEVICES}/{port}/max_link_speed says {speed} GT/s")
    return found


def _switches(files: FileTree, device: str, out: ReadOutput) -> None:
    """Add the capacity of the uplink of each switch above a GPU. GPUs below a switch share its
    uplink, which may be saturated although their own links are not."""
    try:
        ports = upstream_ports(files.link(device))
    except OSError:
        return
    for port in ports:
        with suppress(Absent):
            if most := _uplink(files, port):
                out.add(UPLINK, most, port)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the PCIe reads of a GPU. If the GPU supports GPM, traffic is read from GPM."""
    if gpu_context.gpm is not None:
        run = partial(_from_gpm, gpu_context.gpm)
        yield gpu_context.read("pcie", "gpm", WAYS, run, gpu_context.gpm_interval, run_on_wake=True)
    else:
        every = max(intervals.TICK, gpu_context.gpus / intervals.PCIE_CALLS_PER_TICK)
        call = PcieFromCall(gpu_context.device, every)
        yield gpu_context.read("pcie", "call", WAYS, call.read, every)
    moment = partial(_moment, gpu_context)
    yield gpu_context.read("pcie", "moment", MOMENT, moment, gpu_context.gpm_interval)
    yield from gpu_context.declared("pcie", _METRICS)
    address = gpu_context.device.identity.pci_bus_id.lower()[-12:]  # NVML's address is longer
    switches = partial(_switches, gpu_context.host.files, f"{DEVICES}/{address}")
    yield gpu_context.read("pcie", "switches", (UPLINK,), switches, intervals.TOPOLOGY)
