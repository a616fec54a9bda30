"""A simulated machine with a clock, a scenario, and faults."""

import threading
from collections.abc import Iterator
from math import inf
from typing import Any

from agent.clock import Clock
from agent.simulator.devices import SimulatedDevices
from agent.simulator.driver import SimulatedDriver, SimulatedKernelLog
from agent.simulator.gpu import SimulatedGpu, SimulatedGpuProcess, wire
from agent.simulator.jobs import SimulatedJobs
from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.models import Architecture, SystemModel
from agent.simulator.scenarios import SLACK, Breakage, Change, parts, timeline

LOST_XID = 79  # GPU has fallen off the bus


class Machine:
    """A simulated machine. Every query advances the machine to the current clock time, and applies
    the changes of the scenario until then. Counters are computed when they are read."""

    def __init__(self, system: SystemModel, scenario: str, clock: Clock) -> None:
        self.system = system
        self.driver = SimulatedDriver(system.driver)
        links = enumerate(wire(system))
        self.gpus = [SimulatedGpu(system, self.driver, index, its) for index, its in links]
        self.jobs = SimulatedJobs()
        self.devices = SimulatedDevices(system)
        self.older = system.model.architecture <= Architecture.VOLTA  # the GPUs retire pages
        self.kernel_log = SimulatedKernelLog(lambda: self.now, self.older)
        self.driver.log_xid = self._log_xid
        self.now = 0.0
        self.clock = clock
        self.lock = threading.RLock()
        self.scenario = ""
        self._changes: Iterator[Change] = iter(())
        self._next: Change = (inf, "")
        self.began = clock.monotonic()
        self._epoch = clock.time()
        self.set_scenario(scenario)
        for gpu in self.gpus:
            gpu.heat = self.now, gpu.goal()
            gpu.buffers.speed = getattr(clock, "speed", 1.0)

    @property
    def uptime(self) -> float:
        return 86_400 + self.now

    def micros(self, at: float) -> int:
        return round((self._epoch + at) * 1e6)

    def moment(self, micros: int) -> float:
        return micros / 1e6 - self._epoch

    def advance(self) -> None:
        """Apply all changes of the scenario up to the current clock time."""
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
                    self._strike(change)
                self._next = next(self._changes, (inf, ""))
            self.now = now

    def _begin_scenario(self, name: str) -> None:
        self.scenario = name
        self._repair()
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
        self.devices.load = load.host
        busy = [gpu.index for gpu in self.gpus if load.of(gpu.index).memory]
        self.jobs.run(self.now, busy, load.job, self.devices.storage())
        for gpu in self.gpus:
            gpu.take(self.now, load.of(gpu.index))
        self.devices.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def _strike(self, fault: Breakage) -> None:
        for path, value in fault.set.items():
            place, _, part = path.rpartition(".")
            setattr(self._part(place), part, value)
        for path, kind in fault.breaks.items():
            self._part(path).faults[kind] = 1
        for name, *arguments in fault.call:
            self._part(str(name))(*arguments)
        self.apply()

    def _part(self, path: str) -> Any:
        """Return the object at an attribute path of this machine, such as `gpus.0.health`."""
        found: Any = self
        for name in path.split("."):
            found = found[int(name)] if name.isdecimal() else getattr(found, name)
        return found

    def apply(self) -> None:
        for gpu in self.gpus:
            gpu.apply(self.now)
        self.devices.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def set_scenario(self, name: str) -> None:
        with self.lock:
            self.advance()
            self._changes = timeline(self.system, name, self.now, self.clock.speed)
            self._next = next(self._changes)
            self.advance()

    def lose(self, index: int) -> None:
        """Make the GPU at `index` fall off the bus, and take down all links to it. If there is no
        such GPU, use the last one."""
        index = min(index, len(self.gpus) - 1)
        self.kernel_log.write(f"NVRM: GPU {self.gpus[index].address}: GPU has fallen off the bus.")
        self.driver.xid(index, LOST_XID)
        self.gpus[index].lost = True
        for gpu in self.gpus:
            gpu.cut_peers.add(index)

    def fatal_xid(self) -> None:
        self.xid(48 if self.system.model.datacentre else 62)

    def cut_link(self, index: int, number: int) -> None:
        """Take an NVLink of a GPU down. If its remote end is a GPU, take it down there, too."""
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
        gpu = self.gpus[0]
        gpu.flipping = True
        for code in (48, 63, 45) if self.older else (48, 63, 45, 154):
            self.xid(code)
        gpu.health.pages_pending, gpu.health.rows_pending = self.older, not self.older
        gpu.health.recovery = int(not self.older)

    def end_fabric(self) -> None:
        """Stop the Fabric Manager, without which GPUs cannot join the fabric."""
        self.devices.faults["fabric"] = 1
        for gpu in self.gpus:
            gpu.health.fabric_state = 2

    def lose_member(self) -> None:
        array = next(array for array in self.devices.arrays if not array.striped)
        array.faults["lost"] = array.members[-1].faults["dead"] = 1

    def flap(self) -> None:
        """Take the first InfiniBand port down, or bring it up if it is down."""
        port = self.devices.hcas[0]
        port.faults["down"] = int(not port.faults["down"])
        self.devices.meter.add(f"link_downed:{port.name}", port.faults["down"])

    def _repair(self) -> None:
        self.driver.hung = False
        self.driver.failures.clear()
        host = self.devices
        for device in (host, *host.disks, *host.arrays, *host.ports):
            device.faults.clear()
        for gpu in self.gpus:
            gpu.repair()

    def _log_xid(self, index: int, code: int) -> None:
        gpu = self.gpus[index]
        pid = gpu.processes[0].pid if gpu.processes else None
        self.kernel_log.xid(gpu.address, code, pid)
