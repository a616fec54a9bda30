"""psutil, Slurm, udisks2 and NCCL's RAS service of the simulated host."""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from agent.hardware.nccl import NcclAnswer, RasRequest, RasRound
from agent.hardware.schedulers import NoSchedulers
from agent.model import Absent, Reason
from agent.simulator.jobs import LOGIN, USER
from agent.simulator.machine import Machine
from agent.simulator.models import ArrayModel, DiskModel
from agent.simulator.traffic import REQUEST

SECTOR = 512
LOOPBACK = "lo"


SimulatedDiskCounters = namedtuple(
    "SimulatedDiskCounters",
    "read_bytes write_bytes busy_time read_count write_count read_time write_time",
)  # bytes, milliseconds
SimulatedNicCounters = namedtuple("SimulatedNicCounters", "bytes_sent bytes_recv")
SimulatedCpuTimes = namedtuple("SimulatedCpuTimes", "user system idle iowait")  # s, of all CPUs


class SimulatedPsutil:
    """The functions of psutil in use, over the machine's counters."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def disk_io_counters(self, perdisk: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        with self._machine.lock:
            self._machine.advance()
            system = self._machine.system
            disks = {disk.name: self._disk(disk) for disk in system.disks}
            boot = system.disks[0].name
            partition = f"{boot}p1" if boot[-1].isdigit() else f"{boot}1"
            arrays = {array.name: _together(array, disks) for array in system.arrays}
            return {**disks, partition: disks[boot], **arrays}

    def _disk(self, disk: DiskModel) -> SimulatedDiskCounters:
        read, write = self._read(f"read:{disk.name}"), self._read(f"write:{disk.name}")
        return SimulatedDiskCounters(
            read_bytes=int(read / SECTOR) * SECTOR,
            write_bytes=int(write / SECTOR) * SECTOR,
            busy_time=self._milliseconds("busy", disk),
            read_count=int(read / REQUEST),
            write_count=int(write / REQUEST),
            read_time=self._milliseconds("read_time", disk),
            write_time=self._milliseconds("write_time", disk),
        )

    def _milliseconds(self, counter: str, disk: DiskModel) -> int:
        return int(self._read(f"{counter}:{disk.name}") * 1000)

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
    """An array from its members: a mirror writes everything to each of them, and counts it once."""
    members = [disks[disk.name] for disk in array.members]
    total = SimulatedDiskCounters(*(sum(column) for column in zip(*members, strict=True)))
    one = members[0]
    busy = max(member.busy_time for member in members)
    if array.striped:
        return total._replace(busy_time=busy)
    once = {name: getattr(one, name) for name in ("write_bytes", "write_count", "write_time")}
    return total._replace(busy_time=busy, **once)


class SimulatedSlurm(NoSchedulers):
    """One job, which was given the last GPU; no one runs what it would."""

    def __init__(self, machine: Machine) -> None:
        self._gpus = len(machine.gpus)

    def slurm(self, host: str) -> list[str]:
        who = f"JobId=4711 UserId={LOGIN}({USER}) Account=vision Partition=gpu"
        return [f"{who} Nodes={host} GRES=gpu:1(IDX:{self._gpus - 1})"]


class SimulatedSmart:
    """SMART data of the disks of a simulated machine, as udisks2 would report it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def failing(self) -> dict[str, bool]:
        broken = self._machine.host_health.failing_disks
        return {disk.name: disk.name in broken for disk in self._machine.system.disks}


class SimulatedRas:
    """NCCL's RAS service of a simulated machine, without its socket and its forms."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def read(self, request: RasRequest) -> RasRound:
        found = self._machine.communicator()
        if found is None:
            return RasRound(failure=Absent(Reason.MISSING, "no job listens"))
        return RasRound((NcclAnswer((found,)),), believed=frozenset(request.processes))
