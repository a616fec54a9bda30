"""Files of the simulated host: files declared in files.toml, and files with counters."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.metrics import beside
from agent.simulator.jobs import USER, SimulatedProcess, SimulatedThread
from agent.simulator.machine import Machine

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
