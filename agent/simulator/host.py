"""psutil of the simulated host."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from agent.simulator.machine import Machine
from agent.simulator.system_models import ArrayModel, DiskModel

SECTOR = 512
READ_SIZE, WRITE_SIZE = 131_072, 16_384  # bytes of a usual request
PACKET = 1500
MTU = 1500
LOOPBACK = "lo"


class SimulatedDiskCounters(NamedTuple):
    """As psutil's: bytes, requests, milliseconds."""

    read_count: int
    write_count: int
    read_bytes: int
    write_bytes: int
    read_time: int
    write_time: int
    read_merged_count: int
    write_merged_count: int
    busy_time: int


class SimulatedNicCounters(NamedTuple):
    """As psutil's."""

    bytes_sent: int
    bytes_recv: int
    packets_sent: int
    packets_recv: int
    errin: int = 0
    errout: int = 0
    dropin: int = 0
    dropout: int = 0


class SimulatedNicStats(NamedTuple):
    """As psutil's; speed in Mbit/s, 0 where unknown."""

    isup: bool
    duplex: int
    speed: int
    mtu: int
    flags: str


class SimulatedCpuTimes(NamedTuple):
    """As psutil's: seconds since boot, of all CPUs together."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float = 0.0
    softirq: float = 0.0
    steal: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


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
        busy = int(self._read(f"busy:{disk.name}") * 1000)
        return SimulatedDiskCounters(
            read_count=int(read / READ_SIZE),
            write_count=int(write / WRITE_SIZE),
            read_bytes=int(read / SECTOR) * SECTOR,
            write_bytes=int(write / SECTOR) * SECTOR,
            read_time=busy,
            write_time=busy // 10,
            read_merged_count=0,
            write_merged_count=0,
            busy_time=busy,
        )

    def net_io_counters(self, pernic: bool = True, nowrap: bool = True) -> Mapping[str, Any]:
        with self._machine.lock:
            self._machine.advance()
            names = (nic.name for nic in self._machine.system.nics)
            return {
                LOOPBACK: SimulatedNicCounters(0, 0, 0, 0),
                **{name: self._nic(name) for name in names},
            }

    def _nic(self, name: str) -> SimulatedNicCounters:
        sent, received = int(self._read(f"send:{name}")), int(self._read(f"recv:{name}"))
        return SimulatedNicCounters(sent, received, sent // PACKET, received // PACKET)

    def net_if_stats(self) -> Mapping[str, Any]:
        self._machine.advance()
        stats = {LOOPBACK: SimulatedNicStats(True, 0, 0, 65_536, "up,loopback,running")}
        for nic in self._machine.system.nics:
            speed = self._machine.traffic.speed(nic)
            flags = "up,broadcast,running,multicast" if speed else "up,broadcast,multicast"
            stats[nic.name] = SimulatedNicStats(bool(speed), 2, speed or 0, MTU, flags)
        return stats

    def cpu_times(self) -> SimulatedCpuTimes:
        with self._machine.lock:
            self._machine.advance()
            user, system, idle, iowait = map(
                self._read, ("cpu:user", "cpu:system", "cpu:idle", "cpu:iowait")
            )
        return SimulatedCpuTimes(user=user, nice=0.0, system=system, idle=idle, iowait=iowait)

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
        return total._replace(busy_time=busy, read_time=busy)
    return total._replace(busy_time=busy, write_bytes=one.write_bytes, write_count=one.write_count)
