"""The host's counters for disks, NICs, InfiniBand ports, CPU time, and pressure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from agent.simulator.jobs import StorageRates
from agent.simulator.loads import HostLoad
from agent.simulator.meter import CounterMeter
from agent.simulator.models import HcaModel, NicModel, SystemModel

BACKGROUND = 0.01  # Share of every CPU used by the system itself

BOOT_READ, BOOT_WRITE = 2e4, 2e5  # Bytes per second on disks without training data
QUIET_BUSY = 0.001  # Share of time for which a disk is busy with background I/O
AT_START = {"read": 5e9, "write": 2e10, "busy": 60.0}
"""Counters of every disk at the start of the simulation."""

QUIET_NIC = 5e3  # bytes per second
QUIET_PORT = 1e3
WORD = 4  # bytes per unit of the InfiniBand data counters
TICKS = 1e6  # increase of port_xmit_wait per second, times the load above 90 %
PRESSURE_KINDS = ("some", "full")


@dataclass(slots=True)
class HostHealth:
    """Health of the host, excluding its GPUs."""

    fabric_service: bool = True
    dead_disks: set[str] = field(default_factory=set)
    hot_disks: set[str] = field(default_factory=set)
    failing_disks: set[str] = field(default_factory=set)  # according to SMART
    damaged: set[str] = field(default_factory=set)  # volumes with file system errors
    lost_members: int = 0  # lost members of the first redundant array
    fan_failed: bool = False
    supply_failed: bool = False
    port_down: bool = False  # the first InfiniBand port
    slow_port: bool = False  # the first InfiniBand port, or the first NIC if there is none
    symbol_errors: float = 0.0  # per second, on the first InfiniBand port


class SimulatedTraffic:
    """Host traffic: bytes of disks and ports, CPU time, and stall time."""

    def __init__(self, system: SystemModel) -> None:
        self.system = system
        self.load = HostLoad()
        self.health = HostHealth()
        self.meter = CounterMeter()
        for disk in system.disks:
            for flow, amount in AT_START.items():
                self.meter.add(f"{flow}:{disk.name}", amount)

    def read(self, name: str, now: float) -> float:
        """Return a counter at time `now` (s). For example, `read:sda`, `recv:eno1`, and
        `xmit:mlx5_0` are in bytes, `busy:sda` and `cpu:user` in seconds, and `io:some` in us."""
        return self.meter.read(name, now)

    def storage(self) -> StorageRates:
        load, disks = self.load, sum(disk.speed for disk in self.system.data_disks)
        local = load.disk * disks
        shared = load.network * self._limit(self.system.nics[0]) if load.mounted else 0.0
        return StorageRates(local + shared, load.written * disks, local)

    def apply(self, now: float, cores: float, blocked: float) -> None:
        parts = (self._disks(), self._nics(), self._hcas(), self._cpus(cores, blocked))
        self.meter.flow(now, dict(chain(*parts)))

    def speed(self, nic: NicModel) -> int | None:
        slow = self.health.slow_port and not self.system.hcas and nic == self.system.nics[0]
        return nic.megabits // 10 if slow and nic.megabits else nic.megabits

    def rate(self, hca: HcaModel) -> str:
        return hca.lower if self.health.slow_port and hca == self.system.hcas[0] else hca.rate

    def is_down(self, hca: HcaModel) -> bool:
        return self.health.port_down and hca == self.system.hcas[0]

    def _disks(self) -> Iterator[tuple[str, float]]:
        data = self.system.data_disks
        for disk in self.system.disks:
            of_data = disk.speed if disk in data else 0.0
            read = max(BOOT_READ, self.load.disk * of_data)
            written = max(BOOT_WRITE, self.load.written * of_data)
            yield f"read:{disk.name}", read
            yield f"write:{disk.name}", written
            full = min(0.99, (read + written) / disk.speed)
            yield f"busy:{disk.name}", QUIET_BUSY + full

    def _limit(self, nic: NicModel) -> float:
        return (self.speed(nic) or 0) * 1e6 / 8

    def _nics(self) -> Iterator[tuple[str, float]]:
        for nic in self.system.nics:
            limit = self._limit(nic)
            if limit:
                share = self.load.network if nic == self.system.nics[0] else 0.0
                yield f"recv:{nic.name}", max(QUIET_NIC, share * limit)
                yield f"send:{nic.name}", QUIET_NIC + 0.01 * share * limit

    def _hcas(self) -> Iterator[tuple[str, float]]:
        share = self.load.infiniband
        for hca in self.system.hcas:
            gigabits = float(self.rate(hca).split()[0])
            rate = max(QUIET_PORT, share * gigabits * 1e9 / 8)
            yield f"xmit:{hca.name}", rate
            yield f"rcv:{hca.name}", rate
            yield f"wait:{hca.name}", TICKS * max(0.0, share - 0.9)
        if self.system.hcas:
            yield f"symbol_error:{self.system.hcas[0].name}", self.health.symbol_errors

    def _cpus(self, cores: float, blocked: float) -> Iterator[tuple[str, float]]:
        cpus = self.system.cpus
        busy = min(cpus, cores + BACKGROUND * cpus)
        waiting = min(cpus - busy, blocked)
        yield "cpu:user", 0.85 * busy
        yield "cpu:system", 0.15 * busy
        yield "cpu:iowait", waiting
        yield "cpu:idle", cpus - busy - waiting
        yield "cpu:some", self.load.cpu_pressure * 1e6
        for kind in PRESSURE_KINDS:
            yield f"io:{kind}", self.load.io_pressure * 1e6
