"""A simulated GPU. Its load determines its state, its counters, and its sample buffers."""

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from agent.simulator.driver import ANSWERED, NOT_SUPPORTED, SimulatedDriver
from agent.simulator.loads import IDLE, GpuLoad, GpuWork
from agent.simulator.meter import Meter, StepRates, noise
from agent.simulator.models import PCIE_LANE, Architecture, GpuModel, SystemModel, address, meets


@dataclass(slots=True)
class SimulatedLink:
    """An NVLink of a GPU. `peer` and `peer_link` are the indices of the remote GPU and of its link,
    or None if the link ends at an NVSwitch."""

    number: int
    peer: int | None = None
    peer_link: int | None = None
    cut: bool = False
    errors: float = 0.0  # replays per second; CRC errors occur 1.5 times as often


def wire(system: SystemModel) -> list[list[SimulatedLink]]:
    """Return a list of the NVLinks of each GPU, in the order of link numbers."""
    model = system.model.links
    switched = model.number if model and system.switched else 0
    links = [[SimulatedLink(number) for number in range(switched)] for _ in system.buses]
    for a, b, count in system.nvlinks:
        for _ in range(count):
            here, there = len(links[a]), len(links[b])
            links[a].append(SimulatedLink(here, b, there))
            links[b].append(SimulatedLink(there, a, here))
    return links


JOINED = 3  # state of the fabric in which a GPU may use its links


@dataclass(slots=True)
class GpuHealth:
    """The faults of a GPU. Rates are in errors per second."""

    recovery: int = 0  # recovery action that the driver requests
    rows_pending: bool = False
    pages_pending: bool = False
    rows: int = 0  # remapped after uncorrected errors
    pages: int = 0  # retired after double-bit errors
    corrected: float = 0.0
    replays: float = 0.0
    fabric_state: int = JOINED
    fabric_status: int = 0  # NVML return code of the registration
    fabric_mask: int = 0xAA | 1 << 8  # four conditions false, and a correct configuration


SLACK = 1e-9  # s, tolerance for floating-point errors in sample times


class BufferModel(NamedTuple):
    """A sample buffer of the driver: its length in samples, and its sampling interval (s)."""

    length: int
    every: float


UTILISATION = BufferModel(71, 0.2)
POWER = BufferModel(119, 0.02)


class SampleBuffers:
    """The sample buffers of a GPU. Times are in seconds since the simulation began."""

    def __init__(self, model: GpuModel, index: int, meter: Meter) -> None:
        self._model = model
        self._index = index
        self._meter = meter
        self.begin = 0.0  # samples up to this time are lost
        self.ripple = 0.0  # relative power noise between adjacent samples
        self.speed = 1.0  # clock speed; buffers grow with it to span the same wall-clock time

    def utilisation(self, now: float, seen: float) -> Iterator[tuple[float, int]]:
        """Return the (time, percent) samples later than `seen`. Each is a mean over 0.2 s."""
        moments = self._moments(UTILISATION, now, seen)
        return ((at, self.percent("utilisation", at)) for at in moments)

    def percent(self, name: str, now: float) -> int:
        at = _grid(now, UTILISATION.every)
        return min(100, round(100 * self._meter.mean(name, at - UTILISATION.every, at)))

    def power(self, now: float, seen: float) -> Iterator[tuple[float, float]]:
        """Return the (time, watts) samples later than `seen`."""
        return ((at, self.watts(at)) for at in self._moments(POWER, now, seen))

    def watts(self, now: float) -> float:
        update = _grid(now, self._model.power_update)
        mean = self._meter.mean("energy", update - self._model.power_window, update)
        return mean * (1.0 + self.ripple * noise(round(update / POWER.every), self._index))

    def usage(self, now: float) -> float:
        """Return the power usage. Ada and newer GPUs average it over a second."""
        if self._model.architecture < Architecture.ADA:
            return self.watts(now)
        at = _grid(now, 0.1)
        return self._meter.mean("energy", at - 1.0, at)

    def _moments(self, buffer: BufferModel, now: float, seen: float) -> Iterator[float]:
        last = int(now / buffer.every + SLACK)
        gone = int(max(0.0, seen, self.begin) / buffer.every + SLACK)
        # A buffer spans at most 18 s, less than the counter history.
        length = max(buffer.length, min(buffer.length * self.speed, 18.0 / buffer.every))
        first = max(last - int(length), gone)
        return (number * buffer.every for number in range(first + 1, last + 1))


def _grid(now: float, every: float) -> float:
    return int(now / every + SLACK) * every


WIRE_PER_PAYLOAD = 412.5 / 354.4  # NVLink 4, measured on H200
BESIDE_WORK = 1.7  # the same ratio while kernels compute, measured on H100 and H200
FIRST_LINKS = 1 / 0.94  # NVLink 1 and 2; V100 peers reached 47.9 of 50 GB/s
PCIE_OVERHEAD = 1.078  # measured overhead of the transaction layer, 20 bytes per 256 bytes
PCIE_POLLING = 1e6  # bytes per second caused by the agent's own queries

COUNTED_SHARES = ("activity", "sm", "occupancy", "tensor", "dram", "controller", "utilisation")
"""Attributes of `GpuLoad` that are shares. The meter integrates each share over time."""


@dataclass(frozen=True, slots=True)
class SimulatedGpuProcess:
    """A process that the driver lists for a GPU. Memory is in bytes. If `draws` is true, the
    process only renders graphics. A process's share of GPU time is proportional to `turns`."""

    pid: int
    memory: int
    draws: bool = False
    turns: float = 1.0


class SimulatedGpu:
    """A simulated GPU. Times are in seconds since the simulation began."""

    def __init__(
        self, system: SystemModel, driver: SimulatedDriver, index: int, links: list[SimulatedLink]
    ) -> None:
        self.driver = driver
        self.index = index
        self.model = system.model
        self.chassis_serial = b"1820000000001" if system.rack else b""  # as on a GB200
        self.bus = system.buses[index]
        self.address = address(self.bus)
        self.uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{system.name}/{index}')}"
        self.links = links
        self.meter = Meter()
        self.buffers = SampleBuffers(self.model, index, self.meter)
        self.work = IDLE
        self.processes: list[SimulatedGpuProcess] = []
        self.repair()
        self._origin = 0.0  # start time of a step
        self.heat = (0.0, self.goal())  # time, degrees Celsius

    def repair(self) -> None:
        self.slow = 0.0  # s, duration of each call
        self.mig = self.lost = self.remap_failed = self.flipping = False
        self.health = GpuHealth()
        self.width = self.model.lanes
        self.cut_peers: set[int] = set()
        for link in self.links:
            link.cut, link.errors = False, 0.0

    def supports(self, of: str) -> bool:
        """Return whether the GPU meets all conditions in `of` (see `meets`)."""
        return meets(of, self.model, self)

    @property
    def counts_nvlink(self) -> bool:
        """Whether the driver counts NVLink payload: since 465 only with a GPU System Processor."""
        newest = self.model.architecture >= Architecture.AMPERE
        return self.model.links is not None and (newest or self.driver.numbers < (465,))

    def link_code(self, link: int) -> int:
        number = self.model.links.number if self.model.links else 0
        return ANSWERED if 0 <= link < number else NOT_SUPPORTED

    def take(self, now: float, work: GpuWork) -> None:
        self.heat = (now, self.celsius(now))
        self.work = work
        self.buffers.ripple = work.ripple
        self._origin = now
        self.apply(now)

    def apply(self, now: float) -> None:
        if self.lost:
            self.meter.flow(now, {})
            self.buffers.begin = now
            return
        steady = {
            "thermal": 1e9 * self.work.slowed,
            "ecc": 0.2 * self.flipping,
            "ecc_corrected": self.health.corrected,
            "pcie_replays": self.health.replays,
            **self._link_errors(),
        }
        step = self.work.step * (self.model.pace if self.work.paced else 1.0)
        durations = [share * step for share, _ in self.work.phases]
        phases = [self._rates(load) for _, load in self.work.phases]
        rates = {name: [phase[name] for phase in phases] for name in phases[0]}
        self.meter.flow(now, steady, StepRates(durations, rates), self._origin)

    def _rates(self, load: GpuLoad) -> dict[str, float]:
        slot = PCIE_LANE[self.model.pcie_generation] * self.width
        speed = self.model.links.speed if self.model.links else 0.0
        alone = FIRST_LINKS if self.model.architecture <= Architecture.VOLTA else WIRE_PER_PAYLOAD
        payload = load.nvlink * speed / alone if self.health.fabric_state == JOINED else 0.0
        wire = payload * (BESIDE_WORK if load.tensor else alone)
        numbers = [link.number for link in self.links if self.active(link)]
        unlike = 1.0 + 0.01 * math.sin(2.1 * self.index)
        return {
            **{part: getattr(load, part) for part in COUNTED_SHARES},
            "energy": load.power * self.model.power_limit * unlike,
            "pcie_tx": PCIE_POLLING + load.transmit * slot,
            "pcie_rx": PCIE_POLLING + load.receive * slot,
            **{f"{way}{n}": payload for n in numbers for way in ("tx", "rx") if speed},
            **{f"wire_{way}{n}": wire for n in numbers for way in ("tx", "rx") if speed},
        }

    def _link_errors(self) -> dict[str, float]:
        faulty = [link for link in self.links if link.errors and self.active(link)]
        # NVLink 5 does not count replays
        recovers = float(self.model.architecture >= Architecture.BLACKWELL)
        return {
            f"{kind}{link.number}": often * link.errors
            for link in faulty
            for kind, often in (("replay", 1.0), ("crc", 1.5), ("recovery", recovers))
        }

    def active(self, link: SimulatedLink) -> bool:
        return not link.cut and link.peer not in self.cut_peers

    @property
    def awake(self) -> bool:
        return bool(self.processes) or self.work.mean("utilisation") > 0

    def celsius(self, now: float) -> float:
        since, before = self.heat
        lag = 5.0 if self.work.overheated else 30.0  # s
        return before + (self.goal() - before) * -math.expm1((since - now) / lag)

    def goal(self) -> float:
        if self.work.overheated:
            return self.model.thresholds.slowdown + 1.2
        if self.work.slowed:
            return self.model.thresholds.slowdown - 8.0  # degrees Celsius
        return 27.0 + 45.0 * self.work.mean("power")

    @property
    def reasons(self) -> int:
        """The clock event reason bits: GPU idle, or thermal hardware slowdown."""
        if not self.awake:
            return 0x1
        return 0x8 | 0x40 if self.work.slowed else 0

    @property
    def sm_clock(self) -> int:
        """The SM clock in MHz. As in hardware, it is a multiple of 15 MHz."""
        clocks = self.model.clocks
        if not self.awake:
            return clocks.idle_sm
        return clocks.sm - 15 * round(clocks.sm * (1.0 - self.work.clock) / 15)

    @property
    def pcie_generation(self) -> int:
        """The current PCIe generation. GPUs older than Hopper fall back to 1 while idle."""
        full = self.awake or self.model.architecture >= Architecture.HOPPER
        return self.model.pcie_generation if full else 1

    @property
    def memory_used(self) -> int:
        return sum(process.memory for process in self.processes)
