"""The host of a simulated machine: its files, its psutil functions, and Slurm. files.toml declares
most of the files."""

import errno
import json
import os
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.hardware.files import FileTree
from agent.hardware.schedulers import Schedulers, SlurmJob
from agent.metrics import beside
from agent.simulator.devices import SimulatedArray
from agent.simulator.jobs import LOGIN, USER, SimulatedProcess, SimulatedThread
from agent.simulator.machine import Machine
from agent.simulator.models import SystemModel, address

Content = Callable[[], str]

TEXTS: Mapping[str, Mapping[str, str]] = beside(__file__, "files")
TICKS_PER_SECOND = 100  # Ticks per second of CPU time

MOUNT_LINES = (
    "proc /proc proc rw,relatime 0 0",
    "sysfs /sys sysfs rw,relatime 0 0",
    "tmpfs /run tmpfs rw,nosuid,nodev 0 0",
)


@dataclass(frozen=True, slots=True)
class Counters:
    """Values for placeholders such as `{count[read]}` in files.toml: the counters of a device."""

    machine: Machine
    it: Any

    def __getitem__(self, name: str) -> int:
        of_process = isinstance(self.it, SimulatedProcess)
        meter = (self.machine.jobs if of_process else self.machine.devices).meter
        owner = self.it.pid if of_process else getattr(self.it, "name", "")
        return int(meter.read(f"{name}:{owner}" if owner else name, self.machine.now))


def filled(kind: str, machine: Machine, it: Any, **others: Any) -> dict[str, Content]:
    """Return the files for one part of a machine (`it`), by path. They show its current state."""
    given = {"machine": machine, "it": it, "count": Counters(machine, it)}
    return {
        path.format(it=it, **others): partial(f"{text}\n".format, **given)
        for path, text in TEXTS[kind].items()
    }


def counted(machine: Machine) -> dict[str, Content]:
    """Return the mount table and the cgroup files of the jobs, by path."""
    cgroup = f"/sys/fs/cgroup{CGROUP}"
    return {
        "/proc/mounts": lambda: lines(*_mounts(machine)),
        f"{cgroup}/cgroup.procs": lambda: lines(*map(str, sorted(machine.jobs.processes))),
        f"{cgroup}/io.stat": lambda: _io_stat(machine),
    }


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def _mounts(machine: Machine) -> list[str]:
    devices, data = machine.devices, machine.system.data
    boot = devices.arrays[0].name if len(devices.arrays) > 1 else devices.disks[0].name
    root = f"/dev/{boot}p2" if boot[-1].isdigit() else f"/dev/{boot}2"
    found = [f"{root} / ext4 rw,relatime 0 0", *MOUNT_LINES]
    if devices.arrays:
        found.append(f"/dev/{data} /raid ext4 rw,relatime 0 0")
    if devices.load.mounted:
        found.append("storage:/datasets /mnt/datasets nfs4 rw,relatime,vers=4.2,rsize=1048576 0 0")
    return found


def device_number(name: str) -> str:
    digits = re.findall(r"\d+", name)
    if name.startswith("sd"):
        return f"8:{16 * (ord(name[2]) - ord('a'))}"
    return f"{9 if name.startswith('md') else 259}:{digits[0]}"


CGROUP = f"/user.slice/user-{USER}.slice/session-2.scope"


def process_tree(machine: Machine) -> dict[str, Content]:
    """Return the files in /proc/PID of all processes and threads, by path."""
    tree: dict[str, Content] = {}
    below: dict[int, list[str]] = {}
    for process in machine.jobs.processes.values():
        below.setdefault(process.parent, []).append(str(process.pid))
    for process in machine.jobs.processes.values():
        folder, main = f"/proc/{process.pid}", process.threads[0]
        for thread in process.threads:  # children belong to the main thread, which forked them
            of_thread = f"{folder}/task/{thread.number}"
            children = below.get(process.pid, ()) if thread is main else ()
            tree[f"{of_thread}/children"] = partial(" ".join, children)
            tree[f"{of_thread}/stat"] = partial(_stat, machine, process, thread.number, (thread,))
            tree[f"{of_thread}/schedstat"] = partial(_schedstat, machine, thread)
            tree |= filled("thread", machine, thread, process=process)
        rank = "" if process.rank is None else f"RANK={process.rank}\0"
        tree |= filled("process", machine, process) | {
            f"{folder}/stat": partial(_stat, machine, process, process.pid, process.threads),
            f"{folder}/schedstat": partial(_schedstat, machine, main),
            f"{folder}/cmdline": partial("".join, [f"{word}\0" for word in process.command]),
            f"{folder}/environ": partial(str, rank),
            f"{folder}/net/dev": partial(_net_dev, machine),
        }
    return tree


def _seconds(machine: Machine, part: str, threads: tuple[SimulatedThread, ...]) -> float:
    return sum(machine.jobs.meter.read(f"{part}:{t.number}", machine.now) for t in threads)


def _stat(
    machine: Machine, process: SimulatedProcess, number: int, threads: tuple[SimulatedThread, ...]
) -> str:
    """Return the contents of the stat file for the process or thread `number`. Its CPU time is that
    of all `threads`. Fields that are not simulated are 0."""
    seconds = _seconds(machine, "cpu", threads)
    user = int(seconds * TICKS_PER_SECOND * 0.85)  # share of user mode
    system = int(seconds * TICKS_PER_SECOND) - user
    started = int((86_400 + process.started) * TICKS_PER_SECOND)
    state = "T" if process.stopped else threads[0].state(machine.now)
    head = f"{number} ({threads[0].name}) {state} {process.parent} "
    head += f"{process.session} {process.session} 0 -1 4194304 0 0 0 0 "
    tail = f"{user} {system} 0 0 20 0 {len(process.threads)} 0 {started} 8589934592 262144"
    return f"{head}{tail}{' 0' * 28}\n"


def _schedstat(machine: Machine, thread: SimulatedThread) -> str:
    """Return the contents of a thread's schedstat file: its run time and wait time (ns), and 0."""
    ran, queued = (_seconds(machine, part, (thread,)) for part in ("cpu", "queued"))
    return f"{int(ran * 1e9)} {int(queued * 1e9)} 0\n"


def _net_dev(machine: Machine) -> str:
    """Return the contents of net/dev, which are the same for the host and for all processes."""
    rows = ["    lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"]
    for name in (nic.name for nic in machine.devices.nics):
        names = f"recv:{name}", f"send:{name}"
        received, sent = map(int, machine.devices.meter.read_all(names, machine.now))
        rows.append(f"{name:>6}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0")
    return lines("Inter-|   Receive  |  Transmit", " face |bytes  |bytes", *rows)


def _io_stat(machine: Machine) -> str:
    """Return the contents of io.stat: a line for each data disk and for their array, if any."""
    names = "cgroup:read", "cgroup:written"
    read, written = map(int, machine.jobs.meter.read_all(names, machine.now))
    disks, data = machine.devices.data_disks, machine.system.data
    rows = [(disk.name, read // len(disks), written // len(disks)) for disk in disks]
    if data not in {disk.name for disk in disks}:
        rows.append((data, read, written))
    return lines(*(f"{device_number(name)} rbytes={r} wbytes={w}" for name, r, w in rows))


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
