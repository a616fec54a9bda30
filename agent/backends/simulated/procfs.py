"""/proc of the simulated host: mounts, arrays, CPU time, pressure, processes."""

from collections.abc import Callable

from agent.backends.simulated.jobs import USER, Process
from agent.backends.simulated.systems import Array
from agent.backends.simulated.traffic import PRESSURE_KINDS
from agent.backends.simulated.world import World

Content = Callable[[], str]

HERTZ = 100
"""Ticks per second of CPU time."""

USER_SHARE = 0.85
MOUNTS = (
    "proc /proc proc rw,relatime 0 0",
    "sysfs /sys sysfs rw,relatime 0 0",
    "tmpfs /run tmpfs rw,nosuid,nodev 0 0",
)
SHARED = "storage:/datasets /mnt/datasets nfs4 rw,relatime,vers=4.2,rsize=1048576 0 0"


def tree(world: World) -> dict[str, Content]:
    """Path to content, for all that is no process."""
    pressure = {
        f"/proc/pressure/{resource}": _pressure(world, resource)
        for resource in ("cpu", "io", "memory")
    }
    return {
        "/proc/stat": lambda: _stat(world),
        "/proc/loadavg": lambda: _loadavg(world),
        "/proc/mounts": lambda: _mounts(world),
        "/proc/mdstat": lambda: _mdstat(world.system.arrays),
        "/proc/uptime": lambda: f"{86_400 + world.now:.2f} {86_400 + world.now:.2f}\n",
        **{f"{folder}/cpu.max": lambda: "max 100000\n" for folder in _slices()},
        **pressure,
    }


def _slices() -> list[str]:
    """The folders of the users' cgroups, which all have a quota file; the root has none."""
    parts = CGROUP.strip("/").split("/")
    return ["/".join(["/sys/fs/cgroup", *parts[: n + 1]]) for n in range(len(parts))]


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _pressure(world: World, resource: str) -> Content:
    def content() -> str:
        traffic = world.traffic
        percent = 100 * traffic.pressures()[resource]
        rows = []
        for kind in PRESSURE_KINDS:
            share = 0.0 if resource == "cpu" and kind == "full" else percent
            total = int(traffic.meter.read(f"{resource}:{kind}", world.now))
            rows.append(
                f"{kind} avg10={share:.2f} avg60={share:.2f} avg300={share:.2f} total={total}"
            )
        return _lines(*rows)

    return content


def _stat(world: World) -> str:
    meter, cpus = world.traffic.meter, world.system.cpus
    user, system, idle, waiting = (
        int(meter.read(f"cpu:{part}", world.now) * HERTZ)
        for part in ("user", "system", "idle", "iowait")
    )
    each = f"{user // cpus} 0 {system // cpus} {idle // cpus} {waiting // cpus} 0 0 0 0 0"
    states = [process.state(world.now) for process in world.jobs.processes.values()]
    return _lines(
        f"cpu  {user} 0 {system} {idle} {waiting} 0 0 0 0 0",
        *(f"cpu{number} {each}" for number in range(cpus)),
        "intr 0",
        "ctxt 0",
        f"btime {world.micros(0) // 1_000_000 - 86_400}",
        f"processes {len(states)}",
        f"procs_running {max(1, states.count('R'))}",
        f"procs_blocked {states.count('D')}",
    )


def _loadavg(world: World) -> str:
    load = world.jobs.cores + world.jobs.stuck
    count = len(world.jobs.processes)
    return f"{load:.2f} {load:.2f} {load:.2f} 1/{count + 300} {20_000 + count}\n"


def _mounts(world: World) -> str:
    system = world.system
    boot = system.arrays[0].name if len(system.arrays) > 1 else system.disks[0].name
    root = f"/dev/{boot}p2" if boot[-1].isdigit() else f"/dev/{boot}2"
    mounts = [f"{root} / ext4 rw,relatime 0 0", *MOUNTS]
    if system.arrays:
        mounts.append(f"/dev/{system.data} /raid ext4 rw,relatime 0 0")
    if world.traffic.load.mounted:
        mounts.append(SHARED)
    return _lines(*mounts)


def _mdstat(arrays: tuple[Array, ...]) -> str:
    rows = ["Personalities : [raid0] [raid1]"]
    for array in arrays:
        members = " ".join(f"{disk.name}[{place}]" for place, disk in enumerate(array.members))
        count = len(array.members)
        health = "" if array.striped else f" [{count}/{count}] [{'U' * count}]"
        rows.append(f"{array.name} : active {array.level} {members}")
        rows.append(f"      {array.size // 1024} blocks super 1.2{health}")
        rows.append("")
    return _lines(*rows, "unused devices: <none>")


# processes

CGROUP = f"/user.slice/user-{USER}.slice/session-2.scope"
FILES = ("stat", "comm", "cmdline", "cgroup", "status")


def names(world: World, path: str) -> set[str]:
    """The names that processes add to a folder below /proc."""
    parts = path.strip("/").split("/")
    processes = world.jobs.processes
    if parts == ["proc"]:
        return {str(pid) for pid in processes}
    process = _process(world, parts)
    if process is None:
        return set()
    threads = {str(thread) for thread in process.threads}
    if len(parts) == 2:
        return {*FILES, "task"}
    if parts[2] != "task":
        return set()
    if len(parts) == 3:
        return threads
    return {"stat", "children"} if len(parts) == 4 and parts[3] in threads else set()


def _process(world: World, parts: list[str]) -> Process | None:
    if len(parts) < 2 or parts[0] != "proc" or not parts[1].isdigit():
        return None
    return world.jobs.processes.get(int(parts[1]))


def of_process(world: World, path: str) -> Content | None:
    """What reads a file of a process; None where there is no such file or process."""
    parts = path.strip("/").split("/")
    process = _process(world, parts)
    if process is None or parts[-1] not in names(world, path.rpartition("/")[0]):
        return None
    if len(parts) == 5:
        return _thread_file(world, process, int(parts[3]), parts[4])
    writer = WRITERS.get(parts[2]) if len(parts) == 3 else None
    return None if writer is None else lambda: writer(world, process)


def _thread_file(world: World, process: Process, thread: int, name: str) -> Content:
    if name == "stat":
        return lambda: stat_line(world, process, thread, (thread,))
    main = thread == process.pid
    return lambda: " ".join(
        str(p.pid) for p in world.jobs.processes.values() if main and p.parent == process.pid
    )


def stat_line(world: World, process: Process, number: int, threads: tuple[int, ...]) -> str:
    """52 fields of proc(5), those that nobody can ask a simulation for at 0."""
    seconds = sum(world.jobs.meter.read(str(thread), world.now) for thread in threads)
    user = int(seconds * HERTZ * USER_SHARE)
    system = int(seconds * HERTZ) - user
    started = int((86_400 + process.started) * HERTZ)
    head = f"{number} ({process.name}) {process.state(world.now)} {process.parent} "
    head += f"{process.session} {process.session} 0 -1 4194304 0 0 0 0 "
    tail = f"{user} {system} 0 0 20 0 {len(process.threads)} 0 {started} 8589934592 262144"
    return f"{head}{tail}{' 0' * 28}\n"


def _status(world: World, process: Process) -> str:
    state = {"R": "R (running)", "D": "D (disk sleep)", "S": "S (sleeping)"}
    return _lines(
        f"Name:\t{process.name}",
        f"State:\t{state[process.state(world.now)]}",
        f"Tgid:\t{process.pid}",
        f"Pid:\t{process.pid}",
        f"PPid:\t{process.parent}",
        "Uid:" + f"\t{USER}" * 4,
        "Gid:" + f"\t{USER}" * 4,
        "VmRSS:\t 1048576 kB",
        f"Threads:\t{len(process.threads)}",
        f"Cpus_allowed_list:\t0-{world.system.cpus - 1}",
    )


WRITERS: dict[str, Callable[[World, Process], str]] = {
    "stat": lambda world, process: stat_line(world, process, process.pid, process.threads),
    "comm": lambda _, process: f"{process.name}\n",
    "cmdline": lambda _, process: "".join(f"{word}\0" for word in process.command),
    "cgroup": lambda *_: f"0::{CGROUP}\n",
    "status": _status,
}
