"""A simulated machine: its parts, its time, and the controls over it."""

import threading

from agent.clock import Clock
from agent.simulator.driver import SimulatedDriver
from agent.simulator.faults import SimulatedFaults
from agent.simulator.gpu import SimulatedGpu, SimulatedGpuProcess
from agent.simulator.gpu_models import VOLTA
from agent.simulator.health import HostHealth
from agent.simulator.jobs import SimulatedJobs
from agent.simulator.kernel_log import SimulatedKernelLog
from agent.simulator.links import wire
from agent.simulator.player import SLACK, ScenarioPlayer
from agent.simulator.ranks import CollectiveCounts, SimulatedRank
from agent.simulator.system_models import SystemModel
from agent.simulator.traffic import SimulatedTraffic


class Machine:
    """Everything that is simulated. It is brought up to the clock whenever somebody asks something:
    counters run by themselves, only scenarios and faults have to be caught up with."""

    def __init__(self, system: SystemModel, driver: str, scenario: str, clock: Clock) -> None:
        self.system = system
        self.clock = clock
        self.lock = threading.RLock()
        self.driver = SimulatedDriver(driver)
        self.gpus = [SimulatedGpu(system, i, links) for i, links in enumerate(wire(system))]
        self.jobs = SimulatedJobs()
        self.traffic = SimulatedTraffic(system)
        older = system.model.architecture <= VOLTA
        self.kernel_log = SimulatedKernelLog(lambda: self.now, self.driver.numbers[0], older)
        self.driver.log_xid = self._log_xid
        self.host_health = HostHealth()
        self.traffic.health = self.host_health
        self.faults = SimulatedFaults(
            self.gpus, self.traffic, self.driver, self.host_health, self.kernel_log
        )
        self.now = 0.0
        self._player = ScenarioPlayer(system)
        self.collectives = CollectiveCounts(self.gpus, self.jobs)
        self._began = clock.monotonic()
        self._epoch = clock.time()
        self.set_scenario(scenario)
        for gpu in self.gpus:
            gpu.settle_at_once(self.now)
            gpu.buffers.speed = getattr(clock, "speed", 1.0)

    @property
    def scenario(self) -> str:
        self.advance()
        return self._player.scenario

    def micros(self, at: float) -> int:
        """Machine time as the driver's timestamps: microseconds since the epoch."""
        return round((self._epoch + at) * 1e6)

    def moment(self, micros: int) -> float:
        """The machine time of a driver's timestamp, to a microsecond."""
        return micros / 1e6 - self._epoch

    def advance(self) -> None:
        """Bring the machine up to the clock."""
        with self.lock:
            now = max(self.now, self.clock.monotonic() - self._began)
            while (change := self._player.next_change) <= now + SLACK:
                self.now = max(self.now, change)
                if self._player.next_scenario(self.now):
                    self._begin_scenario()
                elif self._player.next_part(self.now):
                    self._begin_part()
                self._strike()
            self.now = now

    def apply(self) -> None:
        for gpu in self.gpus:
            gpu.apply(self.now)
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def _begin_scenario(self) -> None:
        """Put the scenario on the machine, whole again and without processes of others."""
        self.faults.repair()
        for gpu in self.gpus:
            for process in gpu.processes:
                if process.pid not in self.jobs.trainers.values():
                    self.jobs.end(process.pid)
        self._begin_part()
        for gpu in self.gpus:
            held = int(gpu.work.memory * gpu.model.memory)
            pid = self.jobs.trainers.get(gpu.index)
            gpu.processes = [] if pid is None else [SimulatedGpuProcess(pid, held)]
        self.apply()

    def _begin_part(self) -> None:
        """Put the load of this part of the scenario on GPUs, processes and the host."""
        load = self._player.load
        self.traffic.load = load.host
        busy = [gpu.index for gpu in self.gpus if load.of(gpu.index).memory]
        self.jobs.run(self.now, busy, load.job, self.traffic.storage())
        for gpu in self.gpus:
            gpu.take(self.now, load.of(gpu.index))
        self.collectives.follow(self.now)
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def _strike(self) -> None:
        for fault in self._player.due(self.now):
            if fault.strike:
                fault.strike(self.faults)
            self.apply()

    def ranks(self) -> list[SimulatedRank]:
        """The ranks of the job; none where no job runs on two GPUs or more."""
        with self.lock:
            self.advance()
            return self.collectives.listed(self.now, self._player.load.late)

    def _log_xid(self, index: int, code: int) -> None:
        gpu = self.gpus[index]
        pid = gpu.processes[0].pid if gpu.processes else None
        self.kernel_log.xid(gpu.bus, code, pid)

    def set_scenario(self, name: str) -> None:
        """Play another scenario from now on; what the last one broke is whole again."""
        with self.lock:
            self.advance()
            self._player.start(name, self.now)
            self._begin_scenario()
            self._strike()
