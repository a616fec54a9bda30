"""One simulated GPU: its state follows its load, and its counters follow its state."""

import math
import uuid
from dataclasses import dataclass

from agent.backends.simulated.links import Link
from agent.backends.simulated.loads import IDLE, Load
from agent.backends.simulated.meter import Meter
from agent.backends.simulated.rings import Rings
from agent.backends.simulated.silicon import HOPPER, PCIE_LANE, VOLTA
from agent.backends.simulated.systems import System

STEP = 0.2
POWER_LAG = 0.3  # s, first order
HEAT_LAG = 30.0
FEVER_LAG = 5.0  # s, where cooling has failed
AMBIENT = 27.0  # degrees Celsius at no power
RISE = 45.0  # degrees Celsius at the power limit
WIRE_PER_PAYLOAD = 412.5 / 354.4  # NVLink 4, measured on H200
FIRST_LINKS = 1 / 0.94  # NVLink 1 and 2: V100 peers were seen at 47.9 of 50 GB/s
PCIE_OVERHEAD = 1.078  # transaction layer: 20 bytes around each 256, measured
LANES = 16
NS = 1e9
BIT_FLIPS = 0.2  # uncorrected ECC errors per second, of a memory that fails

IDLE_REASON, THERMAL_REASONS = 0x1, 0x8 | 0x40
"""Bits of the clock event reasons: idle; hardware slowdown, thermal."""


def wobble(step: int, index: int) -> float:
    """A factor near 1 that is never quite the same, and the same in every run."""
    return 1.0 + 0.009 * math.sin(1.7 * step + 2.1 * index) + 0.006 * math.sin(0.31 * step + index)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on the GPU, as the driver lists it; memory in bytes."""

    pid: int
    memory: int


class Gpu:
    """One GPU. The world calls `step` every 0.2 s of its time."""

    def __init__(self, system: System, index: int, links: list[Link]) -> None:
        self.index = index
        self.model = system.model
        self.bus = system.buses[index]
        self.uuid = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{system.name}/{index}')}"
        self.links = links
        self.meter = Meter()
        self.rings = Rings()
        self.load = IDLE
        self.processes: list[GpuProcess] = []
        self.watts = 0.0
        self.celsius = AMBIENT
        self.noise = 1.0
        self.mig = self.lost = self.remap_failed = self.flipping = False
        self.width = LANES
        self.cut_peers: set[int] = set()
        self.settle_at_once()

    def settle_at_once(self) -> None:
        """Power and temperature as if the load had been there for long."""
        self.watts = self.load.power * self.model.power_limit
        self.celsius = self._goal()

    def _goal(self) -> float:
        if self.load.overheated:
            return self.model.thresholds.slowdown + 1.2
        return AMBIENT + RISE * self.load.power

    def take(self, now: float, load: Load) -> None:
        """Work on something else from now on."""
        self.load = load
        self.apply(now)

    def step(self, number: int, now: float, seconds: float) -> None:
        """`seconds` have passed; `number` counts the steps."""
        self.noise = wobble(number, self.index)
        goal = self.load.power * self.model.power_limit * self.noise
        self.watts += (goal - self.watts) * -math.expm1(-seconds / POWER_LAG)
        lag = FEVER_LAG if self.load.overheated else HEAT_LAG
        self.celsius += (self._goal() - self.celsius) * -math.expm1(-seconds / lag)
        self.rings.note(now, self.utilisation, self.controller, self.watts)
        self.apply(now)

    def apply(self, now: float) -> None:
        """Let the counters run at the rates of the present state."""
        self.meter.flow(now, {} if self.lost else {**self._rates(), **self._link_rates()})

    def _rates(self) -> dict[str, float]:
        load, noise = self.load, self.noise
        limit = PCIE_LANE[self.model.pcie_generation] * self.width
        return {
            "energy": self.watts,
            "activity": min(1.0, load.activity * noise),
            "sm": min(1.0, load.sm * noise),
            "occupancy": min(1.0, load.occupancy * noise),
            "tensor": min(1.0, load.tensor * noise),
            "dram": min(1.0, load.dram * noise),
            "pcie_tx": 1e6 + load.transmit * limit * noise,
            "pcie_rx": 1e6 + load.receive * limit * noise,
            "thermal": NS * load.slowed,
            "low": NS * (not self.awake),
            "ecc": BIT_FLIPS * self.flipping,
        }

    @property
    def wire_per_payload(self) -> float:
        """What NVLink's protocol adds, as a factor."""
        return FIRST_LINKS if self.model.architecture <= VOLTA else WIRE_PER_PAYLOAD

    def _link_rates(self) -> dict[str, float]:
        if self.model.links is None:
            return {}
        share = min(1.0, self.load.nvlink * self.noise)
        payload = share * self.model.links.speed / self.wire_per_payload
        rates = {}
        for link in self.links:
            if self.active(link):
                rates[f"tx{link.number}"] = rates[f"rx{link.number}"] = payload
                if link.errors:
                    rates[f"replay{link.number}"] = link.errors
                    rates[f"crc{link.number}"] = 1.5 * link.errors
        return rates

    def active(self, link: Link) -> bool:
        """Whether both ends of the link are there and it is not cut."""
        return not link.cut and link.peer not in self.cut_peers

    @property
    def awake(self) -> bool:
        """Not in its lowest power state: someone holds a context."""
        return bool(self.processes) or self.load.utilisation > 0

    @property
    def utilisation(self) -> int:
        """NVML's, percent."""
        return min(100, round(100 * self.load.utilisation * self.noise))

    @property
    def controller(self) -> int:
        """NVML's memory utilisation, percent."""
        return min(100, round(100 * self.load.controller * self.noise))

    @property
    def reasons(self) -> int:
        """Clock event reasons."""
        if not self.awake:
            return IDLE_REASON
        return THERMAL_REASONS if self.load.slowed else 0

    @property
    def sm_clock(self) -> int:
        """MHz, in the steps of 15 that the hardware has."""
        clocks = self.model.clocks
        if not self.awake:
            return clocks.idle_sm
        wanted = clocks.sm * self.load.clock * min(1.0, self.noise)
        return clocks.sm - 15 * round((clocks.sm - wanted) / 15)

    @property
    def memory_clock(self) -> int:
        """MHz."""
        return self.model.clocks.memory if self.awake else self.model.clocks.idle_memory

    @property
    def pcie_generation(self) -> int:
        """Falls to 1 at rest, but not on Hopper."""
        full = self.awake or self.model.architecture >= HOPPER
        return self.model.pcie_generation if full else 1

    @property
    def memory_used(self) -> int:
        """Bytes that processes hold."""
        return sum(process.memory for process in self.processes)

    def reset(self) -> None:
        """Counters and buffers as after a GPU reset."""
        self.meter.clear()
        self.rings.clear()
