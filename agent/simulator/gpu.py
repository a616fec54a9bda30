"""One simulated GPU: its state follows its work, and its counters follow its state."""

import math
import uuid
from dataclasses import dataclass

from agent.simulator.gpu_models import BLACKWELL, HOPPER, PCIE_LANE, VOLTA
from agent.simulator.health import GpuHealth
from agent.simulator.links import SimulatedLink
from agent.simulator.loads import IDLE, GpuLoad, GpuWork
from agent.simulator.sample_buffers import SampleBuffers
from agent.simulator.step_meter import StepMeter, StepRates
from agent.simulator.system_models import SystemModel

HEAT_LAG = 30.0  # s, first order
FEVER_LAG = 5.0  # s, where cooling has failed
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

SHARES = ("activity", "sm", "occupancy", "tensor", "dram", "controller", "utilisation")
"""Parts of the load that are counted as they are: seconds of each, weighted by its share."""


@dataclass(frozen=True, slots=True)
class SimulatedGpuProcess:
    """A process on the GPU, as the driver lists it; memory in bytes. One that `draws` does not
    compute."""

    pid: int
    memory: int
    draws: bool = False


class SimulatedGpu:
    """One GPU. Times are seconds of the machine's time."""

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
        """The temperature is as if the work had been there for long."""
        self._heat = (now, self._goal())

    def take(self, now: float, work: GpuWork) -> None:
        """Work on something else from now on."""
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
            "low": NS * (not self.awake),
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
        rates["collectives"] = [self.work.collectives / step] * len(phases)
        return StepRates(durations, rates)

    def _rates(self, load: GpuLoad) -> dict[str, float]:
        slot = PCIE_LANE[self.model.pcie_generation] * self.width
        unlike = 1.0 + SPREAD * math.sin(2.1 * self.index)
        return {
            **{part: getattr(load, part) for part in SHARES},
            "energy": load.power * self.model.power_limit * unlike,
            "pcie_tx": PCIE_POLLING + load.transmit * slot,
            "pcie_rx": PCIE_POLLING + load.receive * slot,
            **self._link_rates(load),
        }

    @property
    def wire_per_payload(self) -> float:
        return FIRST_LINKS if self.model.architecture <= VOLTA else WIRE_PER_PAYLOAD

    def _link_rates(self, load: GpuLoad) -> dict[str, float]:
        if self.model.links is None:
            return {}
        payload = load.nvlink * self.model.links.speed / self.wire_per_payload
        numbers = [link.number for link in self.links if self.active(link)]
        return {f"{way}{number}": payload for number in numbers for way in ("tx", "rx")}

    def _link_errors(self) -> dict[str, float]:
        faulty = [link for link in self.links if link.errors and self.active(link)]
        return {
            f"{kind}{link.number}": often * link.errors
            for link in faulty
            for kind, often in (("replay", 1.0), ("crc", 1.5), ("recovery", self._recoveries))
        }

    @property
    def _recoveries(self) -> float:
        """Recoveries of a faulty link for each packet that it sends again: NVLink 5 counts no
        replays."""
        return float(self.model.architecture >= BLACKWELL)

    def active(self, link: SimulatedLink) -> bool:
        """Return whether both ends of the link are there and it is not cut."""
        return not link.cut and link.peer not in self.cut_peers

    @property
    def awake(self) -> bool:
        """True if it is not in its lowest power state: a process holds a context, or works."""
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
        """MHz, in the steps of 15 that the hardware has."""
        clocks = self.model.clocks
        if not self.awake:
            return clocks.idle_sm
        return clocks.sm - 15 * round(clocks.sm * (1.0 - self.work.clock) / 15)

    @property
    def memory_clock(self) -> int:
        return self.model.clocks.memory if self.awake else self.model.clocks.idle_memory

    @property
    def pcie_generation(self) -> int:
        """Falls to 1 at rest, but not on Hopper."""
        full = self.awake or self.model.architecture >= HOPPER
        return self.model.pcie_generation if full else 1

    @property
    def memory_used(self) -> int:
        return sum(process.memory for process in self.processes)

    def reset(self, now: float) -> None:
        self.meter.clear(now)
        self.buffers.begin = now
