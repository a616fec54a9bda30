"""/sys/fs/cgroup (version 2) of the simulated host: the session in which the job runs."""

from agent.simulator.machine import Machine
from agent.simulator.process_files import CGROUP, USER_SHARE
from agent.simulator.procfs import Content, lines, pressure_file
from agent.simulator.sysfs import device_number

ROOT = "/sys/fs/cgroup"
READ_SIZE, WRITE_SIZE = 131_072, 16_384  # bytes of a usual request


def tree(machine: Machine) -> dict[str, Content]:
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
