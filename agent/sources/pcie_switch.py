"""PCIe switches above a GPU: GPUs behind one share its uplink to the host.

A DGX-1 has two GPUs behind each switch; each may be below its own slot's limit while the uplink
that both use is full.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from agent.hardware.files import FileTree, read_int, read_text
from agent.model import GPU_LABELS, Absent, Reason, internal
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput
from agent.ranges import Range
from agent.sources.context import GpuContext
from agent.specs.sheets import pcie_bytes_per_second

DEVICES = "/sys/bus/pci/devices"
GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""GT/s, as the kernel writes them, to the PCIe generation."""

UPLINK = internal(
    "dgx_pcie_uplink_bytes_per_second",
    "What the uplink of a PCIe switch above this GPU can carry in one direction, in bytes per "
    "second. The label device is the PCI address of the switch's upstream port; GPUs with the same "
    "share it.",
    f"max_link_speed and current_link_width below {DEVICES}",
    (*GPU_LABELS, "device"),
    Range(0, 1e13),
)


def upstream_ports(path: str) -> list[str]:
    """Upstream ports of the switches above a device, from its place in the tree of devices.

    Below the root port, ports of switches come in pairs, upstream and downstream:
    pci0000:00/0000:00:02.0/0000:04:00.0/0000:05:08.0/0000:06:00.0 has 0000:04:00.0 alone.
    """
    chain = [part for part in path.split("/") if part.count(":") == 2 and "." in part]
    return chain[1:-2:2]


def address_of(bus_id: str) -> str:
    return bus_id.lower()[-12:]


def limit(files: FileTree, port: str) -> float:
    """Bytes per second that the link above a port can carry; raises Absent."""
    speed = read_text(files, f"{DEVICES}/{port}/max_link_speed").split(" ")[0]
    lanes = read_int(files, f"{DEVICES}/{port}/current_link_width")
    found = pcie_bytes_per_second(GENERATIONS.get(speed, 0), lanes)
    if found is None:
        raise Absent(Reason.UNKNOWN, f"{DEVICES}/{port}/max_link_speed says {speed} GT/s")
    return found


def _read(files: FileTree, device: str, out: ReadOutput) -> None:
    """The switches above one GPU; nothing where none is, or where no one may look."""
    try:
        ports = upstream_ports(files.link(device))
    except OSError:
        return
    for port in ports:
        with suppress(Absent):
            if most := limit(files, port):
                out.add(UPLINK, most, port)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    device = f"{DEVICES}/{address_of(gpu_context.device.identity.pci_bus_id)}"
    run = partial(_read, gpu_context.host.files, device)
    yield gpu_context.read("pcie", "switches", (UPLINK,), run, intervals.TOPOLOGY)
