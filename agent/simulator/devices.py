"""The host's disks, arrays, NICs, InfiniBand ports, and CPUs, with their faults and counters."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from errno import ENOENT

from agent.simulator.jobs import StorageRates
from agent.simulator.loads import HostLoad
from agent.simulator.meter import Meter
from agent.simulator.models import SystemModel

QUIET_NIC = 5e3  # bytes per second
WORD = 4  # bytes per unit of the InfiniBand data counters
TICKS = 1e6  # increase of port_xmit_wait per second, times the load above 90 %


@dataclass(slots=True)
class SimulatedDevice:
    """A device of the simulated host. A fault is present if its value in `faults` is above 0."""

    name: str
    faults: Counter[str] = field(default_factory=Counter, init=False)


@dataclass(slots=True)
class SimulatedDisk(SimulatedDevice):
    """An SSD. `speed` is its maximum rate in bytes per second."""

    model: str
    speed: float

    @property
    def nvme(self) -> bool:
        return self.name.startswith("nvme")

    @property
    def state(self) -> str:
        alive, dead = ("live", "dead") if self.nvme else ("running", "offline")
        return dead if self.faults["dead"] else alive

    @property
    def damaged(self) -> int:
        return self.faults["damaged"]


@dataclass(slots=True)
class SimulatedArray(SimulatedDevice):
    """An md array of simulated disks."""

    level: str
    members: tuple[SimulatedDisk, ...]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def striped(self) -> bool:
        """Whether the array is striped (RAID 0), so that it fails if it loses a member."""
        return self.level == "raid0"

    @property
    def damaged(self) -> int:
        return max(disk.damaged for disk in self.members)


@dataclass(slots=True)
class SimulatedNic(SimulatedDevice):
    """An Ethernet port. As in the kernel, its speed is -1 if there is no carrier."""

    megabits: int

    @property
    def speed(self) -> int:
        return self.megabits // 10 if self.faults["slow"] else self.megabits

    @property
    def limit(self) -> float:
        """The capacity of the port in bytes per second."""
        return max(0, self.speed) * 1e6 / 8

    @property
    def state(self) -> str:
        return "up" if self.limit else "down"


@dataclass(slots=True)
class SimulatedHca(SimulatedDevice):
    """An InfiniBand port. If it has the fault `slow`, its rate is `lower`."""

    usual: str
    lower: str

    @property
    def rate(self) -> str:
        return self.lower if self.faults["slow"] else self.usual

    @property
    def state(self) -> str:
        return "1: DOWN" if self.faults["down"] else "4: ACTIVE"

    @property
    def physical_state(self) -> str:
        return "2: Polling" if self.faults["down"] else "5: LinkUp"


class SimulatedDevices(SimulatedDevice):
    """All devices of a host. The meter counts the bytes of disks and ports, CPU time, and stall
    time. `faults` contains the faults of the chassis and of the Fabric Manager."""

    def __init__(self, system: SystemModel) -> None:
        super().__init__("host")
        self.cpus = system.cpus
        self.load = HostLoad()
        self.meter = Meter()
        self.disks: list[SimulatedDisk] = []
        self.arrays: list[SimulatedArray] = []
        for group in system.disks:
            members = tuple(SimulatedDisk(n, group.model, group.speed) for n in group.names)
            self.disks += members
            if group.array:
                self.arrays.append(SimulatedArray(group.array.name, group.array.level, members))
        self.nics = [SimulatedNic(nic.name, nic.megabits) for nic in system.nics]
        self.hcas: list[SimulatedHca] = []
        if ports := system.hcas:
            names = (f"mlx5_{number}" for number in range(ports.number))
            self.hcas = [SimulatedHca(name, ports.rate, ports.lower) for name in names]
        self.ports = [*self.hcas, *self.nics]
        of_data = [array.members for array in self.arrays if array.name == system.data]
        named = tuple(disk for disk in self.disks if disk.name == system.data)
        self.data_disks = of_data[0] if of_data else named
        self.meter.flow(0.0, {})
        for disk in self.disks:
            for flow, amount in (("read", 5e9), ("write", 2e10), ("busy", 60.0)):
                self.meter.add(f"{flow}:{disk.name}", amount)

    @property
    def service(self) -> str:
        """Name of the Fabric Manager's process. Raise FileNotFoundError if it has ended."""
        if self.faults["fabric"]:
            raise FileNotFoundError(ENOENT, "No such process")
        return "nv-fabricmanage"

    def storage(self) -> StorageRates:
        load, disks = self.load, sum(disk.speed for disk in self.data_disks)
        local = load.disk * disks
        shared = load.network * self.nics[0].limit if load.mounted else 0.0
        return StorageRates(local + shared, load.written * disks, local)

    def apply(self, now: float, cores: float, blocked: float) -> None:
        rates = (*self._disks(), *self._ports(), *self._cpus(cores, blocked))
        self.meter.flow(now, dict(rates))

    def _disks(self) -> Iterator[tuple[str, float]]:
        for disk in self.disks:
            of_data = disk.speed if disk in self.data_disks else 0.0
            read = max(2e4, self.load.disk * of_data)  # with background I/O
            written = max(2e5, self.load.written * of_data)
            yield f"read:{disk.name}", read
            yield f"write:{disk.name}", written
            full = min(0.99, (read + written) / disk.speed)
            yield f"busy:{disk.name}", 0.001 + full

    def _ports(self) -> Iterator[tuple[str, float]]:
        for nic in (nic for nic in self.nics if nic.limit):
            share = self.load.network if nic is self.nics[0] else 0.0
            yield f"recv:{nic.name}", max(QUIET_NIC, share * nic.limit)
            yield f"send:{nic.name}", QUIET_NIC + 0.01 * share * nic.limit
        share = self.load.infiniband
        for hca in self.hcas:
            gigabits = float(hca.rate.split()[0])
            rate = max(1e3, share * gigabits * 1e9 / 8)
            yield f"xmit:{hca.name}", rate / WORD
            yield f"rcv:{hca.name}", rate / WORD
            yield f"wait:{hca.name}", TICKS * max(0.0, share - 0.9)
            yield f"symbol_error:{hca.name}", hca.faults["errors"]

    def _cpus(self, cores: float, blocked: float) -> Iterator[tuple[str, float]]:
        cpus = self.cpus
        busy = min(cpus, cores + 0.01 * cpus)  # 1 % for the system itself
        waiting = min(cpus - busy, blocked)
        yield "cpu:user", 0.85 * busy
        yield "cpu:system", 0.15 * busy
        yield "cpu:iowait", waiting
        yield "cpu:idle", cpus - busy - waiting
        yield "cpu:some", self.load.cpu_pressure * 1e6
        yield "io:some", self.load.io_pressure * 1e6
        yield "io:full", self.load.io_pressure * 1e6
