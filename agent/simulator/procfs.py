"""/proc of the simulated host: mounts, arrays, CPU time, pressure."""

from collections.abc import Callable
from functools import partial

from agent.simulator.gpu import SimulatedGpu
from agent.simulator.machine import Machine
from agent.simulator.system_models import ArrayModel, address
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


def tree(machine: Machine) -> dict[str, Content]:
    """Path to content, for all that is no process."""
    pressure = {
        f"/proc/pressure/{resource}": pressure_file(machine, resource)
        for resource in ("cpu", "io", "memory")
    }
    return {
        **{_driver(gpu): partial(_gpu_information, gpu) for gpu in machine.gpus},
        "/proc/sys/kernel/hostname": lambda: f"{machine.system.name}\n",
        "/proc/stat": lambda: _stat(machine),
        "/proc/meminfo": lambda: _meminfo(machine),
        "/proc/loadavg": lambda: _loadavg(machine),
        "/proc/mounts": lambda: lines(*mounts(machine)),
        "/proc/mdstat": lambda: _mdstat(machine.system.arrays),
        "/proc/uptime": lambda: f"{86_400 + machine.now:.2f} {86_400 + machine.now:.2f}\n",
        **pressure,
    }


def _driver(gpu: SimulatedGpu) -> str:
    return f"/proc/driver/nvidia/gpus/{address(gpu.bus)}/information"


def _gpu_information(gpu: SimulatedGpu) -> str:
    return lines(f"GPU UUID: \t {gpu.uuid}", f"Device Minor: \t {gpu.index}")


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


def _stat(machine: Machine) -> str:
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
