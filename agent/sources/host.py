"""The host: CPU cores, pressure stall information, network mounts, and the Fabric Manager. The
agent never accesses a network mount, because the access blocks if the file server is down."""

import errno
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from agent.hardware import processes
from agent.hardware.files import FileTree, absent_from, names_in, read_text, text_or_nothing
from agent.hardware.host import Host
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions

_METRICS = declared_beside(__file__)
BUSY = _METRICS["dgx_cpu_busy_ratio"]
PRESSURE = _METRICS["dgx_pressure_seconds_total"]
IO_WAIT = _METRICS["dgx_workload_io_wait_seconds"]
MOUNTS = _METRICS["dgx_workload_mounts"]
NETWORK_MOUNTS = _METRICS["dgx_workload_network_mounts"]
FABRIC_MANAGER = _METRICS["dgx_fabric_manager_running"]

MOUNT_TABLES = ("/proc/1/mounts", "/proc/mounts")
"""Mount tables of the host and of the agent. The agent's table is used only if the host's is not
readable: a service without access to /home does not see the mounts below /home."""


class CpuBusy:
    """Reads the CPU utilization since the previous read, and the time that CPUs waited for disks.
    The first read has no utilization."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._before: tuple[float, float] | None = None

    def read(self, out: ReadOutput) -> None:
        times = self._psutil.cpu_times()
        active = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is within user
        now = tuple(
            sum(getattr(times, name, 0.0) for name in names)
            for names in (("idle", "iowait"), active)
        )
        before, self._before = self._before, (now[0], now[1])
        if before is None:
            out.pending = True
            return
        out.add(IO_WAIT, getattr(times, "iowait", 0.0))
        # the kernel may slightly decrease iowait
        rested, worked = (max(0.0, new - old) for new, old in zip(now, before, strict=True))
        if rested + worked <= 0.0:
            raise Absent(Reason.UNKNOWN, "the CPU times have not moved since the last tick")
        out.add(BUSY, worked / (rested + worked))


STALLS = {"cpu": ("some",), "io": ("some", "full"), "memory": ("some", "full")}


def _pressure(files: FileTree, out: ReadOutput) -> None:
    """Read the stall time of CPU, memory, and I/O. A resource that cannot be read is absent."""
    refused = []
    for resource, kinds in STALLS.items():
        path = f"/proc/pressure/{resource}"
        try:
            totals = _totals(files, path)
        except Absent as absent:
            out.absent(PRESSURE, absent, resource)
            refused.append(absent)
            continue
        for kind in kinds:
            missing = Absent(Reason.UNKNOWN, f"{path} has no line {kind!r}")
            out.add(PRESSURE, totals.get(kind, missing), resource, kind)
    if len(refused) == len(STALLS):
        raise refused[0]


def _totals(files: FileTree, path: str) -> dict[str, float]:
    """Return the stall seconds by kind, such as `some`, from a file in /proc/pressure."""
    try:
        lines = files.read(path).strip().splitlines()
        return {line.partition(" ")[0]: int(line.rpartition("total=")[2]) / 1e6 for line in lines}
    except (ValueError, OverflowError) as error:
        why = f"{path} holds {lines!r:.99}, expected lines that end in total=<us>"
        raise Absent(Reason.UNKNOWN, why) from error
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            why = f"{path} is switched off, expected psi=1 at boot"
            raise Absent(Reason.UNSUPPORTED, why) from error
        raise absent_from(error, path) from error


def _mounts(files: FileTree, out: ReadOutput) -> None:
    host, own = MOUNT_TABLES  # hidepid or a PID namespace may hide the host's table
    lines = (text_or_nothing(files, host) or read_text(files, own)).splitlines()
    mounts = [fields for line in lines if len(fields := line.split()) > 2]
    out.add(MOUNTS, len(mounts))
    remote, kinds = Counter[str](), _METRICS.kinds[NETWORK_MOUNTS.name]
    for device, _, kind, *_ in mounts:
        fuse, _, program = kind.partition(".")
        of_fuse = fuse == "fuse" and (program or device) in kinds["fuse"]
        remote[kind] += kind in kinds["kernel"] or of_fuse
    for kind, number in sorted((+remote).items()):
        out.add(NETWORK_MOUNTS, number, kind)


SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
PID_FILE = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
KERNEL = "2", "kthreadd"  # First kernel thread, visible on all hosts but not in containers
PROGRAM = "nv-fabricmanage"  # Name as truncated by the kernel to 15 characters


class FabricService:
    """Finds the Fabric Manager's process by the PID file of its service, or among all processes."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._pid = ""

    def read(self, out: ReadOutput) -> None:
        if not names_in(self._files, SWITCHES):
            raise Absent(Reason.MISSING, f"{SWITCHES} lists no NVSwitch")
        if not self._is_roots(self._pid, PROGRAM):
            pids = [text_or_nothing(self._files, PID_FILE), *names_in(self._files, "/proc")]
            self._pid = next((pid for pid in pids if self._is_roots(pid, PROGRAM)), "")
        if not self._pid and not self._is_roots(*KERNEL):
            raise Absent(Reason.DENIED, "hidepid or a pid namespace hides what runs")
        out.add(FABRIC_MANAGER, bool(self._pid))

    def _is_roots(self, pid: str, name: str) -> bool:
        """Return whether process `pid` has the given name and runs as root."""
        if not pid.isdigit() or text_or_nothing(self._files, f"/proc/{pid}/comm") != name:
            return False
        return processes.is_roots(self._files, int(pid), name)


def reads(host: Host, options: HostOptions) -> Iterator[Read]:
    """Yield the reads of the host. Reads of CPU and pressure may run every tick, because they show
    why a GPU is starved. Other reads run less often."""
    files, busy, manager = host.files, CpuBusy(host.psutil).read, FabricService(host.files).read
    both = (MOUNTS, NETWORK_MOUNTS)
    yield Read(ReadKey("cpu", "busy"), (BUSY, IO_WAIT), busy, options.every, varies=True)
    key, stalls = ReadKey("pressure", "totals"), partial(_pressure, files)
    yield Read(key, (PRESSURE,), stalls, options.every, varies=True)
    mounts = partial(_mounts, files)
    yield Read(ReadKey("filesystem", "mounts"), both, mounts, fixed(intervals.MOUNTS))
    key = ReadKey("fabric_service", "state")
    yield Read(key, (FABRIC_MANAGER,), manager, fixed(intervals.MANAGER))
