"""The host's counters: disks, NICs, InfiniBand ports, CPU time and pressure."""

import math
from collections.abc import Iterator

from agent.backends.simulated.loads import HostLoad
from agent.backends.simulated.meter import Meter
from agent.backends.simulated.systems import Disk, Hca, Nic, System

BACKGROUND = 0.01
"""Share of every CPU that the system itself uses."""

BOOT_READ, BOOT_WRITE = 2e4, 2e5  # bytes per second on disks without training data
QUIET_BUSY = 0.001  # share of time that a disk is busy with those
PAST = {"read": 5e9, "write": 2e10, "busy": 60.0}
"""What every disk has counted since boot, before the simulation began."""

QUIET_NIC = 5e3  # bytes per second
QUIET_PORT = 1e3
WORD = 4  # bytes in the unit of InfiniBand's data counters
TICKS = 1e6  # port_xmit_wait per second, of a port that is full
PRESSURE_KINDS = ("some", "full")


class Traffic:
    """What flows through the host; rates follow the load, with a little wobble each second."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.load = HostLoad()
        self.meter = Meter()
        self.slow_port = False
        self.cores = 0.0
        self.stuck = 0.0
        for disk in system.disks:
            for flow, amount in PAST.items():
                self.meter.add(f"{flow}:{disk.name}", amount)

    def apply(self, now: float, cores: float, stuck: float) -> None:
        """Go on at the rates of the load; `cores` and `stuck` are what the processes use."""
        self.cores, self.stuck = cores, stuck
        noise = 1.0 + 0.01 * math.sin(0.9 * int(now))
        rates: dict[str, float] = {}
        for part in (self._disks, self._nics, self._hcas, self._cpus):
            rates.update(part(noise))
        self.meter.flow(now, rates)

    def speed(self, nic: Nic) -> int | None:
        """Mbit/s as negotiated, None without carrier."""
        slow = self.slow_port and not self.system.hcas and nic == self.system.nics[0]
        return nic.megabits // 10 if slow and nic.megabits else nic.megabits

    def rate(self, hca: Hca) -> str:
        """The port's rate, in the words of its file."""
        return hca.lower if self._slow(hca) else hca.rate

    def _slow(self, hca: Hca) -> bool:
        return self.slow_port and hca == self.system.hcas[0]

    def data_disks(self) -> tuple[Disk, ...]:
        """The disks that hold the training data."""
        system = self.system
        of_array = (a.members for a in system.arrays if a.name == system.data)
        return next(of_array, tuple(d for d in system.disks if d.name == system.data))

    def _disks(self, noise: float) -> Iterator[tuple[str, float]]:
        data = self.data_disks()
        for disk in self.system.disks:
            read, write = BOOT_READ, BOOT_WRITE
            if disk in data:
                read = max(read, min(1.0, self.load.disk * noise) * disk.speed)
            yield f"read:{disk.name}", read
            yield f"write:{disk.name}", write
            yield f"busy:{disk.name}", QUIET_BUSY + min(0.99, (read + write) / disk.speed)

    def _nics(self, noise: float) -> Iterator[tuple[str, float]]:
        for nic in self.system.nics:
            limit = (self.speed(nic) or 0) * 1e6 / 8
            if limit:
                share = self.load.network * noise if nic == self.system.nics[0] else 0.0
                yield f"recv:{nic.name}", max(QUIET_NIC, min(1.0, share) * limit)
                yield f"send:{nic.name}", QUIET_NIC + 0.01 * share * limit

    def _hcas(self, noise: float) -> Iterator[tuple[str, float]]:
        for hca in self.system.hcas:
            share = min(1.0, self.load.infiniband * noise)
            gigabits = float(self.rate(hca).split()[0])
            rate = max(QUIET_PORT, share * gigabits * 1e9 / 8)
            yield f"xmit:{hca.name}", rate
            yield f"rcv:{hca.name}", rate
            yield f"wait:{hca.name}", TICKS * max(0.0, share - 0.9)

    def _cpus(self, _noise: float) -> Iterator[tuple[str, float]]:
        cpus = self.system.cpus
        busy = min(cpus, self.cores + BACKGROUND * cpus)
        waiting = min(cpus - busy, self.stuck)
        yield "cpu:user", 0.85 * busy
        yield "cpu:system", 0.15 * busy
        yield "cpu:iowait", waiting
        yield "cpu:idle", cpus - busy - waiting
        for resource, share in self.pressures().items():
            for kind in PRESSURE_KINDS if resource != "cpu" else PRESSURE_KINDS[:1]:
                yield f"{resource}:{kind}", share * 1e6

    def pressures(self) -> dict[str, float]:
        """Share of time that somebody waits, by resource."""
        return {"cpu": self.load.cpu_pressure, "io": self.load.io_pressure, "memory": 0.0}
