"""Simulates the processes of a job: a launcher, and a trainer or server for each GPU."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.simulator.loads import SimulatedJob, ThreadLoad
from agent.simulator.meter import Meter

RESTING_THREAD = ThreadLoad()

USER = 1000
LOGIN = "researcher"
TRAINER = ("python3", "train.py", "--data", "/raid/imagenet")
LAUNCHER = ("python3", "-m", "torch.distributed.run", "train.py")
SERVER = ("python3", "serve.py", "--model", "/raid/models/chat")


@dataclass(slots=True)
class SimulatedThread:
    """A thread. The kernel truncates its name."""

    number: int
    name: str
    load: ThreadLoad = RESTING_THREAD

    def state(self, now: float) -> str:
        period = int(now / 0.05) + 1  # two reads within 0.05 s return the same state
        # multiples of the golden ratio are evenly spread
        place = (period * 0.6180339887498949 + self.number * 0.377) % 1.0
        runnable = self.load.cores + self.load.queued
        if place < runnable:
            return "R"
        return "D" if place < runnable + self.load.blocked else "S"


@dataclass(slots=True)
class SimulatedProcess:
    """A process. Its PID is the ID of its first thread."""

    pid: int
    parent: int
    session: int
    name: str
    command: tuple[str, ...]
    threads: tuple[SimulatedThread, ...]
    started: float
    rank: int | None = None  # rank in the job, from the environment
    stopped: bool = False  # by a signal
    uid: int = USER


class StorageRates(NamedTuple):
    """Bytes that processes read and write per second. `from_disks`: read from local disks."""

    read: float = 0.0
    written: float = 0.0
    from_disks: float = 0.0


class ProcessTeam(NamedTuple):
    """The processes that use a GPU: a trainer (or server) and its data loaders."""

    gpu: int
    trainer: SimulatedProcess
    loaders: tuple[SimulatedProcess, ...]

    @property
    def members(self) -> tuple[SimulatedProcess, ...]:
        return (self.trainer, *self.loaders)


class SimulatedJobs:
    """All processes of the machine. The meter counts `cpu:TID` and `queued:TID` in seconds, and
    `read:PID` and `written:PID` in bytes. `cgroup:read` and `cgroup:written` count the disk bytes
    of all processes, including processes that have ended."""

    def __init__(self) -> None:
        self.processes: dict[int, SimulatedProcess] = {}
        self.changes = 0  # number of processes started and ended
        self.meter = Meter()
        self.cores = 0.0
        self.blocked = 0.0
        self.teams: list[ProcessTeam] = []
        self._next = 20_000  # the next process or thread ID
        self._layout: object = None

    def run(
        self, now: float, gpus: Sequence[int], job: SimulatedJob, storage: StorageRates
    ) -> None:
        layout = (tuple(gpus), job.loaders, tuple(t.name for t in job.threads), job.alone)
        if layout != self._layout:
            members = [process for team in self.teams for process in team.members]
            for pid in {p.pid for p in members} | {t.trainer.parent for t in self.teams}:
                self.end(pid)
            self.teams = []
            self._start_all(now, gpus, job)
            self._layout = layout
        self._assign(now, job, storage)

    @property
    def trainers(self) -> dict[int, int]:
        return {team.gpu: team.trainer.pid for team in self.teams}

    def _start_all(self, now: float, gpus: Sequence[int], job: SimulatedJob) -> None:
        shared = bool(gpus) and not job.alone
        parent = self.start(now, 1, "torchrun", LAUNCHER).pid if shared else 1
        for gpu in gpus:
            command = SERVER if job.alone else (*TRAINER, "--local_rank", str(gpu))
            names = [thread.name for thread in job.threads]
            trainer = self.start(now, parent, "python3", command, names, leads=True)
            loaders = tuple(
                self.start(now, trainer.pid, "pt_data_worker", command) for _ in range(job.loaders)
            )
            trainer.rank = len(self.teams) if shared else None
            self.teams.append(ProcessTeam(gpu, trainer, loaders))

    def start(
        self,
        now: float,
        parent: int,
        name: str,
        command: tuple[str, ...],
        threads: Iterable[str] = ("",),
        *,
        leads: bool = False,
    ) -> SimulatedProcess:
        """Start a process. `threads` contains thread names. A thread with an empty name has the
        process name. If `leads` is true, the process starts a new session, as torchelastic's do."""
        pid = self._next
        team = tuple(SimulatedThread(pid + n, own or name) for n, own in enumerate(threads))
        self._next += len(team)
        above = self.processes.get(parent)
        session = above.session if above and not leads else pid
        process = SimulatedProcess(pid, parent, session, name, command, team, now)
        self.processes[pid] = process
        self.changes += 1
        return process

    def _assign(self, now: float, job: SimulatedJob, storage: StorageRates) -> None:
        readers = max(1, len(self.teams) * max(1, job.loaders))
        rates: dict[str, float] = {}
        for place, team in enumerate(self.teams):
            for process in team.members:
                loads = job.threads if process is team.trainer else (job.loader,)
                for thread, load in zip(process.threads, loads, strict=True):
                    thread.load = RESTING_THREAD if place == job.waiting else load
                    rates[f"cpu:{thread.number}"] = thread.load.cores
                    rates[f"queued:{thread.number}"] = thread.load.queued
            rates[f"written:{team.trainer.pid}"] = storage.written / len(self.teams)
            for reader in team.loaders or (team.trainer,):
                rates[f"read:{reader.pid}"] = storage.read / readers
        threads = [t.load for team in self.teams for p in team.members for t in p.threads]
        self.cores = sum(load.cores for load in threads)
        self.blocked = sum(load.blocked for load in threads)
        disks = storage if self.teams else StorageRates()
        rates |= {"cgroup:read": disks.from_disks, "cgroup:written": disks.written}
        self.meter.flow(now, rates)
        self.meter.keep(rates)

    def end(self, pid: int) -> None:
        self.processes.pop(pid, None)
        self.changes += 1
