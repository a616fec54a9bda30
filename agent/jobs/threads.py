"""The threads of a GPU's own processes: which of them work, wait for a core, or wait for a disk.

A pipeline of threads is as common as one of processes, and /proc/PID/stat tells the state of the
first thread alone. All threads are listed now and then; those that did something are followed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.hardware import processes
from agent.hardware.files import FileTree

SURVEY_EVERY = 5.0
"""Seconds between two surveys of the threads of a process."""

MOST_THREADS = 512
"""Threads of one process that a survey reads."""

MOST_FOLLOWED = 24
"""Threads of one process that are read each second: those that did most."""

READINGS = 5
"""Readings that are kept of each followed thread, a second apart."""

DOES_SOMETHING = 0.02
"""Cores from which a thread is followed."""

NANOSECONDS = 1e-9


class ThreadReading(NamedTuple):
    """One reading of a thread: when (s), its state, its seconds on a core and ready for one."""

    at: float
    state: str
    ran: float
    queued: float


@dataclass(slots=True, eq=False)
class Thread:
    """One followed thread."""

    readings: deque[ThreadReading] = field(default_factory=lambda: deque(maxlen=READINGS))

    def rate(self, ran: bool) -> float:
        """Seconds a second on a core (`ran`) or ready and without one; 0 before two readings."""
        first, last = self.readings[0], self.readings[-1]
        if last.at <= first.at:
            return 0.0
        grown = last.ran - first.ran if ran else last.queued - first.queued
        return max(0.0, grown / (last.at - first.at))

    @property
    def waiting(self) -> float:
        """Share of the readings in uninterruptible sleep."""
        return sum(read.state == "D" for read in self.readings) / len(self.readings)


class ThreadActivity(NamedTuple):
    """What the threads of a GPU's processes do: how many do anything, cores of the busiest, the
    cores of all, the share of their ready time without a core, the mean share of time in which
    one of them waits uninterruptibly."""

    number: int
    busiest: float
    cores: float
    queued: float
    waiting: float


@dataclass(slots=True, eq=False)
class _Process:
    surveyed: float
    seconds: dict[int, float]  # CPU seconds of every thread at the last survey
    followed: dict[int, Thread] = field(default_factory=dict)


class Threads:
    """Follows the threads of processes; one reading a second."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._known: dict[int, _Process] = {}

    def read(self, pids: Iterable[int], at: float) -> ThreadActivity | None:
        """What the threads of these processes do; None where none can be seen or two readings have
        not been taken."""
        threads: list[Thread] = []
        for pid in pids:
            process = self._known.get(pid)
            if process is None or at - process.surveyed >= SURVEY_EVERY:
                self._survey(pid, at)
                process = self._known.get(pid)
            if process is not None:
                threads += self._follow(pid, process, at)
        known = [thread for thread in threads if len(thread.readings) > 1]
        if not known:
            return None
        ran = [thread.rate(ran=True) for thread in known]
        queued = sum(thread.rate(ran=False) for thread in known)
        return ThreadActivity(
            number=sum(
                cores >= DOES_SOMETHING or bool(thread.waiting)
                for cores, thread in zip(ran, known, strict=True)
            ),
            busiest=max(ran),
            cores=sum(ran),
            queued=queued / (queued + sum(ran)) if queued + sum(ran) else 0.0,
            waiting=sum(thread.waiting for thread in known) / len(known),
        )

    def forget(self, pids: Iterable[int]) -> None:
        """Keep only these processes."""
        for gone in self._known.keys() - set(pids):
            del self._known[gone]

    def _survey(self, pid: int, at: float) -> None:
        """See which threads did something since the last survey: those are followed."""
        before = self._known.get(pid)
        try:
            names = self._files.names(f"/proc/{pid}/task")[:MOST_THREADS]
        except OSError:
            self._known.pop(pid, None)
            return
        seconds: dict[int, float] = {}
        active: list[tuple[float, int]] = []
        elapsed = at - before.surveyed if before else 0.0
        for name in names:
            try:
                found = processes.thread(self._files, pid, int(name))
            except (OSError, ValueError):
                continue
            seconds[found.pid] = found.seconds
            known = before.seconds.get(found.pid) if before else None
            used = (found.seconds - known) / elapsed if known is not None and elapsed else 0.0
            if found.state in "RD" or used >= DOES_SOMETHING:
                active.append((used, found.pid))
        chosen = [tid for _, tid in sorted(active, reverse=True)[:MOST_FOLLOWED]]
        followed = before.followed if before else {}
        kept = {tid: followed.get(tid) or Thread() for tid in chosen}
        self._known[pid] = _Process(at, seconds, kept)

    def _follow(self, pid: int, process: _Process, at: float) -> list[Thread]:
        for tid, thread in list(process.followed.items()):
            if thread.readings and thread.readings[-1].at == at:
                continue
            try:
                state = processes.thread(self._files, pid, tid).state
                ran, queued = schedule(self._files, pid, tid)
            except OSError:
                del process.followed[tid]
                continue
            thread.readings.append(ThreadReading(at, state, ran, queued))
        return list(process.followed.values())


def schedule(files: FileTree, pid: int, tid: int) -> tuple[float, float]:
    """Seconds that a thread ran, and that it was ready and waited for a core, from
    /proc/PID/task/TID/schedstat (exact: nanoseconds). Raises OSError."""
    text = files.read(f"/proc/{pid}/task/{tid}/schedstat").split()
    try:
        return int(text[0]) * NANOSECONDS, int(text[1]) * NANOSECONDS
    except (ValueError, IndexError, OverflowError) as error:
        raise ProcessLookupError(3, "ended", f"/proc/{pid}/task/{tid}/schedstat") from error
