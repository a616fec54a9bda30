"""/sys of the simulated host: DMI, disks, NICs, InfiniBand."""

import errno
import os
import re
from collections.abc import Callable

from agent.simulator.machine import Machine
from agent.simulator.system_models import (
    ArrayModel,
    DiskModel,
    HcaModel,
    NicModel,
    SystemModel,
    address,
)
from agent.simulator.traffic import WORD

Tree = dict[str, Callable[[], str]]

PCI = "/sys/bus/pci/devices"
MELLANOX = "0x15b3"
SECTOR = 512
ETHERNET, LOOPBACK = "1", "772"
HCA_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)


def _text(value: object) -> Callable[[], str]:
    return lambda: f"{value}\n"


def _below(folder: str, files: dict[str, str | int]) -> Tree:
    return {f"{folder}/{name}": _text(value) for name, value in files.items()}


def tree(machine: Machine) -> Tree:
    """Path to content."""
    system = machine.system
    dmi = {"product_name": system.product, "sys_vendor": system.vendor}
    files = _below("/sys/class/dmi/id", {**dmi})
    for disk in system.disks:
        files |= _disk(disk)
    for array in system.arrays:
        files |= _array(machine, array)
    for nic in system.nics:
        files |= _nic(machine, nic)
    for hca in system.hcas:
        files |= _hca(machine, hca)
    for port in _ports(system).values():
        folder = f"{PCI}/{port}"
        files |= _below(folder, {"max_link_speed": "8.0 GT/s PCIe", "current_link_width": 16})
    return files | _loopback()


def _ports(system: SystemModel) -> dict[int, str]:
    """The upstream port of the PCIe switch above each GPU, by the GPU's bus."""
    number = system.per_pcie_switch
    groups = [system.buses[n : n + number] for n in range(0, system.gpus, number)] if number else []
    return {bus: f"0000:{min(group) - 2:02x}:00.0" for group in groups for bus in group}


def links(machine: Machine) -> dict[str, str]:
    """Symbolic links: the members of arrays, GPUs in the tree of PCI devices."""
    return _gpus(machine.system) | {
        f"/sys/block/{array.name}/slaves/{disk.name}": f"../../../{disk.name}"
        for array in machine.system.arrays
        for disk in array.members
    }


def _gpus(system: SystemModel) -> dict[str, str]:
    """Each GPU below its root port, and below both ports of a switch where there is one."""
    ports = _ports(system)
    found = {}
    for bus in system.buses:
        gpu = address(bus)
        switch = f"/{ports[bus]}/0000:{bus - 1:02x}:08.0" if bus in ports else ""
        found[f"{PCI}/{gpu}"] = f"../../../devices/pci0000:00/0000:00:02.0{switch}/{gpu}"
    return found


def device_number(name: str) -> str:
    """Major and minor number of a disk or array, as the kernel gives them in order."""
    digits = re.findall(r"\d+", name)
    if name.startswith("sd"):
        return f"8:{16 * (ord(name[2]) - ord('a'))}"
    return f"{9 if name.startswith('md') else 259}:{digits[0]}"


def _disk(disk: DiskModel) -> Tree:
    return _below(
        f"/sys/block/{disk.name}",
        {
            "dev": device_number(disk.name),
            "size": disk.size // SECTOR,
            "device/model": disk.model,
            "queue/rotational": 0,
        },
    )


def _array(machine: Machine, array: ArrayModel) -> Tree:
    """A stripe has no `degraded`: it cannot lose a member and live."""
    health = machine.host_health
    first = next((a for a in machine.system.arrays if not a.striped), None)

    def degraded() -> str:
        return f"{health.lost_members if array is first else 0}\n"

    redundancy: Tree = {} if array.striped else {f"/sys/block/{array.name}/md/degraded": degraded}
    return redundancy | _below(
        f"/sys/block/{array.name}",
        {
            "dev": device_number(array.name),
            "size": array.size // SECTOR,
            "queue/rotational": 0,
            "md/level": array.level,
            "md/raid_disks": len(array.members),
            "md/array_state": "clean",
        },
    )


def _nic(machine: Machine, nic: NicModel) -> Tree:
    folder = f"/sys/class/net/{nic.name}"
    return {
        **_below(folder, {"type": ETHERNET, "mtu": 1500, "device/vendor": MELLANOX}),
        f"{folder}/operstate": lambda: "up\n" if machine.traffic.speed(nic) else "down\n",
        f"{folder}/carrier": lambda: "1\n" if machine.traffic.speed(nic) else "0\n",
        f"{folder}/speed": lambda: f"{machine.traffic.speed(nic) or -1}\n",
    }


def _loopback() -> Tree:
    folder = "/sys/class/net/lo"
    fixed = _below(folder, {"type": LOOPBACK, "mtu": 65536, "operstate": "unknown", "carrier": 1})
    return {**fixed, f"{folder}/speed": _no_speed}


def _no_speed() -> str:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "/sys/class/net/lo/speed")


def _hca(machine: Machine, hca: HcaModel) -> Tree:
    port = f"/sys/class/infiniband/{hca.name}/ports/1"
    facts: dict[str, str | int] = {
        "link_layer": "InfiniBand",
        "lid": 10,
    }
    errors = {f"counters/{name}": 0 for name in HCA_ERRORS}
    flows = {
        "port_xmit_data": ("xmit", WORD),
        "port_rcv_data": ("rcv", WORD),
        "port_xmit_wait": ("wait", 1),
        "port_xmit_packets": ("xmit", 4096),
        "port_rcv_packets": ("rcv", 4096),
    }
    counters = {
        f"{port}/counters/{name}": _count(machine, f"{flow}:{hca.name}", unit)
        for name, (flow, unit) in flows.items()
    }
    traffic = machine.traffic
    alive: Tree = {
        f"{port}/rate": lambda: f"{traffic.rate(hca)}\n",
        f"{port}/state": lambda: "1: DOWN\n" if traffic.is_down(hca) else "4: ACTIVE\n",
        f"{port}/phys_state": lambda: "2: Polling\n" if traffic.is_down(hca) else "5: LinkUp\n",
    }
    for name in ("symbol_error", "link_downed"):
        counters[f"{port}/counters/{name}"] = _count(machine, f"{name}:{hca.name}", 1)
    return {**_below(port, {**facts, **errors}), **counters, **alive}


def _count(machine: Machine, name: str, unit: int) -> Callable[[], str]:
    return lambda: f"{int(machine.traffic.read(name, machine.now) / unit)}\n"
