"""A simulated machine: its parts, its time, the player of its scenarios, its controls."""

import threading
from collections.abc import Iterator
from math import inf

from agent.clock import Clock
from agent.simulator.driver import SimulatedDriver, SimulatedKernelLog
from agent.simulator.gpu import GpuHealth, SimulatedGpu, SimulatedGpuProcess, wire
from agent.simulator.jobs import SimulatedJobs
from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.models import VOLTA, SystemModel, address
from agent.simulator.scenarios import SLACK, Change, parts, timeline
from agent.simulator.traffic import HostHealth, SimulatedTraffic

LOST_XID = 79  # fell off the bus


class Machine:
    """Everything that is simulated. It is brought up to the clock whenever somebody asks something:
    counters run by themselves, only scenarios and faults have to be caught up with."""

    def __init__(self, system: SystemModel, driver: str, scenario: str, clock: Clock) -> None:
        self.system: SystemModel = system
        self.clock = clock
        self.lock = threading.RLock()
        self.driver: SimulatedDriver = SimulatedDriver(driver)
        self.gpus: list[SimulatedGpu] = [
            SimulatedGpu(system, i, links) for i, links in enumerate(wire(system))
        ]
        self.jobs = SimulatedJobs()
        self.traffic = SimulatedTraffic(system)
        older = system.model.architecture <= VOLTA
        self.kernel_log: SimulatedKernelLog = SimulatedKernelLog(lambda: self.now, older)
        self.driver.log_xid = self._log_xid
        self.host_health = HostHealth()
        self.traffic.health = self.host_health
        self.now = 0.0
        self.scenario_now = ""
        self._changes: Iterator[Change] = iter(())
        self._next: Change = (inf, "")
        self._began = clock.monotonic()
        self._epoch = clock.time()
        self.set_scenario(scenario)
        for gpu in self.gpus:
            gpu.settle_at_once(self.now)
            gpu.buffers.speed = getattr(clock, "speed", 1.0)

    @property
    def scenario(self) -> str:
        self.advance()
        return self.scenario_now

    def micros(self, at: float) -> int:
        return round((self._epoch + at) * 1e6)

    def moment(self, micros: int) -> float:
        return micros / 1e6 - self._epoch

    def advance(self) -> None:
        """Bring the machine up to the clock."""
        with self.lock:
            now = max(self.now, self.clock.monotonic() - self._began)
            while self._next[0] <= now + SLACK:
                at, change = self._next
                self.now = max(self.now, at)
                if isinstance(change, str):
                    self._begin_scenario(change)
                elif isinstance(change, ScenarioLoad):
                    self._begin_part(change)
                else:
                    change(self)
                    self.apply()
                self._next = next(self._changes, (inf, ""))
            self.now = now

    def apply(self) -> None:
        for gpu in self.gpus:
            gpu.apply(self.now)
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def _begin_scenario(self, name: str) -> None:
        self.scenario_now = name
        self.repair()
        for gpu in self.gpus:
            for process in gpu.processes:
                if process.pid not in self.jobs.trainers.values():
                    self.jobs.end(process.pid)
        self._begin_part(parts_of(parts(name)[0])[0])
        for gpu in self.gpus:
            held = int(gpu.work.memory * gpu.model.memory)
            pid = self.jobs.trainers.get(gpu.index)
            gpu.processes = [] if pid is None else [SimulatedGpuProcess(pid, held)]
        self.apply()

    def _begin_part(self, load: ScenarioLoad) -> None:
        self.traffic.load = load.host
        busy = [gpu.index for gpu in self.gpus if load.of(gpu.index).memory]
        self.jobs.run(self.now, busy, load.job, self.traffic.storage())
        for gpu in self.gpus:
            gpu.take(self.now, load.of(gpu.index))
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def lose(self, index: int) -> None:
        """The GPU falls off the bus; links to it go down."""
        bus = address(self.gpus[index].bus)
        self.kernel_log.write(f"NVRM: GPU {bus}: GPU has fallen off the bus.")
        self.driver.xid(index, LOST_XID)
        self.gpus[index].lost = True
        for gpu in self.gpus:
            gpu.cut_peers.add(index)

    def cut_link(self, index: int, number: int) -> None:
        """One link goes down, at both ends where both are GPUs."""
        link = self.gpus[index].links[number]
        link.cut = True
        if link.peer is not None and link.peer_link is not None:
            self.gpus[link.peer].links[link.peer_link].cut = True

    def xid(self, code: int) -> None:
        if code == LOST_XID:
            self.lose(0)
        else:
            self.driver.xid(0, code)

    def double_bit(self) -> None:
        gpu, older = self.gpus[0], self.system.model.architecture <= VOLTA
        gpu.flipping = True
        for code in (48, 63, 45) if older else (48, 63, 45, 154):
            self.xid(code)
        gpu.health.pages_pending, gpu.health.rows_pending = older, not older
        gpu.health.recovery = int(not older)

    def end_fabric(self) -> None:
        """Stop the Fabric Manager, without which no GPU joins."""
        self.host_health.fabric_service = False
        for gpu in self.gpus:
            gpu.health.fabric_state = 2

    def lose_member(self) -> None:
        array = next(a for a in self.system.arrays if not a.striped)
        self.host_health.lost_members = 1
        self.host_health.dead_disks.add(array.members[-1].name)

    def flap(self) -> None:
        """The first InfiniBand port goes down for one look, and up again."""
        self.host_health.port_down = not self.host_health.port_down
        if self.host_health.port_down:
            self.traffic.meter.add(f"link_downed:{self.system.hcas[0].name}", 1.0)

    def repair(self) -> None:
        self.driver.hung = False
        self.driver.failures.clear()
        HostHealth.__init__(self.host_health)
        for gpu in self.gpus:
            gpu.slow = 0.0
            gpu.mig = gpu.lost = gpu.remap_failed = gpu.flipping = False
            gpu.health = GpuHealth()
            gpu.width = gpu.model.lanes
            gpu.cut_peers.clear()
            for link in gpu.links:
                link.cut, link.errors = False, 0.0

    def _log_xid(self, index: int, code: int) -> None:
        gpu = self.gpus[index]
        pid = gpu.processes[0].pid if gpu.processes else None
        self.kernel_log.xid(gpu.bus, code, pid)

    def set_scenario(self, name: str) -> None:
        with self.lock:
            self.advance()
            self._changes = timeline(self.system, name, self.now)
            self._next = next(self._changes)
            self.advance()
