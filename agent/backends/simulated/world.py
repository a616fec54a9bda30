"""The world of a simulated machine: time, what plays, what broke, and the controls over it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.backends.simulated import drivers, loads
from agent.backends.simulated.gpu import LANES, STEP, Gpu, GpuProcess
from agent.backends.simulated.jobs import Jobs
from agent.backends.simulated.links import wire
from agent.backends.simulated.scenarios import FAULTS, SLOT, TOUR, Fault, stops
from agent.backends.simulated.systems import System
from agent.backends.simulated.traffic import Traffic
from agent.clock import Clock

SLACK = 1e-9  # s: a step is due although floating point says that it is just not
FINE = 600  # steps that a gap is caught up with; longer gaps take bigger ones (120 s and more)
HOST_EVERY = 5  # steps between two changes of the host's rates
GIB = 1 << 30
ECC_XID, HALT_XID, LOST_XID = 48, 62, 79
"""Double-bit error; micro-controller halt (for GPUs without ECC); fell off the bus."""


@dataclass(slots=True)
class _Due:
    """When a fault of the scenario strikes next (s of world time)."""

    fault: Fault
    at: float


class World:
    """Everything that is simulated. Steps are caught up with whenever somebody asks something."""

    def __init__(self, system: System, driver: str, scenario: str, clock: Clock) -> None:
        self.system = system
        self.driver_version = driver
        self.driver = drivers.numbers(driver)
        self.clock = clock
        self.lock = threading.RLock()
        self.gpus = [Gpu(system, i, links) for i, links in enumerate(wire(system))]
        self.jobs = Jobs()
        self.traffic = Traffic(system)
        self.now = 0.0
        self.hung = False
        self.generation = 0  # of the driver; grows with each reload
        self.failures: dict[tuple[str, int | None], int] = {}
        self.listeners: list[Callable[[int, int], None]] = []
        self._began = clock.monotonic()
        self._epoch = clock.time()
        self._step = 0
        self._due: list[_Due] = []
        self._actions = self._table()
        self._tour: Sequence[str] = ()
        self._tour_began = 0.0
        self.scenario = ""
        self.set_scenario(scenario)
        for gpu in self.gpus:
            gpu.settle_at_once()

    def micros(self, at: float) -> int:
        """World time as the driver's timestamps: microseconds since the epoch."""
        return round((self._epoch + at) * 1e6)

    def advance(self) -> None:
        """Bring the world up to the clock."""
        with self.lock:
            now = max(self.now, self.clock.monotonic() - self._began)
            missed = int(now / STEP + SLACK) - self._step
            stride = max(1, missed // FINE)
            while missed > 0:
                steps = min(stride, missed)
                self._advance_by(steps)
                missed -= steps
            self.now = now

    def _advance_by(self, steps: int) -> None:
        before = self._step
        self._step += steps
        self.now = self._step * STEP
        self._follow_tour()
        self._strike()
        for gpu in self.gpus:
            gpu.step(self._step, self.now, steps * STEP)
        if before // HOST_EVERY != self._step // HOST_EVERY:
            self._apply_host()

    def _apply_host(self) -> None:
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.stuck)

    # what plays

    def set_scenario(self, name: str) -> None:
        """Play another scenario from now on; what the last one broke is whole again."""
        with self.lock:
            self.advance()
            self._tour = stops(self.system) if name == TOUR else ()
            self._tour_began = self.now
            self._play(self._tour[0] if self._tour else name)

    def _follow_tour(self) -> None:
        if self._tour:
            stop = int((self.now - self._tour_began) / SLOT + SLACK) % len(self._tour)
            if self._tour[stop] != self.scenario:
                self._play(self._tour[stop])

    def _play(self, name: str) -> None:
        self.scenario = name
        self._mend()
        play = loads.play_of(name)
        busy = [g.index for g in self.gpus if play.of(g.index).memory]
        pids = self.jobs.employ(self.now, busy, play.job)
        for gpu in self.gpus:
            load = play.of(gpu.index)
            held = int(load.memory * gpu.model.memory)
            own = [GpuProcess(pids[gpu.index], held)] if gpu.index in pids else []
            for stranger in {p.pid for p in gpu.processes} - set(pids.values()):
                self.jobs.end(stranger)
            gpu.processes = own
            gpu.take(self.now, load)
        self.traffic.load = play.host
        self._apply_host()
        self._due = [_Due(fault, self.now + fault.at) for fault in FAULTS.get(name, ())]
        self._strike()

    def _strike(self) -> None:
        for due in self._due:
            while due.at <= self.now + SLACK:
                self._actions[due.fault.action]()
                due.at = due.at + due.fault.every if due.fault.every else float("inf")

    def _table(self) -> dict[str, Callable[[], None]]:
        first = self.gpus[0]
        return {
            "lose": lambda: self._lose(min(2, len(self.gpus) - 1)),
            "link-down": lambda: self._cut_link(0, 2),
            "link-errors": lambda: self._set(first.links[1], "errors", 2.0),
            "narrow": lambda: self._set(first, "width", LANES // 2),
            "slow-port": lambda: self._set(self.traffic, "slow_port", True),
            "xid": lambda: self.xid(0, ECC_XID if first.model.ecc else HALT_XID),
            "bit-flips": lambda: self._set(first, "flipping", True),
            "remap-failure": lambda: self._set(first, "remap_failed", True),
            "hang": lambda: self.hang(on=True),
        }

    def _set(self, part: object, name: str, value: object) -> None:
        setattr(part, name, value)
        self._apply_all()

    def _apply_all(self) -> None:
        for gpu in self.gpus:
            gpu.apply(self.now)
        self._apply_host()

    def _mend(self) -> None:
        self.hung = False
        self.traffic.slow_port = False
        for gpu in self.gpus:
            gpu.lost = gpu.remap_failed = gpu.flipping = False
            gpu.width = LANES
            gpu.cut_peers.clear()
            for link in gpu.links:
                link.cut, link.errors = False, 0.0

    # controls

    def lose(self, index: int) -> None:
        """The GPU falls off the bus, with XID 79; links to it go down."""
        with self.lock:
            self.advance()
            self._lose(index)

    def _lose(self, index: int) -> None:
        self.xid(index, LOST_XID)
        self.gpus[index].lost = True
        self._tell_peers(index, gone=True)

    def restore(self, index: int) -> None:
        """The GPU is back."""
        with self.lock:
            self.advance()
            self.gpus[index].lost = False
            self._tell_peers(index, gone=False)

    def _tell_peers(self, index: int, *, gone: bool) -> None:
        for gpu in self.gpus:
            if gpu.index != index:
                (gpu.cut_peers.add if gone else gpu.cut_peers.discard)(index)
        self._apply_all()

    def cut_link(self, index: int, number: int) -> None:
        """One link goes down, at both ends where both are GPUs."""
        with self.lock:
            self.advance()
            self._cut_link(index, number)

    def _cut_link(self, index: int, number: int) -> None:
        link = self.gpus[index].links[number]
        link.cut = True
        if link.peer is not None and link.peer_link is not None:
            self.gpus[link.peer].links[link.peer_link].cut = True
        self._apply_all()

    def reload_driver(self) -> None:
        """Unload and load the driver: counters are 0, and NVML must be initialised anew."""
        with self.lock:
            self.advance()
            self.generation += 1
            for gpu in self.gpus:
                gpu.reset()

    def reset_gpu(self, index: int) -> None:
        """Reset one GPU: its counters are 0."""
        with self.lock:
            self.advance()
            self.gpus[index].reset()

    def set_mig(self, index: int, on: bool) -> None:
        """Switch MIG; models without it stay as they are."""
        self.gpus[index].mig = on and self.gpus[index].model.architecture >= 7

    def hang(self, on: bool) -> None:
        """From now on no device call returns, or all do again."""
        self.hung = on

    def xid(self, index: int, code: int) -> None:
        """The driver reports an XID error of this GPU to everyone who listens."""
        for listener in list(self.listeners):
            listener(index, code)

    def fail(self, function: str, code: int | None, index: int | None = None) -> None:
        """Let one NVML function raise this code, on one GPU or on all; None heals it."""
        if code is None:
            self.failures.pop((function, index), None)
        else:
            self.failures[function, index] = code

    def start_process(self, index: int, memory: int = GIB) -> int:
        """A process takes so many bytes of a GPU's memory; its pid."""
        with self.lock:
            self.advance()
            pid = self.jobs.start_stranger(self.now)
            self.gpus[index].processes.append(GpuProcess(pid, memory))
            return pid

    def stop_process(self, index: int, pid: int | None = None) -> None:
        """End one process of a GPU, or all of them."""
        with self.lock:
            self.advance()
            gpu = self.gpus[index]
            ended = {p.pid for p in gpu.processes if pid is None or p.pid == pid}
            gpu.processes = [p for p in gpu.processes if p.pid not in ended]
            for gone in ended:
                self.jobs.end(gone)
