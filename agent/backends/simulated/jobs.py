"""The processes of the host: a launcher, one trainer a GPU, the loaders of each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.backends.simulated.loads import Job
from agent.backends.simulated.meter import Meter

FIRST_PID = 20_000
LOOK = 0.05
"""Seconds between two looks at which a process may be found in different states."""

GOLDEN = 0.6180339887498949

USER = 1000
LOGIN = "researcher"
TRAINER = ("python3", "train.py", "--data", "/raid/imagenet")
LAUNCHER = ("python3", "-m", "torch.distributed.run", "train.py")


@dataclass(slots=True)
class Process:
    """One process; `threads` are thread ids, the first is the process itself."""

    pid: int
    parent: int
    session: int
    name: str
    command: tuple[str, ...]
    threads: tuple[int, ...]
    started: float
    running: float = 0.0
    waiting: float = 0.0

    def state(self, now: float) -> str:
        """The letter that /proc shows: over many looks each as often as its share says."""
        look = int(now / LOOK) + 1
        place = (look * GOLDEN + self.pid * 0.377) % 1.0
        if place < self.running:
            return "R"
        return "D" if place < self.running + self.waiting else "S"


class Team(NamedTuple):
    """The processes that feed one GPU."""

    gpu: int
    trainer: Process
    loaders: tuple[Process, ...]


class Jobs:
    """Every process; CPU time in seconds by thread id."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.meter = Meter()
        self.cores = 0.0
        self.stuck = 0.0
        self._next = FIRST_PID
        self._teams: list[Team] = []
        self._layout: tuple[tuple[int, ...], int] = ((), 0)

    def employ(self, now: float, gpus: Sequence[int], job: Job) -> dict[int, int]:
        """Run this job on these GPUs; a job of the same shape goes on as it is. GPU to pid."""
        layout = (tuple(gpus), job.loaders)
        if layout != self._layout:
            self._dismiss()
            self._hire(now, gpus, job.loaders)
            self._layout = layout
        self._assign(now, job)
        return {team.gpu: team.trainer.pid for team in self._teams}

    def _dismiss(self) -> None:
        members = [p for t in self._teams for p in (t.trainer, *t.loaders)]
        for pid in {p.pid for p in members} | {t.trainer.parent for t in self._teams}:
            self.end(pid)
        for process in members:  # also of those that had ended before
            self.meter.forget(map(str, process.threads))
        self._teams = []

    def _hire(self, now: float, gpus: Iterable[int], loaders: int) -> None:
        parent = self._start(now, 1, "torchrun", LAUNCHER).pid if gpus else 1
        for gpu in gpus:
            command = (*TRAINER, "--local_rank", str(gpu))
            trainer = self._start(now, parent, "python3", command, threads=2, leads=True)
            crew = tuple(
                self._start(now, trainer.pid, "pt_data_worker", command) for _ in range(loaders)
            )
            self._teams.append(Team(gpu, trainer, crew))

    def _start(
        self,
        now: float,
        parent: int,
        name: str,
        command: tuple[str, ...],
        threads: int = 1,
        *,
        leads: bool = False,
    ) -> Process:
        """`leads`: in a session of its own, as torchelastic starts each rank."""
        pid = self._next
        self._next += threads
        above = self.processes.get(parent)
        session = above.session if above and not leads else pid
        ids = tuple(range(pid, pid + threads))
        process = Process(pid, parent, session, name, command, ids, now)
        self.processes[pid] = process
        return process

    def _assign(self, now: float, job: Job) -> None:
        rates: dict[str, float] = {}
        for team in self._teams:
            team.trainer.running = job.running
            main, second = team.trainer.threads
            rates |= {str(main): job.forward, str(second): job.backward}
            for loader in team.loaders:
                loader.running, loader.waiting = job.loader_running, job.loader_waiting
                rates[str(loader.pid)] = job.loader_cores
        self.cores = sum(rates.values())
        self.stuck = len(self._teams) * job.loaders * job.loader_waiting
        self.meter.flow(now, rates)

    def start_stranger(self, now: float) -> int:
        """A process of somebody else that computes on a GPU; its pid."""
        return self._start(now, 1, "python3", ("python3", "notebook.py")).pid

    def end(self, pid: int) -> None:
        process = self.processes.pop(pid, None)
        if process is not None:
            self.meter.forget(map(str, process.threads))
