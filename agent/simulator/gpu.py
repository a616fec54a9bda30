"""A simulated GPU: its state follows its work; counters and sample buffers follow its state."""

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from agent.simulator.loads import IDLE, GpuLoad, GpuWork
from agent.simulator.meter import StepMeter, StepRates, noise
from agent.simulator.models import ADA, BLACKWELL, HOPPER, PCIE_LANE, VOLTA, GpuModel, SystemModel


@dataclass(slots=True)
class SimulatedLink:
    """A link of a GPU. `peer` and `peer_link` are its far end, None behind an NVSwitch."""

    number: int
    peer: int | None = None
    peer_link: int | None = None
    cut: bool = False
    errors: float = 0.0  # replays per second; CRC errors come half as often again


def wire(system: SystemModel) -> list[list[SimulatedLink]]:
    """Return the links of every GPU, by number; empty lists for GPUs without NVLink."""
    model = system.model.links
    switched = model.number if model and system.switched else 0
    links = [[SimulatedLink(number) for number in range(switched)] for _ in system.buses]
    for (a, b), count in sorted(system.graph.items()):
        for _ in range(count):
            here, there = len(links[a]), len(links[b])
            links[a].append(SimulatedLink(here, b, there))
            links[b].append(SimulatedLink(there, a, here))
    return links


@dataclass(slots=True)
class GpuHealth:
    """Health of a GPU. Rates are errors a second."""

    recovery: int = 0  # the action that the driver requests
    rows_pending: bool = False
    pages_pending: bool = False
    rows: int = 0  # remapped after uncorrected errors
    pages: int = 0  # retired after double-bit errors
    corrected: float = 0.0
    replays: float = 0.0
    fabric_state: int = 3  # completed
    fabric_status: int = 0  # NVML's code with which it completed
    fabric_mask: int = 0xAA | 1 << 8  # four kinds false, nothing wrong with the configuration


SLACK = 1e-9  # s: a sample is due although floating point says that it is just not
USAGE_WINDOW = 1.0  # s, over which, from Ada on, `nvmlDeviceGetPowerUsage` averages
USAGE_UPDATE = 0.1  # s


class BufferModel(NamedTuple):
    """A buffer: how many samples it holds, and the seconds between two of them."""

    length: int
    every: float


UTILISATION = BufferModel(71, 0.2)
POWER = BufferModel(119, 0.02)

BUFFER_SECONDS = 18.0  # Seconds that any buffer reaches back: less than the counters remember


class SampleBuffers:
    """Content of the sample buffers of a GPU; times in seconds of machine time."""

    def __init__(self, model: GpuModel, index: int, meter: StepMeter) -> None:
        self._model = model
        self._index = index
        self._meter = meter
        self.begin = 0.0  # samples taken up to then are gone
        self.ripple = 0.0  # of the power, between neighbouring samples
        self.speed = 1.0  # of the clock: the reader must come back as soon as on a real machine

    def utilisation(self, now: float, seen: float) -> Iterator[tuple[float, int]]:
        """Return samples (time, percent), means over a fifth of a second each, after the time
        `seen`."""
        return (
            (at, self.percent("utilisation", at)) for at in self._moments(UTILISATION, now, seen)
        )

    def percent(self, name: str, now: float) -> int:
        at = _grid(now, UTILISATION.every)
        return min(100, round(100 * self._meter.mean(name, at - UTILISATION.every, at)))

    def power(self, now: float, seen: float) -> Iterator[tuple[float, float]]:
        """Return samples (time, watts). Samples that share a power compute it once: the sensor's
        windows touch each other, or a window covers several samples."""
        window, every = self._model.power_window, self._model.power_update
        before, joules, watts = -1.0, 0.0, 0.0
        for at in self._moments(POWER, now, seen):
            update = _grid(at, every)
            if update != before:
                follows = abs(update - before - window) < SLACK
                begin = joules if follows else self._meter.read("energy", update - window)
                before, joules = update, self._meter.read("energy", update)
                watts = self._noisy((joules - begin) / window, update)
            yield at, watts

    def watts(self, now: float) -> float:
        update = _grid(now, self._model.power_update)
        mean = self._meter.mean("energy", update - self._model.power_window, update)
        return self._noisy(mean, update)

    def _noisy(self, watts: float, update: float) -> float:
        return watts * (1.0 + self.ripple * noise(round(update / POWER.every), self._index))

    def usage(self, now: float) -> float:
        if self._model.architecture < ADA:
            return self.watts(now)
        at = _grid(now, USAGE_UPDATE)
        return self._meter.mean("energy", at - USAGE_WINDOW, at)

    def _moments(self, buffer: BufferModel, now: float, seen: float) -> Iterator[float]:
        last = int(now / buffer.every + SLACK)
        gone = int(max(0.0, seen, self.begin) / buffer.every + SLACK)
        length = max(buffer.length, min(buffer.length * self.speed, BUFFER_SECONDS / buffer.every))
        first = max(last - int(length), gone)
        return (number * buffer.every for number in range(first + 1, last + 1))


def _grid(now: float, every: float) -> float:
    return int(now / every + SLACK) * every


HEAT_LAG = 30.0  # s, first order
FEVER_LAG = 5.0  # s, after cooling has failed
AMBIENT = 27.0  # degrees Celsius at no power
RISE = 45.0  # degrees Celsius at the power limit
WIRE_PER_PAYLOAD = 412.5 / 354.4  # NVLink 4, measured on H200
FIRST_LINKS = 1 / 0.94  # NVLink 1 and 2: V100 peers were seen at 47.9 of 50 GB/s
PCIE_OVERHEAD = 1.078  # transaction layer: 20 bytes around each 256, measured
PCIE_POLLING = 1e6  # bytes per second that the agent's own questions cost
NS = 1e9
BIT_FLIPS = 0.2  # uncorrected ECC errors per second, of a memory that fails
SPREAD = 0.01  # no two boards draw the same power

IDLE_REASON, THERMAL_REASONS = 0x1, 0x8 | 0x40
"""Bits of the clock event reasons: idle; hardware slowdown, thermal."""

COUNTED_SHARES = ("activity", "sm", "occupancy", "tensor", "dram", "controller", "utilisation")
"""Parts of the load that are counted as they are: seconds of each, weighted by its share."""


@dataclass(frozen=True, slots=True)
class SimulatedGpuProcess:
    """A process on the GPU, as the driver lists it; memory in bytes. A process that `draws` does
    not compute. Processes share the GPU's time by their `turns`."""

    pid: int
    memory: int
    draws: bool = False
    turns: float = 1.0


class SimulatedGpu:
    """A simulated GPU. Times are seconds of the machine's time."""

    def __init__(self, system: SystemModel, index: int, links: list[SimulatedLink]) -> None:
        self.index = index
        self.model = system.model
        self.bus = system.buses[index]
        self.uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{system.name}/{index}')}"
        self.links = links
        self.meter = StepMeter()
        self.buffers = SampleBuffers(self.model, index, self.meter)
        self.work = IDLE
        self.processes: list[SimulatedGpuProcess] = []
        self.slow = 0.0  # s that each call takes
        self.mig = self.lost = self.remap_failed = self.flipping = False
        self.health = GpuHealth()
        self.width = self.model.lanes
        self.cut_peers: set[int] = set()
        self._origin = 0.0  # when a step began
        self._heat = (0.0, self._goal())  # when, degrees Celsius

    def settle_at_once(self, now: float) -> None:
        """Set the temperature that long work at this load leads to."""
        self._heat = (now, self._goal())

    def take(self, now: float, work: GpuWork) -> None:
        self._heat = (now, self.celsius(now))
        self.work = work
        self.buffers.ripple = work.ripple
        self._origin = now
        self.apply(now)

    def apply(self, now: float) -> None:
        if self.lost:
            self.meter.flow(now, {}, StepRates((1.0,), {}), self._origin)
            self.buffers.begin = now
            return
        steady = {
            "thermal": NS * self.work.slowed,
            "ecc": BIT_FLIPS * self.flipping,
            "ecc_corrected": self.health.corrected,
            "pcie_replays": self.health.replays,
            **self._link_errors(),
        }
        self.meter.flow(now, steady, self._steps(), self._origin)

    def _steps(self) -> StepRates:
        step = self.work.step * (self.model.pace if self.work.paced else 1.0)
        durations = [share * step for share, _ in self.work.phases]
        phases = [self._rates(load) for _, load in self.work.phases]
        rates = {name: [phase[name] for phase in phases] for name in phases[0]}
        return StepRates(durations, rates)

    def _rates(self, load: GpuLoad) -> dict[str, float]:
        slot = PCIE_LANE[self.model.pcie_generation] * self.width
        speed = self.model.links.speed if self.model.links else 0.0
        payload = load.nvlink * speed / self.wire_per_payload
        numbers = [link.number for link in self.links if self.active(link)]
        unlike = 1.0 + SPREAD * math.sin(2.1 * self.index)
        return {
            **{part: getattr(load, part) for part in COUNTED_SHARES},
            "energy": load.power * self.model.power_limit * unlike,
            "pcie_tx": PCIE_POLLING + load.transmit * slot,
            "pcie_rx": PCIE_POLLING + load.receive * slot,
            **({f"{way}{n}": payload for n in numbers for way in ("tx", "rx")} if speed else {}),
        }

    @property
    def wire_per_payload(self) -> float:
        return FIRST_LINKS if self.model.architecture <= VOLTA else WIRE_PER_PAYLOAD

    def _link_errors(self) -> dict[str, float]:
        faulty = [link for link in self.links if link.errors and self.active(link)]
        recovers = float(self.model.architecture >= BLACKWELL)  # NVLink 5 counts no replays
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
        since, before = self._heat
        lag = FEVER_LAG if self.work.overheated else HEAT_LAG
        return before + (self._goal() - before) * -math.expm1((since - now) / lag)

    def _goal(self) -> float:
        if self.work.overheated:
            return self.model.thresholds.slowdown + 1.2
        return AMBIENT + RISE * self.work.mean("power")

    @property
    def reasons(self) -> int:
        if not self.awake:
            return IDLE_REASON
        return THERMAL_REASONS if self.work.slowed else 0

    @property
    def sm_clock(self) -> int:
        """MHz, in the hardware's steps of 15."""
        clocks = self.model.clocks
        if not self.awake:
            return clocks.idle_sm
        return clocks.sm - 15 * round(clocks.sm * (1.0 - self.work.clock) / 15)

    @property
    def pcie_generation(self) -> int:
        """The present generation, which falls to 1 at rest, but not on Hopper."""
        full = self.awake or self.model.architecture >= HOPPER
        return self.model.pcie_generation if full else 1

    @property
    def memory_used(self) -> int:
        return sum(process.memory for process in self.processes)
