"""The process table: every process on a GPU, met once, with its job and its start."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.hardware import processes
from agent.hardware.files import FileTree
from agent.jobs import identity
from agent.model import Absent, Labels, Reason

HIGHEST = 64
"""Ancestors that are looked at: more than any job has, fewer than a loop of reused pids."""


@dataclass(frozen=True, slots=True)
class TrackedProcess:
    """One process on a GPU; `arrived` is on the agent's monotonic clock, `started` since boot."""

    started: float
    arrived: float
    uid: int | None
    job: str
    labels: identity.JobLabels  # without its user
    ties: frozenset[str]
    hosts: int | None  # that its job runs on, as its environment says
    rank: int | None
    inner_pid: int  # as the process sees itself, and NCCL tells of it


class ProcessTable:
    """Who is on the GPUs; a process that cannot be seen stands here with the reason."""

    def __init__(self, files: FileTree, now: Callable[[], float]) -> None:
        self._files = files
        self._now = now
        self._met: dict[int, TrackedProcess | Absent] = {}
        self._gpus: frozenset[Labels] = frozenset()
        self._keys: dict[int, str] = {}

    def update(self, on_gpus: Mapping[Labels, Sequence[int]]) -> None:
        """These processes are on these GPUs now: meet those that are new, forget those that left.

        A process that comes to a GPU that was known before arrives now; what is found on a GPU met
        for the first time has been there since it started, or so.
        """
        present = {pid: gpu in self._gpus for gpu, pids in on_gpus.items() for pid in pids}
        gone = self._met.keys() - present.keys()
        new = present.keys() - self._met.keys()
        for pid in gone:
            del self._met[pid]
        for pid in new:
            self._met[pid] = self._meet(pid, now=present[pid])
        self._gpus = frozenset(on_gpus)
        if gone or new:
            self._keys = identity.keys({pid: member.ties for pid, member in self._members()})

    def member(self, pid: int) -> TrackedProcess | None:
        """A process that was met; None for one that is hidden."""
        found = self._met.get(pid)
        return found if isinstance(found, TrackedProcess) else None

    def key(self, pid: int) -> str:
        """What the processes of one job have in common, as far as they were met."""
        return self._keys[pid]

    def hidden(self, pids: Iterable[int]) -> Absent | None:
        """Why one of these cannot be seen."""
        return next((m for pid in pids if isinstance(m := self._met.get(pid), Absent)), None)

    def age(self, pids: Iterable[int]) -> float | None:
        """Seconds since the newest of these came."""
        arrivals = [m.arrived for pid in pids if (m := self.member(pid)) is not None]
        return self._now() - max(arrivals) if arrivals else None

    def verify(self, pid: int, started: float) -> None:
        """Where the pid belongs to another process now, that one is met at the next update."""
        member = self.member(pid)
        if member is not None and member.started != started:
            del self._met[pid]

    def _members(self) -> Iterator[tuple[int, TrackedProcess]]:
        for pid, found in self._met.items():
            if isinstance(found, TrackedProcess):
                yield pid, found

    def _meet(self, pid: int, *, now: bool) -> TrackedProcess | Absent:
        try:
            return self._introduce(pid, now=now)
        except PermissionError as error:
            why = f"/proc hides process {pid} on the GPU: {os.strerror(error.errno or 0)}"
        except processes.GONE:
            why = f"process {pid} on the GPU is not in /proc: hidepid or a pid namespace hides it"
        except OSError as error:
            why = f"/proc does not tell of process {pid} on the GPU: {error.strerror or error}"
        return Absent(Reason.DENIED, why)

    def _introduce(self, pid: int, *, now: bool) -> TrackedProcess:
        """Meet a process with its ancestors; raises OSError where it cannot be seen."""
        stat = processes.stat(self._files, pid)
        line = tuple(self._line(stat))
        environment = processes.environment(self._files, pid, identity.TOLD)
        origin = identity.JobOrigin(
            line,
            self._leader(line[0]),
            processes.cgroup(self._files, pid),
            {name: identity.printable(value) for name, value in environment.items()},
            next((processes.command(self._files, a.pid) for a in line if a.name == "conmon"), ()),
        )
        command = processes.command(self._files, identity.root(line).pid)
        title = identity.title(origin, command)
        uptime = processes.uptime(self._files)
        age = 0.0 if now or uptime is None else max(0.0, uptime - stat.started)
        return TrackedProcess(
            started=stat.started,
            arrived=self._now() - age,
            uid=line[0].uid,
            job=title,
            labels=identity.job_labels(origin, title),
            ties=identity.ties(origin),
            hosts=identity.hosts(environment),
            rank=identity.rank(environment),
            inner_pid=self._inner_pid(pid),
        )

    def _line(self, stat: processes.Stat) -> Iterator[identity.Ancestor]:
        """A process and its ancestors, as far as /proc shows them."""
        for _ in range(HIGHEST):
            uid = self._uid(stat.pid)
            yield identity.Ancestor(stat.pid, stat.name, stat.group, stat.started, uid)
            if stat.parent <= 0:
                return
            try:
                stat = processes.stat(self._files, stat.parent)
            except OSError:
                return

    def _uid(self, pid: int) -> int | None:
        try:
            return processes.uid(processes.status(self._files, pid))
        except OSError:
            return None

    def _inner_pid(self, pid: int) -> int:
        try:
            return processes.inner_pid(processes.status(self._files, pid), pid)
        except OSError:
            return pid

    def _leader(self, process: identity.Ancestor) -> str:
        """The name of the leader of its process group; empty where that has ended."""
        try:
            return processes.stat(self._files, process.group).name
        except OSError:
            return ""
