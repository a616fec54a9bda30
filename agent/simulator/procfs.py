"""/proc and /sys/fs/cgroup of the simulated host, with its processes and their threads."""

import re
from collections.abc import Callable
from functools import partial

from agent.simulator.jobs import USER, SimulatedProcess, SimulatedThread
from agent.simulator.machine import Machine
from agent.simulator.models import ArrayModel, address
from agent.simulator.traffic import PRESSURE_KINDS

Content = Callable[[], str]

HERTZ = 100  # Ticks per second of CPU time
KIB = 1024
AT_REST, OF_PROCESS = 0.02, 0.004
"""Shares of the host's memory that are used by the system itself, and by each process of a job."""

MOUNTS = (
    "proc /proc proc rw,relatime 0 0",
    "sysfs /sys sysfs rw,relatime 0 0",
    "tmpfs /run tmpfs rw,nosuid,nodev 0 0",
)
SHARED = "storage:/datasets /mnt/datasets nfs4 rw,relatime,vers=4.2,rsize=1048576 0 0"


def proc_tree(machine: Machine) -> dict[str, Content]:
    """Path to content, for all that is no process."""
    pressure = {
        f"/proc/pressure/{resource}": pressure_file(machine, resource)
        for resource in ("cpu", "io", "memory")
    }
    return {
        **{
            f"/proc/driver/nvidia/gpus/{address(gpu.bus)}/information": partial(
                lines, f"GPU UUID: \t {gpu.uuid}", f"Device Minor: \t {gpu.index}"
            )
            for gpu in machine.gpus
        },
        "/proc/sys/kernel/hostname": lambda: f"{machine.system.name}\n",
        "/proc/stat": lambda: _cpu_times(machine),
        "/proc/meminfo": lambda: _meminfo(machine),
        "/proc/loadavg": lambda: _loadavg(machine),
        "/proc/mounts": lambda: lines(*mounts(machine)),
        "/proc/mdstat": lambda: _mdstat(machine.system.arrays),
        "/proc/uptime": lambda: f"{86_400 + machine.now:.2f} {86_400 + machine.now:.2f}\n",
        **pressure,
    }


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def pressure_file(machine: Machine, resource: str) -> Content:
    """Writes the pressure of one resource, of the host or of the job that alone works on it."""

    def content() -> str:
        traffic = machine.traffic
        percent = 100 * traffic.pressures()[resource]
        rows = []
        for kind in PRESSURE_KINDS:
            share = 0.0 if resource == "cpu" and kind == "full" else percent
            total = int(traffic.read(f"{resource}:{kind}", machine.now))
            rows.append(
                f"{kind} avg10={share:.2f} avg60={share:.2f} avg300={share:.2f} total={total}"
            )
        return lines(*rows)

    return content


def _cpu_times(machine: Machine) -> str:
    cpus = machine.system.cpus
    user, system, idle, waiting = (
        int(machine.traffic.read(f"cpu:{part}", machine.now) * HERTZ)
        for part in ("user", "system", "idle", "iowait")
    )
    each = f"{user // cpus} 0 {system // cpus} {idle // cpus} {waiting // cpus} 0 0 0 0 0"
    states = [process.state(machine.now) for process in machine.jobs.processes.values()]
    return lines(
        f"cpu  {user} 0 {system} {idle} {waiting} 0 0 0 0 0",
        *(f"cpu{number} {each}" for number in range(cpus)),
        "intr 0",
        "ctxt 0",
        f"btime {machine.micros(0) // 1_000_000 - 86_400}",
        f"processes {len(states)}",
        f"procs_running {max(1, states.count('R'))}",
        f"procs_blocked {states.count('D')}",
    )


def _meminfo(machine: Machine) -> str:
    total = machine.system.memory // KIB
    used = min(0.9, AT_REST + OF_PROCESS * len(machine.jobs.processes)) * total
    free = int(total - used)
    return lines(
        f"MemTotal:       {total} kB",
        f"MemFree:        {free // 3} kB",
        f"MemAvailable:   {free} kB",
    )


def _loadavg(machine: Machine) -> str:
    load = machine.jobs.cores + machine.jobs.blocked
    count = len(machine.jobs.processes)
    return f"{load:.2f} {load:.2f} {load:.2f} 1/{count + 300} {20_000 + count}\n"


def mounts(machine: Machine) -> list[str]:
    system = machine.system
    boot = system.arrays[0].name if len(system.arrays) > 1 else system.disks[0].name
    root = f"/dev/{boot}p2" if boot[-1].isdigit() else f"/dev/{boot}2"
    found = [f"{root} / ext4 rw,relatime 0 0", *MOUNTS]
    if system.arrays:
        found.append(f"/dev/{system.data} /raid ext4 rw,relatime 0 0")
    if machine.traffic.load.mounted:
        found.append(SHARED)
    return found


def device_number(name: str) -> str:
    digits = re.findall(r"\d+", name)
    if name.startswith("sd"):
        return f"8:{16 * (ord(name[2]) - ord('a'))}"
    return f"{9 if name.startswith('md') else 259}:{digits[0]}"


def _mdstat(arrays: tuple[ArrayModel, ...]) -> str:
    rows = ["Personalities : [raid0] [raid1]"]
    for array in arrays:
        members = " ".join(f"{disk.name}[{place}]" for place, disk in enumerate(array.members))
        count = len(array.members)
        health = "" if array.striped else f" [{count}/{count}] [{'U' * count}]"
        rows.append(f"{array.name} : active {array.level} {members}")
        rows.append(f"      {array.size // 1024} blocks super 1.2{health}")
        rows.append("")
    return lines(*rows, "unused devices: <none>")


USER_SHARE = 0.85
CGROUP = f"/user.slice/user-{USER}.slice/session-2.scope"
NS = 1e9
SLICE = 3e-3  # s that a thread runs before another one gets its CPU
READ_SIZE = 131_072  # bytes of a usual request
PACKET = 1500
STATES = {"T": "T (stopped)", "R": "R (running)", "D": "D (disk sleep)", "S": "S (sleeping)"}
WAITS = {"T": "do_signal_stop", "R": "0", "D": "folio_wait_bit_common", "S": "futex_wait_queue"}
"""Place in the kernel where a thread waits, by its state."""

ProcessFile = Callable[[Machine, SimulatedProcess], str]
ThreadFile = Callable[[Machine, SimulatedProcess, SimulatedThread], str]


def names(machine: Machine, path: str) -> set[str]:
    """The names that processes add to a folder below /proc."""
    parts = path.strip("/").split("/")
    if parts == ["proc"]:
        return {str(pid) for pid in machine.jobs.processes}
    process = _process(machine, parts)
    return set() if process is None else _names(process, parts[2:])


def _names(process: SimulatedProcess, folder: list[str]) -> set[str]:
    threads = {str(thread.number) for thread in process.threads}
    match folder:
        case []:
            return {*PROCESS_FILES, *THREAD_FILES.keys() - {"children"}, "task", "net"}
        case ["task"]:
            return threads
        case ["task", number] if number in threads:
            return set(THREAD_FILES)
        case ["net"]:
            return {"dev"}
    return set()


def _process(machine: Machine, parts: list[str]) -> SimulatedProcess | None:
    if len(parts) < 2 or parts[0] != "proc" or not parts[1].isdigit():
        return None
    return machine.jobs.processes.get(int(parts[1]))


def content_of(machine: Machine, path: str) -> Content | None:
    """Return the writer of a process file; None if there is no such file or process."""
    parts = path.strip("/").split("/")
    process = _process(machine, parts)
    if process is None:
        return None
    match parts[2:]:
        case ["task", number, file] if file in THREAD_FILES:
            known = (t for t in process.threads if str(t.number) == number)
            return next((partial(THREAD_FILES[file], machine, process, t) for t in known), None)
        case ["net", "dev"]:
            return partial(_net_dev, machine, process)
        case [file] if file in PROCESS_FILES:
            return partial(PROCESS_FILES[file], machine, process)
        case [file] if file in THREAD_FILES and file != "children":
            return partial(THREAD_FILES[file], machine, process, process.threads[0])
    return None  # a folder, or nothing


def _seconds(machine: Machine, part: str, threads: tuple[SimulatedThread, ...]) -> float:
    return sum(machine.jobs.meter.read(f"{part}:{t.number}", machine.now) for t in threads)


def _stat(
    machine: Machine, process: SimulatedProcess, number: int, threads: tuple[SimulatedThread, ...]
) -> str:
    """52 fields of proc(5), those that no one can ask a simulation for at 0."""
    seconds = _seconds(machine, "cpu", threads)
    user = int(seconds * HERTZ * USER_SHARE)
    system = int(seconds * HERTZ) - user
    started = int((86_400 + process.started) * HERTZ)
    first = threads[0]
    state = "T" if process.stopped else first.state(machine.now)
    head = f"{number} ({first.name}) {state} {process.parent} "
    head += f"{process.session} {process.session} 0 -1 4194304 0 0 0 0 "
    tail = f"{user} {system} 0 0 20 0 {len(process.threads)} 0 {started} 8589934592 262144"
    return f"{head}{tail}{' 0' * 28}\n"


def _schedstat(machine: Machine, _: SimulatedProcess, thread: SimulatedThread) -> str:
    """Nanoseconds on a CPU, nanoseconds in the queue for one, and how often it ran."""
    ran = _seconds(machine, "cpu", (thread,))
    queued = _seconds(machine, "queued", (thread,))
    return f"{int(ran * NS)} {int(queued * NS)} {int(ran / SLICE)}\n"


def _children(machine: Machine, process: SimulatedProcess, thread: SimulatedThread) -> str:
    """All were forked by the main thread."""
    below = (p.pid for p in machine.jobs.processes.values() if p.parent == process.pid)
    return " ".join(map(str, below)) if thread is process.threads[0] else ""


def _status(machine: Machine, process: SimulatedProcess) -> str:
    return lines(
        f"Name:\t{process.name}",
        f"State:\t{STATES[process.state(machine.now)]}",
        f"Tgid:\t{process.pid}",
        f"Pid:\t{process.pid}",
        f"PPid:\t{process.parent}",
        "Uid:" + f"\t{process.uid}" * 4,
        "Gid:" + f"\t{process.uid}" * 4,
        "VmRSS:\t 1048576 kB",
        f"Threads:\t{len(process.threads)}",
        f"Cpus_allowed_list:\t{process.allowed or f'0-{machine.system.cpus - 1}'}",
    )


def _io(machine: Machine, process: SimulatedProcess) -> str:
    read, written = (
        int(machine.jobs.meter.read(f"{flow}:{process.pid}", machine.now))
        for flow in ("read", "written")
    )
    return lines(
        f"rchar: {read}",
        f"wchar: {written}",
        f"syscr: {read // READ_SIZE}",
        f"syscw: {written // READ_SIZE}",
        f"read_bytes: {read}",
        f"write_bytes: {written}",
        "cancelled_write_bytes: 0",
    )


def _net_dev(machine: Machine, _: SimulatedProcess) -> str:
    """The host's interfaces: no process has a network namespace of its own."""
    head = (
        "Inter-|   Receive                                                |  Transmit",
        " face |bytes    packets errs drop fifo frame compressed multicast"
        "|bytes    packets errs drop fifo colls carrier compressed",
    )
    rows = ["    lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"]
    for nic in machine.system.nics:
        received, sent = (
            int(machine.traffic.read(f"{flow}:{nic.name}", machine.now))
            for flow in ("recv", "send")
        )
        into = f"{received} {received // PACKET} 0 0 0 0 0 0"
        rows.append(f"{nic.name:>6}: {into} {sent} {sent // PACKET} 0 0 0 0 0 0")
    return lines(*head, *rows)


def _mountstats(machine: Machine, _: SimulatedProcess) -> str:
    """Each mount; of a network file system the bytes that came through it, too."""
    rows = []
    for mount in mounts(machine):
        device, point, kind = mount.split()[:3]
        rows.append(f"device {device} mounted on {point} with fstype {kind}")
        if kind == "nfs4":
            read = int(machine.jobs.meter.read("cgroup:shared", machine.now))
            calls = read // READ_SIZE
            rows[-1] += " statvers=1.1"
            rows += [
                f"\tbytes:\t{read} 0 0 0 {read} 0 {read // 4096} 0",
                "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)",
                "\tper-op statistics",
                f"\t        READ: {calls} {calls} 0 {calls * 200} {read} 0 {calls} {calls} 0",
            ]
    return lines(*rows)


THREAD_FILES: dict[str, ThreadFile] = {
    "stat": lambda machine, process, thread: _stat(machine, process, thread.number, (thread,)),
    "schedstat": _schedstat,
    "wchan": lambda machine, _, thread: WAITS[thread.state(machine.now)],
    "comm": lambda _, __, thread: f"{thread.name}\n",
    "children": _children,
}
"""The files of a thread. Below /proc/PID the same names are of the main thread alone."""

PROCESS_FILES: dict[str, ProcessFile] = {
    "stat": lambda machine, process: _stat(machine, process, process.pid, process.threads),
    "comm": lambda _, process: f"{process.name}\n",
    "cmdline": lambda _, process: "".join(f"{word}\0" for word in process.command),
    "cgroup": lambda *_: f"0::{CGROUP}\n",
    "environ": lambda _, process: f"RANK={process.rank}\0" if process.rank is not None else "",
    "status": _status,
    "io": _io,
    "mountstats": _mountstats,
}
"""The files of a process; its `stat` counts the CPU time of all its threads."""


ROOT = "/sys/fs/cgroup"
WRITE_SIZE = 16_384  # bytes


def cgroup_tree(machine: Machine) -> dict[str, Content]:
    """Path to content: the cgroup of the job, and those above it, in which no one else works."""
    files: dict[str, Content] = {
        "cgroup.controllers": lambda: "cpuset cpu io memory pids\n",
        "cgroup.procs": lambda: lines(*map(str, sorted(machine.jobs.processes))),
        "cpu.max": lambda: "max 100000\n",
        "cpu.stat": lambda: _cpu_stat(machine),
        "io.stat": lambda: _io_stat(machine),
        "memory.max": lambda: "max\n",
        "memory.current": lambda: f"{len(machine.jobs.processes) << 30}\n",
        **{
            f"{resource}.pressure": pressure_file(machine, resource)
            for resource in ("cpu", "io", "memory")
        },
    }
    parts = CGROUP.strip("/").split("/")
    folders = ["/".join([ROOT, *parts[: depth + 1]]) for depth in range(len(parts))]
    return {f"{folder}/{name}": content for folder in folders for name, content in files.items()}


def _count(machine: Machine, name: str) -> float:
    return machine.jobs.meter.read(f"cgroup:{name}", machine.now)


def _cpu_stat(machine: Machine) -> str:
    used = _count(machine, "cpu") * 1e6
    return lines(
        f"usage_usec {int(used)}",
        f"user_usec {int(used * USER_SHARE)}",
        f"system_usec {int(used) - int(used * USER_SHARE)}",
        "nr_periods 0",
        "nr_throttled 0",
        "throttled_usec 0",
    )


def _io_stat(machine: Machine) -> str:
    """A line a device: the disks with the data, and the array above them."""
    read, written = (int(_count(machine, flow)) for flow in ("read", "written"))
    disks = machine.system.data_disks
    rows = [(disk.name, read // len(disks), written // len(disks)) for disk in disks]
    if machine.system.data not in {disk.name for disk in disks}:
        rows.append((machine.system.data, read, written))
    return lines(
        *(
            f"{device_number(name)} rbytes={r} wbytes={w} rios={r // READ_SIZE} "
            f"wios={w // WRITE_SIZE} dbytes=0 dios=0"
            for name, r, w in rows
        )
    )
