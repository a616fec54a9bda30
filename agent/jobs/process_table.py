"""A table with the job and the start time of each process on a GPU, read once per process."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.bounds import LOOK_UP_AT_ONCE, LOOK_UP_LATE, MOST_ANCESTORS, MOST_LOOK_UPS, MOST_MET
from agent.hardware import processes
from agent.hardware.files import FileTree, text_or_nothing
from agent.jobs import identity
from agent.model import Absent, Labels, Reason
from agent.threads import Spawn

VISIBLE = "run the agent with hostPID: true, or as root, or in the group of /proc's gid= option"

NAMELESS = identity.JobLabels()


@dataclass(frozen=True, slots=True)
class TrackedProcess:
    """A process on a GPU. `arrived` is a time on the agent's monotonic clock, and `started` is in
    seconds since boot. `job` is empty until the lookup of the job's name has finished."""

    started: float
    arrived: float
    uid: int | None
    hosts: int | None = None  # number of hosts of the job, from the environment
    rank: int | None = None
    job: str = ""
    labels: identity.JobLabels = NAMELESS  # excluding the user
    group_keys: frozenset[str] = frozenset()
    owner: str = ""


@dataclass(slots=True, eq=False)
class LookUp:
    """Reads the environment and command lines that determine the job of a process and its name."""

    files: FileTree
    origin: identity.JobOrigin  # without the parts that `run` reads
    named: bool  # whether to read the command line of the root process
    since: float
    command: tuple[str, ...] = ()
    begun: Future[None] | None = None

    def run(self) -> None:
        """Read the files. This method runs on a separate thread, because a read may block."""
        line = self.origin.line
        found = processes.environment(self.files, line[0].pid, identity.SHOWN)
        conmon = next((a.pid for a in line if a.name == "conmon"), None)
        self.origin = self.origin._replace(
            environment={name: identity.printable(value) for name, value in found.items()},
            conmon=() if conmon is None else processes.command(self.files, conmon),
        )
        if self.named:
            self.command = processes.command(self.files, identity.root(line).pid)


class ProcessTable:
    """The processes on the GPUs by PID. If a process is not visible, its entry is the reason."""

    def __init__(
        self, files: FileTree, now: Callable[[], float], named: Callable[[], bool], spawn: Spawn
    ) -> None:
        self._files = files
        self._now = now
        self._named = named  # whether command lines may be read
        self._spawn = spawn
        self._were_named = named()
        self._look_ups: dict[int, LookUp] = {}
        self._met: dict[int, TrackedProcess | Absent] = {}
        self._gpus: frozenset[Labels] = frozenset()
        self._keys: dict[int, str] = {}

    def update(self, on_gpus: Mapping[Labels, Sequence[int]]) -> None:
        """Update the table: add new processes on the GPUs, and drop those no longer on a GPU.

        The arrival time of a new process is the current time or, on a GPU that the agent sees for
        the first time, the start time of the process.
        """
        present = {pid: gpu in self._gpus for gpu, pids in on_gpus.items() for pid in pids}
        gone = self._met.keys() - present.keys()
        new = present.keys() - self._met.keys()
        for pid in gone:
            del self._met[pid]
            self._look_ups.pop(pid, None)
        for pid in sorted(new)[:MOST_MET]:
            self._met[pid] = self._meet(pid, now=present[pid])
        whole = self._met.keys() >= present.keys()
        self._gpus = frozenset(on_gpus) if whole else self._gpus & on_gpus.keys()
        if self._named() != self._were_named:
            self._were_named = self._named()
            for pid, _ in self._members():
                with suppress(OSError):  # the process has exited
                    self._look_up(pid)
        if self._complete() or gone:
            self._keys = identity.keys({pid: member.group_keys for pid, member in self._members()})

    def member(self, pid: int) -> TrackedProcess | None:
        """Return a process, or None if it is hidden or its lookup has not finished."""
        found = self._met.get(pid)
        return found if isinstance(found, TrackedProcess) and found.job else None

    def key(self, pid: int) -> str:
        """Return a key that all processes of a job share, or an empty string if unknown."""
        return self._keys.get(pid, "")

    def hidden(self, pids: Iterable[int]) -> Absent | None:
        """Return the reason why a process in `pids` is not visible, or None if all are visible."""
        return next((m for pid in pids if isinstance(m := self._met.get(pid), Absent)), None)

    def age(self, pids: Iterable[int]) -> float | None:
        """Return the seconds since the newest process in `pids` arrived, or None if unknown."""
        met = [self._met.get(pid) for pid in pids]
        arrivals = [m.arrived for m in met if isinstance(m, TrackedProcess)]
        return self._now() - max(arrivals) if arrivals else None

    def verify(self, pid: int, started: float) -> None:
        """If the process with this PID did not start at `started`, read it at the next update."""
        met = self._met.get(pid)
        if isinstance(met, TrackedProcess) and met.started != started:
            del self._met[pid]
            self._look_ups.pop(pid, None)

    def _members(self) -> Iterator[tuple[int, TrackedProcess]]:
        for pid in tuple(self._met):
            member = self.member(pid)
            if member is not None:
                yield pid, member

    def _look_up(self, pid: int) -> None:
        """Queue the lookup of a process's job and its name, which runs on a separate thread."""
        stat = processes.stat(self._files, pid)
        line = tuple(self._line(stat))
        cgroup = text_or_nothing(self._files, f"/proc/{pid}/cgroup")
        namespace = processes.user_namespace(self._files, pid)
        leader = ""  # process group leader; empty if it has exited
        with suppress(OSError):
            leader = processes.stat(self._files, line[0].group).name
        origin = identity.JobOrigin(line, leader, cgroup, user_namespace=namespace)
        self._look_ups[pid] = LookUp(self._files, origin, self._were_named, self._now())

    def _complete(self) -> bool:
        """Start queued lookups, and store finished ones. Return whether there were any."""
        begun = [one.begun for one in self._look_ups.values() if one.begun]
        waiting = [one for one in self._look_ups.values() if not one.begun]
        running = sum(not one.done() for one in begun)
        for one in waiting[: max(0, MOST_LOOK_UPS - running)]:
            one.begun = self._spawn("process-memory", one.run)
            begun.append(one.begun)
        if begun:
            wait(begun, LOOK_UP_AT_ONCE)
        changed = False
        for pid, one in list(self._look_ups.items()):
            over = one.begun is not None and one.begun.done()
            met = self._met[pid]
            late = self._now() - one.since >= LOOK_UP_LATE
            if isinstance(met, TrackedProcess) and (over or (late and not met.job)):
                title = identity.title(one.origin, one.command)
                shown = one.origin.environment
                self._met[pid] = replace(
                    met,
                    job=title,
                    labels=identity.job_labels(one.origin, title),
                    group_keys=identity.group_keys(one.origin),
                    owner=identity.owner(one.origin),
                    hosts=identity.hosts(shown),
                    rank=identity.rank(shown),
                )
                changed = True
            if over:
                del self._look_ups[pid]
        return changed

    def _meet(self, pid: int, *, now: bool) -> TrackedProcess | Absent:
        """Read a new process, and return it, or the reason why it is not visible."""
        try:
            stat = processes.stat(self._files, pid)
            self._look_up(pid)
            uptime = processes.uptime(self._files)
        except PermissionError as error:
            refused = os.strerror(error.errno or 0)
            why = f"/proc hides process {pid} on the GPU ({refused}): {VISIBLE}"
        except processes.GONE:
            why = f"process {pid} on the GPU is not in /proc: {VISIBLE}"
        except OSError as error:
            why = f"/proc does not report process {pid} on the GPU: {error.strerror or error}"
        else:
            age = 0.0 if now or uptime is None else max(0.0, uptime - stat.started)
            uid = processes.uid(processes.status(self._files, pid))
            return TrackedProcess(stat.started, self._now() - age, uid)
        return Absent(Reason.DENIED, why)

    def _line(self, stat: processes.Stat) -> Iterator[identity.Ancestor]:
        """Yield a process and its ancestors, up to the first that /proc does not show."""
        for _ in range(MOST_ANCESTORS):
            uid = processes.uid(processes.status(self._files, stat.pid))
            yield identity.Ancestor(stat.pid, stat.name, stat.group, stat.started, uid)
            if stat.parent <= 0:
                return
            try:
                stat = processes.stat(self._files, stat.parent)
            except OSError:
                return
