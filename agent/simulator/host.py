"""Host of a simulated machine: /sys (/proc is in procfs.py), psutil, Slurm, and udisks2."""

import errno
import json
import os
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agent.hardware.files import FileTree
from agent.hardware.schedulers import Schedulers
from agent.simulator import procfs
from agent.simulator.jobs import LOGIN, USER
from agent.simulator.machine import Machine
from agent.simulator.models import ArrayModel, DiskModel, HcaModel, NicModel, SystemModel, address
from agent.simulator.traffic import WORD, HostHealth

SECTOR = 512
LOOPBACK = "lo"


SimulatedDiskCounters = namedtuple("SimulatedDiskCounters", "read_bytes write_bytes busy_time")
SimulatedNicCounters = namedtuple("SimulatedNicCounters", "bytes_sent bytes_recv")
SimulatedCpuTimes = namedtuple("SimulatedCpuTimes", "user system idle iowait")  # s, over all CPUs


class SimulatedPsutil:
    """The psutil functions that the agent uses, based on the machine's counters."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def disk_io_counters(self, perdisk: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        with self._machine.lock:
            self._machine.advance()
            system = self._machine.system
            disks = {disk.name: self._disk(disk) for disk in system.disks}
            return disks | {array.name: _together(array, disks) for array in system.arrays}

    def _disk(self, disk: DiskModel) -> SimulatedDiskCounters:
        read, write = self._read(f"read:{disk.name}"), self._read(f"write:{disk.name}")
        return SimulatedDiskCounters(
            read_bytes=int(read / SECTOR) * SECTOR,
            write_bytes=int(write / SECTOR) * SECTOR,
            busy_time=int(self._read(f"busy:{disk.name}") * 1000),
        )

    def net_io_counters(self, pernic: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        with self._machine.lock:
            self._machine.advance()
            found = {LOOPBACK: SimulatedNicCounters(0, 0)}
            for nic in self._machine.system.nics:
                sent, received = (int(self._read(f"{way}:{nic.name}")) for way in ("send", "recv"))
                found[nic.name] = SimulatedNicCounters(sent, received)
            return found

    def cpu_times(self) -> SimulatedCpuTimes:
        with self._machine.lock:
            self._machine.advance()
            names = SimulatedCpuTimes._fields
            return SimulatedCpuTimes(*(self._read(f"cpu:{name}") for name in names))

    def _read(self, name: str) -> float:
        return self._machine.traffic.read(name, self._machine.now)


def _together(
    array: ArrayModel, disks: Mapping[str, SimulatedDiskCounters]
) -> SimulatedDiskCounters:
    """Return the counters of an array, based on the counters of its members. A mirror writes all
    data to each member but counts the data once."""
    members = [disks[disk.name] for disk in array.members]
    total = SimulatedDiskCounters(*(sum(column) for column in zip(*members, strict=True)))
    one = members[0]
    busy = max(member.busy_time for member in members)
    if array.striped:
        return total._replace(busy_time=busy)
    return total._replace(busy_time=busy, write_bytes=one.write_bytes)


class SimulatedSlurm(Schedulers):
    """Slurm with a single job, which has the last GPU allocated and runs no processes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def slurm(self, host: str) -> list[str]:
        who = f"JobId=4711 UserId={LOGIN}({USER}) Account=vision Partition=gpu"
        return [f"{who} Nodes={host} GRES=gpu:1(IDX:{len(self._machine.gpus) - 1})"]


Content = str | int | Callable[[], str | int]
"""Content of a file without the final newline, or a function that returns the content."""

Tree = dict[str, Content]

PCI = "/sys/bus/pci/devices"
HCA_ERRORS = (
    *("link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
UDISKS = "org.freedesktop.UDisks2"
SERVICE = "1200"  # PID of the Fabric Manager


def _below(folder: str, files: Mapping[str, Content]) -> Tree:
    return {f"{folder}/{name}": content for name, content in files.items()}


def _sysfs(machine: Machine) -> Tree:
    """Return the contents of the /sys files, by path."""
    system, host = machine.system, machine.host_health
    files: Tree = {"/sys/class/dmi/id/product_name": system.product}
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
    if system.chassis:
        dimm: Tree = {"dimm_label": "DIMM_A1", "dimm_ce_count": 0, "dimm_ue_count": 0}
        files |= _below("/sys/devices/system/edac/mc/mc0/dimm0", dimm)
    return files | {"/sys/class/net/lo/operstate": "unknown"}


def _unlisted(machine: Machine) -> Tree:
    """Return the files that are missing from directory listings: SMART data from udisks2, and the
    processes of the Fabric Manager and the kernel."""

    def smart() -> str:
        broken = machine.host_health.failing_disks
        objects: dict[str, Any] = {}
        for name in (disk.name for disk in machine.system.disks):
            verdict = {"SmartUpdated": {"data": 1}, "SmartFailing": {"data": name in broken}}
            objects[name] = {f"{UDISKS}.Block": {"Drive": {"data": f"/drives/{name}"}}}
            objects[f"/drives/{name}"] = {f"{UDISKS}.Drive.Ata": verdict}
        return json.dumps({"data": [objects]})

    found: Tree = {"/run/dgx-telemetry-smart/objects.json": smart}
    if not machine.system.nvswitches:
        return found

    def running() -> str:
        if not machine.host_health.fabric_service:
            raise FileNotFoundError(2, "No such process")
        return "nv-fabricmanage"

    return found | {
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": SERVICE,
        f"/proc/{SERVICE}/comm": running,
        f"/proc/{SERVICE}/status": lambda: f"Name:\t{running()}\nUid:\t0\t0\t0\t0",
        "/proc/2/comm": "kthreadd",
        "/proc/2/status": "Name:\tkthreadd\nUid:\t0\t0\t0\t0",
    }


def _ports(system: SystemModel) -> dict[int, str]:
    number = system.per_pcie_switch
    groups = [system.buses[n : n + number] for n in range(0, system.gpus, number)] if number else []
    return {bus: f"0000:{min(group) - 2:02x}:00.0" for group in groups for bus in group}


def _sysfs_links(machine: Machine) -> dict[str, str]:
    """Return the symbolic links by path: array members, and GPUs in the PCI device tree, where each
    GPU is below a root port or below both ports of a switch."""
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


def _disk(machine: Machine, disk: DiskModel) -> Tree:
    host, nvme = machine.host_health, disk.name.startswith("nvme")
    alive, dead = ("live", "dead") if nvme else ("running", "offline")
    files: Tree = {
        "device/model": disk.model,
        "device/state": lambda: dead if disk.name in host.dead_disks else alive,
    }
    if nvme:
        files["device/hwmon3/temp1_alarm"] = lambda: int(disk.name in host.hot_disks)
    below = _below(f"/sys/block/{disk.name}", files)
    in_array = any(disk in array.members for array in machine.system.arrays)
    return below if in_array else below | _volume(host, disk.name, [disk])


def _volume(host: HostHealth, name: str, disks: Sequence[DiskModel]) -> Tree:
    """Return the file of the errors of a file system. An array's members have none of their own."""
    own = {disk.name for disk in disks}
    return {f"/sys/fs/ext4/{name}/errors_count": lambda: int(not own.isdisjoint(host.damaged))}


def _array(machine: Machine, array: ArrayModel) -> Tree:
    """Return the files of an array. A striped array has no `degraded` file, because it does not
    survive the loss of a member."""
    health = machine.host_health
    first = next((a for a in machine.system.arrays if not a.striped), None)
    files: Tree = {
        "md/level": array.level,
        "md/raid_disks": len(array.members),
        "md/array_state": "clean",
    }
    if not array.striped:
        files["md/degraded"] = lambda: health.lost_members if array is first else 0
    below = _below(f"/sys/block/{array.name}", files)
    return below | _volume(health, array.name, array.members)


def _nic(machine: Machine, nic: NicModel) -> Tree:
    speed = machine.traffic.speed
    files: Tree = {
        "operstate": lambda: "up" if speed(nic) else "down",
        "speed": lambda: speed(nic) or -1,
    }
    return _below(f"/sys/class/net/{nic.name}", files)


def _hca(machine: Machine, hca: HcaModel) -> Tree:
    traffic = machine.traffic
    flows = {
        "port_xmit_data": ("xmit", WORD),
        "port_rcv_data": ("rcv", WORD),
        "port_xmit_wait": ("wait", 1),
        "symbol_error": ("symbol_error", 1),
        "link_downed": ("link_downed", 1),
    }

    def count(flow: str, unit: int) -> Callable[[], int]:
        return lambda: int(traffic.read(f"{flow}:{hca.name}", machine.now) / unit)

    files: Tree = {
        **{f"counters/{name}": 0 for name in HCA_ERRORS},
        **{f"counters/{name}": count(*flow) for name, flow in flows.items()},
        "rate": lambda: traffic.rate(hca),
        "state": lambda: "1: DOWN" if traffic.is_down(hca) else "4: ACTIVE",
        "phys_state": lambda: "2: Polling" if traffic.is_down(hca) else "5: LinkUp",
    }
    return _below(f"/sys/class/infiniband/{hca.name}/ports/1", files)


class SimulatedFiles(FileTree):
    """/proc and /sys. Constant files are created once, and process files are updated when processes
    start or end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lasting: dict[str, procfs.Content] = {
            **_written(_sysfs(machine)),
            **procfs.proc_tree(machine),
            **procfs.cgroup_tree(machine),
        }
        self._unlisted = _written(_unlisted(machine))
        self._links: Mapping[str, str] = _sysfs_links(machine)
        self._files: dict[str, procfs.Content] = {}
        self._folders: dict[str, set[str]] = {}
        self._changes = -1  # number of process changes at the last listing of the files

    def read(self, path: str) -> str:
        with self._machine.lock:
            self._list()
            content = self._files.get(path) or self._unlisted.get(path)
            if content is None:
                raise _missing(errno.EISDIR if path in self._folders else errno.ENOENT, path)
            return content()

    def names(self, path: str) -> list[str]:
        with self._machine.lock:
            self._list()
            path = path.rstrip("/") or "/"
            if path not in self._folders:
                raise _missing(errno.ENOENT, path)
            return sorted(self._folders[path])

    def link(self, path: str) -> str:
        if path not in self._links:
            raise _missing(errno.ENOENT, path)
        return self._links[path]

    def _list(self) -> None:
        self._machine.advance()
        if self._changes == self._machine.jobs.changes:
            return
        self._changes = self._machine.jobs.changes
        self._files = {**self._lasting, **procfs.process_tree(self._machine)}
        self._folders = {}
        for path in (*self._files, *self._links):
            folder, known = path, False
            while folder and not known:
                folder, _, name = folder.rpartition("/")
                known = (folder or "/") in self._folders
                self._folders.setdefault(folder or "/", set()).add(name)


def _written(files: Tree) -> dict[str, procfs.Content]:
    """Return functions that produce the file contents with a final newline."""

    def text(content: Content) -> str:
        return f"{content() if callable(content) else content}\n"

    return {path: partial(text, content) for path, content in files.items()}


def _missing(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
