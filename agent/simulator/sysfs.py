"""/sys of the simulated host: DMI, disks, NICs, InfiniBand, and what reports their health."""

import errno
import os
import re
from collections.abc import Callable, Mapping

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

Content = str | int | Callable[[], str | int]
"""Content of a file, without the end of its last line; or its writer."""

Tree = dict[str, Content]

PCI = "/sys/bus/pci/devices"
MELLANOX = "0x15b3"
SECTOR = 512
ETHERNET, LOOPBACK = "1", "772"
HCA_ERRORS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
    *("port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors"),
    *("port_rcv_constraint_errors", "port_xmit_discards", "port_xmit_constraint_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"),
)
SERVICE = "1200"  # The pid of the Fabric Manager


def _below(folder: str, files: Mapping[str, Content]) -> Tree:
    return {f"{folder}/{name}": content for name, content in files.items()}


def tree(machine: Machine) -> Tree:
    """Path to content."""
    system, host = machine.system, machine.host_health
    files = _below(
        "/sys/class/dmi/id", {"product_name": system.product, "sys_vendor": system.vendor}
    )
    for disk in system.disks:
        files |= _disk(machine, disk)
    for array in system.arrays:
        files |= _array(machine, array)
    for nic in system.nics:
        files |= _nic(machine, nic)
    for hca in system.hcas:
        files |= _hca(machine, hca)
    for port in _ports(system).values():
        slot: Tree = {"max_link_speed": "8.0 GT/s PCIe", "current_link_width": 16}
        files |= _below(f"{PCI}/{port}", slot)
    for number in range(system.nvswitches):
        place = f"/proc/driver/nvidia-nvswitch/devices/0000:{0x86 + number:02x}:00.0"
        files[f"{place}/information"] = "Driver Version: "
    sensors: Tree = {
        "name": "pmbus",
        "fan1_fault": lambda: int(host.fan_failed),
        "fan1_label": "Fan 1",
        "in1_alarm": lambda: int(host.supply_failed),
        "in1_label": "PSU 1",
    }
    files |= _below("/sys/class/hwmon/hwmon7", sensors if system.chassis else {})
    loopback: Tree = {"type": LOOPBACK, "mtu": 65536, "operstate": "unknown", "carrier": 1}
    return files | _below("/sys/class/net/lo", {**loopback, "speed": _no_speed})


def unlisted(machine: Machine) -> Tree:
    """Return the files that are read by path alone: processes of the Fabric Manager and of the
    kernel."""
    if not machine.system.nvswitches:
        return {}

    def running() -> str:
        if not machine.host_health.fabric_service:
            raise FileNotFoundError(2, "No such process")
        return "nv-fabricmanage"

    return {
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": SERVICE,
        f"/proc/{SERVICE}/comm": running,
        f"/proc/{SERVICE}/status": lambda: f"Name:\t{running()}\nUid:\t0\t0\t0\t0",
        "/proc/2/comm": "kthreadd",
        "/proc/2/status": "Name:\tkthreadd\nUid:\t0\t0\t0\t0",
    }


def _ports(system: SystemModel) -> dict[int, str]:
    """The upstream port of the PCIe switch above each GPU, by the GPU's bus."""
    number = system.per_pcie_switch
    groups = [system.buses[n : n + number] for n in range(0, system.gpus, number)] if number else []
    return {bus: f"0000:{min(group) - 2:02x}:00.0" for group in groups for bus in group}


def links(machine: Machine) -> dict[str, str]:
    """Symbolic links: the members of arrays, GPUs in the tree of PCI devices: below their root
    port, and below both ports of a switch where there is one."""
    ports = _ports(machine.system)
    found = {
        f"/sys/block/{array.name}/slaves/{disk.name}": f"../../../{disk.name}"
        for array in machine.system.arrays
        for disk in array.members
    }
    for bus in machine.system.buses:
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


def _disk(machine: Machine, disk: DiskModel) -> Tree:
    host, nvme = machine.host_health, disk.name.startswith("nvme")
    alive, dead = ("live", "dead") if nvme else ("running", "offline")
    files: Tree = {
        "dev": device_number(disk.name),
        "size": disk.size // SECTOR,
        "device/model": disk.model,
        "queue/rotational": 0,
        "device/state": lambda: dead if disk.name in host.dead_disks else alive,
    }
    if nvme:
        files["device/hwmon3/temp1_alarm"] = lambda: int(disk.name in host.hot_disks)
    errors = f"/sys/fs/ext4/{disk.name}/errors_count"
    return {
        **_below(f"/sys/block/{disk.name}", files),
        errors: lambda: int(disk.name in host.damaged),
    }


def _array(machine: Machine, array: ArrayModel) -> Tree:
    """A stripe has no `degraded`: it cannot lose a member and live."""
    health = machine.host_health
    first = next((a for a in machine.system.arrays if not a.striped), None)
    files: Tree = {
        "dev": device_number(array.name),
        "size": array.size // SECTOR,
        "queue/rotational": 0,
        "md/level": array.level,
        "md/raid_disks": len(array.members),
        "md/array_state": "clean",
    }
    if not array.striped:
        files["md/degraded"] = lambda: health.lost_members if array is first else 0
    return _below(f"/sys/block/{array.name}", files)


def _nic(machine: Machine, nic: NicModel) -> Tree:
    speed = machine.traffic.speed
    files: Tree = {
        "type": ETHERNET,
        "mtu": 1500,
        "device/vendor": MELLANOX,
        "operstate": lambda: "up" if speed(nic) else "down",
        "carrier": lambda: int(bool(speed(nic))),
        "speed": lambda: speed(nic) or -1,
    }
    return _below(f"/sys/class/net/{nic.name}", files)


def _no_speed() -> str:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "/sys/class/net/lo/speed")


def _hca(machine: Machine, hca: HcaModel) -> Tree:
    traffic = machine.traffic
    flows = {
        "port_xmit_data": ("xmit", WORD),
        "port_rcv_data": ("rcv", WORD),
        "port_xmit_wait": ("wait", 1),
        "port_xmit_packets": ("xmit", 4096),
        "port_rcv_packets": ("rcv", 4096),
        "symbol_error": ("symbol_error", 1),
        "link_downed": ("link_downed", 1),
    }

    def count(flow: str, unit: int) -> Callable[[], int]:
        return lambda: int(traffic.read(f"{flow}:{hca.name}", machine.now) / unit)

    files: Tree = {
        "link_layer": "InfiniBand",
        "lid": 10,
        **{f"counters/{name}": 0 for name in HCA_ERRORS},
        **{f"counters/{name}": count(*flow) for name, flow in flows.items()},
        "rate": lambda: traffic.rate(hca),
        "state": lambda: "1: DOWN" if traffic.is_down(hca) else "4: ACTIVE",
        "phys_state": lambda: "2: Polling" if traffic.is_down(hca) else "5: LinkUp",
    }
    return _below(f"/sys/class/infiniband/{hca.name}/ports/1", files)
