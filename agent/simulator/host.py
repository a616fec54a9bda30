"""The host of a simulated machine: its files, its psutil functions, and Slurm."""

import errno
import json
import os
from collections import namedtuple
from collections.abc import Iterable, Mapping
from typing import Any

from agent.hardware.files import FileTree
from agent.hardware.schedulers import Schedulers, SlurmJob
from agent.simulator.devices import SimulatedArray
from agent.simulator.jobs import LOGIN
from agent.simulator.machine import Machine
from agent.simulator.models import SystemModel, address
from agent.simulator.procfs import Content, counted, filled, process_tree

SECTOR = 512

SimulatedDiskCounters = namedtuple("SimulatedDiskCounters", "read_bytes write_bytes busy_time")
SimulatedNicCounters = namedtuple("SimulatedNicCounters", "bytes_sent bytes_recv")
SimulatedCpuTimes = namedtuple("SimulatedCpuTimes", "user system idle iowait")  # s, over all CPUs


class SimulatedPsutil:
    """The psutil functions that the agent uses. They return the simulated machine's counters."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def disk_io_counters(self, perdisk: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        devices = self._machine.devices
        disks = {disk.name: self._disk(disk.name) for disk in devices.disks}
        return disks | {array.name: _together(array, disks) for array in devices.arrays}

    def _disk(self, name: str) -> SimulatedDiskCounters:
        read, written, busy = (self._read(f"{flow}:{name}") for flow in ("read", "write", "busy"))
        return SimulatedDiskCounters(
            *(int(read / SECTOR) * SECTOR, int(written / SECTOR) * SECTOR, int(busy * 1000))
        )

    def net_io_counters(self, pernic: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        found = {"lo": SimulatedNicCounters(0, 0)}
        for nic in self._machine.devices.nics:
            flows = (int(self._read(f"{way}:{nic.name}")) for way in ("send", "recv"))
            found[nic.name] = SimulatedNicCounters(*flows)
        return found

    def cpu_times(self) -> SimulatedCpuTimes:
        names = SimulatedCpuTimes._fields
        return SimulatedCpuTimes(*(self._read(f"cpu:{name}") for name in names))

    def _read(self, name: str) -> float:
        with self._machine.lock:
            self._machine.advance()
            return self._machine.devices.meter.read(name, self._machine.now)


def _together(
    array: SimulatedArray, disks: Mapping[str, SimulatedDiskCounters]
) -> SimulatedDiskCounters:
    """Return the counters of an array, computed from the counters of its members. A mirror writes
    its data to each member, but counts it once."""
    read, written, busy = zip(*(disks[disk.name] for disk in array.members), strict=True)
    once = sum(written) if array.striped else written[0]
    return SimulatedDiskCounters(sum(read), once, max(busy))


class SimulatedSlurm(Schedulers):
    """Slurm with a single job. The job has the last GPU, but no processes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def slurm(self, host: str) -> list[SlurmJob]:
        gres = [(host, f"gpu:1(IDX:{len(self._machine.gpus) - 1})")]
        return [SlurmJob("4711", LOGIN, "vision", "gpu", gres)]


PCI = "/sys/bus/pci/devices"
UDISKS = "org.freedesktop.UDisks2"
SMART = "/run/dgx-telemetry-smart/objects.json"


def _files(machine: Machine) -> dict[str, Content]:
    """Return the contents of all files outside /proc/PID, by path."""
    devices, system = machine.devices, machine.system
    members = [disk for array in devices.arrays for disk in array.members]
    kinds: dict[str, Iterable[Any]] = {
        "machine": [machine],
        "chassis": [devices] if system.chassis else [],
        "gpu": machine.gpus,
        "switch": [f"{0x86 + number:02x}:00.0" for number in range(system.nvswitches)],
        "slot": {*_ports(system).values()},
        "disk": devices.disks,
        "nvme": [disk for disk in devices.disks if disk.nvme],
        "volume": [*(disk for disk in devices.disks if disk not in members), *devices.arrays],
        "array": devices.arrays,
        "redundant": [array for array in devices.arrays if not array.striped],
        "nic": devices.nics,
        "hca": devices.hcas,
    }
    texts = (filled(kind, machine, it) for kind, ones in kinds.items() for it in ones)
    return {path: content for text in texts for path, content in text.items()}


def _smart(machine: Machine) -> str:
    """Return SMART data in the format of udisks2."""
    objects: dict[str, Any] = {}
    for disk in machine.devices.disks:
        failing = bool(disk.faults["failing"])
        verdict = {"SmartUpdated": {"data": 1}, "SmartFailing": {"data": failing}}
        objects[disk.name] = {f"{UDISKS}.Block": {"Drive": {"data": f"/drives/{disk.name}"}}}
        objects[f"/drives/{disk.name}"] = {f"{UDISKS}.Drive.Ata": verdict}
    return json.dumps({"data": [objects]}) + "\n"


def _ports(system: SystemModel) -> dict[int, str]:
    """Return the PCI address of the PCIe switch port above each GPU, by the GPU's bus."""
    number = system.per_pcie_switch
    groups = [system.buses[n : n + number] for n in range(0, system.gpus, number)] if number else []
    return {bus: f"0000:{min(group) - 2:02x}:00.0" for group in groups for bus in group}


def _links(machine: Machine) -> dict[str, str]:
    """Return the targets of symbolic links, by the path of the link. In /sys/block/ARRAY/slaves,
    each link points to a disk. In the list of PCI devices, each link of a GPU points to its
    directory, which is below that of a root port or a switch."""
    ports = _ports(machine.system)
    found = {
        f"/sys/block/{array.name}/slaves/{disk.name}": f"../../../{disk.name}"
        for array in machine.devices.arrays
        for disk in array.members
    }
    for bus in machine.system.buses:
        gpu = address(bus)
        switch = f"/{ports[bus]}/0000:{bus - 1:02x}:08.0" if bus in ports else ""
        found[f"{PCI}/{gpu}"] = f"../../../devices/pci0000:00/0000:00:02.0{switch}/{gpu}"
    return found


class SimulatedFiles(FileTree):
    """The files in /proc and /sys. Constant files are created once. The files of processes are
    updated when processes start or end. Directory listings omit the SMART data, the kernel's
    processes, and the Fabric Manager."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lasting = _files(machine) | counted(machine)
        self._unlisted: dict[str, Content] = {SMART: lambda: _smart(machine)}
        if machine.system.nvswitches:
            self._unlisted |= filled("fabric", machine, machine.devices)
        self._links: Mapping[str, str] = _links(machine)
        self._files: dict[str, Content] = {}
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
        self._files = {**self._lasting, **process_tree(self._machine)}
        self._folders = {}
        for path in (*self._files, *self._links):
            folder, known = path, False
            while folder and not known:
                folder, _, name = folder.rpartition("/")
                known = (folder or "/") in self._folders
                self._folders.setdefault(folder or "/", set()).add(name)


def _missing(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
