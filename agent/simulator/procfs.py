"""/proc and /sys/fs/cgroup on the simulated host, including its processes and their threads."""

import re
from collections.abc import Callable
from functools import partial

from agent.simulator.jobs import USER, SimulatedProcess, SimulatedThread
from agent.simulator.machine import Machine
from agent.simulator.models import address
from agent.simulator.traffic import PRESSURE_KINDS

Content = Callable[[], str]

TICKS_PER_SECOND = 100  # Ticks per second of CPU time

MOUNT_LINES = (
    "proc /proc proc rw,relatime 0 0",
    "sysfs /sys sysfs rw,relatime 0 0",
    "tmpfs /run tmpfs rw,nosuid,nodev 0 0",
)
SHARED_MOUNT = "storage:/datasets /mnt/datasets nfs4 rw,relatime,vers=4.2,rsize=1048576 0 0"


def proc_tree(machine: Machine) -> dict[str, Content]:
    """Return the contents of all files that do not describe a process, by path."""
    return {
        **{
            f"/proc/driver/nvidia/gpus/{address(gpu.bus)}/information": partial(
                lines, f"GPU UUID: \t {gpu.uuid}", f"Device Minor: \t {gpu.index}"
            )
            for gpu in machine.gpus
        },
        "/proc/sys/kernel/hostname": lambda: f"{machine.system.name}\n",
        "/proc/mounts": lambda: lines(*mounts(machine)),
        "/proc/uptime": lambda: f"{86_400 + machine.now:.2f} {86_400 + machine.now:.2f}\n",
        **{
            f"/proc/pressure/{resource}": pressure_file(machine, resource)
            for resource in ("cpu", "io", "memory")
        },
    }


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def pressure_file(machine: Machine, resource: str) -> Content:
    """Return the content of a pressure file. The pressure is the same for the host and the job's
    cgroup, because only the job uses the host."""

    def content() -> str:
        totals = {k: machine.traffic.read(f"{resource}:{k}", machine.now) for k in PRESSURE_KINDS}
        averages = "avg10=0.00 avg60=0.00 avg300=0.00"
        return lines(*(f"{kind} {averages} total={int(us)}" for kind, us in totals.items()))

    return content


def mounts(machine: Machine) -> list[str]:
    system = machine.system
    boot = system.arrays[0].name if len(system.arrays) > 1 else system.disks[0].name
    root = f"/dev/{boot}p2" if boot[-1].isdigit() else f"/dev/{boot}2"
    found = [f"{root} / ext4 rw,relatime 0 0", *MOUNT_LINES]
    if system.arrays:
        found.append(f"/dev/{system.data} /raid ext4 rw,relatime 0 0")
    if machine.traffic.load.mounted:
        found.append(SHARED_MOUNT)
    return found


def device_number(name: str) -> str:
    digits = re.findall(r"\d+", name)
    if name.startswith("sd"):
        return f"8:{16 * (ord(name[2]) - ord('a'))}"
    return f"{9 if name.startswith('md') else 259}:{digits[0]}"


USER_SHARE = 0.85
CGROUP = f"/user.slice/user-{USER}.slice/session-2.scope"
NS = 1e9
ProcessFile = Callable[[Machine, SimulatedProcess], str]
ThreadFile = Callable[[Machine, SimulatedProcess, SimulatedThread], str]


def process_tree(machine: Machine) -> dict[str, Content]:
    """Return the contents of the files that describe processes and threads, by path."""
    tree: dict[str, Content] = {}
    below: dict[int, list[str]] = {}
    for process in machine.jobs.processes.values():
        below.setdefault(process.parent, []).append(str(process.pid))
    for process in machine.jobs.processes.values():
        folder = f"/proc/{process.pid}"
        for thread in process.threads:  # children belong to the main thread, which forked them
            children = below.get(process.pid, ()) if thread is process.threads[0] else ()
            tree[f"{folder}/task/{thread.number}/children"] = partial(" ".join, children)
            for name, of_thread in THREAD_FILES.items():
                path = f"{folder}/task/{thread.number}/{name}"
                tree[path] = partial(of_thread, machine, process, thread)
        tree[f"{folder}/schedstat"] = partial(_schedstat, machine, process, process.threads[0])
        for name, of_process in PROCESS_FILES.items():
            tree[f"{folder}/{name}"] = partial(of_process, machine, process)
    return tree


def _seconds(machine: Machine, part: str, threads: tuple[SimulatedThread, ...]) -> float:
    return sum(machine.jobs.meter.read(f"{part}:{t.number}", machine.now) for t in threads)


def _stat(
    machine: Machine, process: SimulatedProcess, number: int, threads: tuple[SimulatedThread, ...]
) -> str:
    """Return the 52 fields described in proc(5). Fields that are not simulated are 0."""
    seconds = _seconds(machine, "cpu", threads)
    user = int(seconds * TICKS_PER_SECOND * USER_SHARE)
    system = int(seconds * TICKS_PER_SECOND) - user
    started = int((86_400 + process.started) * TICKS_PER_SECOND)
    state = "T" if process.stopped else threads[0].state(machine.now)
    head = f"{number} ({threads[0].name}) {state} {process.parent} "
    head += f"{process.session} {process.session} 0 -1 4194304 0 0 0 0 "
    tail = f"{user} {system} 0 0 20 0 {len(process.threads)} 0 {started} 8589934592 262144"
    return f"{head}{tail}{' 0' * 28}\n"


def _schedstat(machine: Machine, _: SimulatedProcess, thread: SimulatedThread) -> str:
    """Return the nanoseconds spent on a CPU and waiting for a CPU, and 0 time slices."""
    ran, queued = (_seconds(machine, part, (thread,)) for part in ("cpu", "queued"))
    return f"{int(ran * NS)} {int(queued * NS)} 0\n"


def _status(_: Machine, process: SimulatedProcess) -> str:
    return lines(f"Name:\t{process.name}", "Uid:" + f"\t{process.uid}" * 4)


def _io(machine: Machine, process: SimulatedProcess) -> str:
    read, written = (
        int(machine.jobs.meter.read(f"{flow}:{process.pid}", machine.now))
        for flow in ("read", "written")
    )
    return lines(f"rchar: {read}", f"wchar: {written}")


def _net_dev(machine: Machine, _: SimulatedProcess) -> str:
    """Return the host's interfaces, because all processes share the host's network namespace."""
    rows = ["    lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"]
    for nic in machine.system.nics:
        received, sent = (
            int(machine.traffic.read(f"{flow}:{nic.name}", machine.now))
            for flow in ("recv", "send")
        )
        rows.append(f"{nic.name:>6}: {received} 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0")
    return lines("Inter-|   Receive  |  Transmit", " face |bytes  |bytes", *rows)


THREAD_FILES: dict[str, ThreadFile] = {
    "stat": lambda machine, process, thread: _stat(machine, process, thread.number, (thread,)),
    "schedstat": _schedstat,
    "comm": lambda _, __, thread: f"{thread.name}\n",
}
PROCESS_FILES: dict[str, ProcessFile] = {
    "stat": lambda machine, process: _stat(machine, process, process.pid, process.threads),
    "comm": lambda _, process: f"{process.name}\n",
    "cmdline": lambda _, process: "".join(f"{word}\0" for word in process.command),
    "cgroup": lambda *_: f"0::{CGROUP}\n",
    "environ": lambda _, process: f"RANK={process.rank}\0" if process.rank is not None else "",
    "status": _status,
    "io": _io,
    "net/dev": _net_dev,
}
"""The files of a process. `stat` includes the CPU time of all threads of the process."""


def cgroup_tree(machine: Machine) -> dict[str, Content]:
    """Return the contents of the cgroup files by path. The cgroup contains only the job."""
    return {
        f"/sys/fs/cgroup{CGROUP}/{name}": content
        for name, content in {
            "cgroup.procs": lambda: lines(*map(str, sorted(machine.jobs.processes))),
            "io.stat": lambda: _io_stat(machine),
            "io.pressure": pressure_file(machine, "io"),
            "memory.pressure": pressure_file(machine, "memory"),
        }.items()
    }


def _io_stat(machine: Machine) -> str:
    """Return a line for each data disk, and a line for the array of these disks, if any."""
    read, written = (
        int(machine.jobs.meter.read(f"cgroup:{flow}", machine.now)) for flow in ("read", "written")
    )
    disks = machine.system.data_disks
    rows = [(disk.name, read // len(disks), written // len(disks)) for disk in disks]
    if machine.system.data not in {disk.name for disk in disks}:
        rows.append((machine.system.data, read, written))
    return lines(*(f"{device_number(name)} rbytes={r} wbytes={w}" for name, r, w in rows))
