"""A simulated machine with a clock, on which a scenario runs."""

import threading
from collections.abc import Iterator
from math import inf

from agent.clock import Clock
from agent.simulator.gpu import SimulatedGpuProcess
from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.models import SystemModel
from agent.simulator.scenarios import SLACK, Change, parts, timeline
from agent.simulator.state import MachineState


class Machine(MachineState):
    """A machine on which a scenario runs. Every query advances the machine to the current clock
    time. Counters need no updates, so only scenarios and faults are applied."""

    def __init__(self, system: SystemModel, driver: str, scenario: str, clock: Clock) -> None:
        super().__init__(system, driver)
        self.clock = clock
        self.lock = threading.RLock()
        self.scenario_now = ""
        self._changes: Iterator[Change] = iter(())
        self._next: Change = (inf, "")
        self.began = clock.monotonic()
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
        """Advance the machine to the current clock time."""
        with self.lock:
            now = max(self.now, self.clock.monotonic() - self.began)
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

    def set_scenario(self, name: str) -> None:
        with self.lock:
            self.advance()
            self._changes = timeline(self.system, name, self.now)
            self._next = next(self._changes)
            self.advance()
