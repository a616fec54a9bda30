"""Thread times of each GPU's processes: running, waiting for a core, in uninterruptible sleep.

The threads that launch are the main thread of a process that NVML names and those that run a
backward pass, which take turns with it. All other threads of that process, its descendants, and
children that came and went are workers. All threads of a process of XLA (JAX) dispatch: they sleep
while their GPU works, and wake to launch. The kernel counts the time on a core and in the queue for
a core (`schedstat`, nanoseconds), so nothing is missed between two reads; uninterruptible sleep is
sampled, once a read.
"""

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from operator import add
from typing import NamedTuple

from agent.bounds import (
    LIST_BEGUN,
    MOST_DESCENDANTS,
    MOST_FOLLOWED,
    MOST_LISTED,
    MOST_THREADS,
)
from agent.hardware import processes
from agent.hardware.files import FileTree
from agent.model import Labels

SEARCH_EVERY, SEARCH_FIRST = 10.0, 2.0
"""Seconds between two looks for new threads of a process (a list of 150 takes 1 ms), while it is
young, and between two looks for descendants of a GPU's processes (chosen)."""

ACTIVE = 2 / processes.TICKS_PER_SECOND
"""Share of the time from which a thread or process counts as active: two ticks of its CPU time a
second, because one tick may be a rounding of a thread that wakes up now and then."""

ENGINE = 8.0
"""Ratio of the running time of a thread to that of the main thread and of any other, from which it
launches in the main thread's place: the engine of a server, while the main thread answers clients.
Chosen, not measured, between loaders, which run alike, and an engine, which runs alone."""


class Times(NamedTuple):
    """Seconds of threads: on a core, ready without a core, asleep uninterruptibly (D), and those on
    a core in the kernel."""

    running: float = 0.0
    queued: float = 0.0
    blocked: float = 0.0
    system: float = 0.0

    def plus(self, other: "Times") -> "Times":
        """Return the sum of both."""
        return Times(*map(add, self, other))


NONE = Times()


class GpuTimes(NamedTuple):
    """The processes of a GPU since the read before: the threads that launch (None if a main thread
    is not readable), those that dispatch, all others together, how many of these were active, for
    which share of the time (0-1) the busiest was, whether /proc hides some of them, and how many
    of the processes have pinned memory."""

    launching: Times | None
    dispatching: Times
    working: Times
    workers: int
    busiest: float
    hidden: bool = False
    pinning: int = 0


@dataclass(slots=True, eq=False)
class _Thread:
    """A thread, or all threads of a process; `grown` is the growth by the last reading."""

    grown: Times = NONE
    ran: float = 0.0
    queued: float = 0.0
    system: float = 0.0
    at: float | None = None

    def take(self, at: float, state: str, ran: float, queued: float, system: float = 0.0) -> Times:
        """Take in a reading of its counters (s); returns the growth."""
        self.grown = NONE
        if self.at is not None:
            blocked = at - self.at if state == "D" else 0.0
            on_cores, in_kernel = max(0.0, ran - self.ran), max(0.0, system - self.system)
            self.grown = Times(on_cores, max(0.0, queued - self.queued), blocked, in_kernel)
        self.at, self.ran, self.queued, self.system = at, ran, queued, system
        return self.grown


@dataclass(slots=True, eq=False)
class _Listing:
    """A list of the threads of a process, which takes several reads if it has thousands."""

    elapsed: float  # s since the list before
    names: list[str]  # of threads that are still to be read
    seconds: dict[int, float]
    active: list[tuple[float, int]] = field(default_factory=list)
    launched: float = 0.0

    def take(self, process: "_Process", found: processes.Stat, pid: int) -> None:
        """Take in one thread of the process, which has the number `pid`."""
        self.seconds[found.pid] = found.seconds
        used = found.seconds - process.seconds.get(found.pid, found.seconds)
        process.dispatches |= found.name.startswith(processes.DISPATCHING)
        if found.name.startswith(processes.LAUNCHING):
            process.launching.setdefault(found.pid, _Thread())
            self.launched += used
        elif found.pid == pid:
            self.launched += used
        elif found.state in "RD" or used > ACTIVE * self.elapsed:
            self.active.append((used, found.pid))
        elif not used and found.pid in process.seconds:
            process.asleep.add(found.pid)


@dataclass(slots=True, eq=False)
class _Process:
    """A process; `whole` counts all its threads, `launching` and `followed` are read alone."""

    started: float
    parent: int
    met: float  # when it was first read
    state: str = ""
    whole: _Thread = field(default_factory=_Thread)
    launching: dict[int, _Thread] = field(default_factory=dict)
    followed: dict[int, _Thread] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # CPU time of each thread when listed
    engine: int = 0  # the thread that launches in the main thread's place, if any
    woken: int = 0  # how often the main thread was put on a core until then
    asleep: set[int] = field(default_factory=set)  # threads that slept and did nothing then
    unexplained: float = 0.0  # s that workers ran since then, beside those that are read
    listed: float | None = None
    listing: "_Listing | None" = None
    surveyed: float = 0.0
    dispatches: bool = False  # its threads sleep while its GPU works
    pins: bool = False  # it has pinned memory
    launched: Times | None = NONE  # growth by the last reading, of the threads that launch
    worked: Times = NONE  # and of all others, its ended children among them
    workers: int = 0  # how many of these did something
    busiest: float = 0.0  # share of the time for which the busiest did
    _surplus: float = 0.0  # CPU time of workers that steps of 10 ms did not show yet
    ended: float | None = None  # s of all ended children and of theirs, as the kernel counts them
    grown: float = 0.0  # growth of that by the last reading, not reported yet
    due: float = 0.0  # s of children that were read, have ended, and are or soon will be in there

    def children(self, ended: float) -> float:
        """CPU time (s) of children that ended and were never read, a reading later: only then is it
        known which of the children that were read have ended."""
        known = min(self.grown, self.due)
        self.due -= known
        found = self.grown - known
        self.grown = 0.0 if self.ended is None else max(0.0, ended - self.ended)
        self.ended = ended
        return found

    def choose_engine(self, active: list[tuple[float, int]], others: float) -> None:
        """Take the thread that ran longest for the engine if it ran alone; `active` has the seconds
        of each, the longest first, and `others` the seconds that the launching threads ran."""
        next_most = max([others, *(ran for ran, _ in active[1:2])])
        if active and active[0][0] > ENGINE * next_most:
            self.engine = active.pop(0)[1]
            self.launching.setdefault(self.engine, _Thread())

    def others(self, launched: float) -> float:
        """CPU time (s) of the threads that do not launch."""
        self._surplus += self.whole.grown.running - launched
        found = max(0.0, self._surplus)
        self._surplus -= found
        return found


class ProcessTimes:
    """Reads the processes of GPUs, each once a read, however many GPUs it works on."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._descent = processes.Descent(files)
        self._known: dict[int, _Process] = {}
        self._below: dict[Labels, tuple[tuple[int, ...], list[int], float]] = {}
        self._unreadable: dict[Labels, set[int]] = {}  # descendants at the last search
        self._hidden: dict[Labels, set[int]] = {}  # at the read before too: not just ended
        self._to_list: dict[int, None] = {}  # processes whose threads are listed in turn
        self._left, self._at = 0, -inf  # threads that may be listed now

    def read(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> GpuTimes | None:
        """The processes of a GPU at `at` (s); None if all are gone. `foreign` are those of all
        GPUs: a rank may be the parent of another."""
        own = [one for pid in pids if (one := self._read(pid, at, launches=True))]
        below = self._descendants(gpu, pids, foreign, at)
        every = [*own, *(one for pid in below if (one := self._read(pid, at, launches=False)))]
        if not own:
            return None
        launching = dispatching = working = NONE
        for one in every:
            launched = one.launched or NONE
            if one.dispatches:
                dispatching = dispatching.plus(launched)
            else:
                launching = launching.plus(launched)
            working = working.plus(one.worked)
        workers, busiest = sum(one.workers for one in every), max(one.busiest for one in every)
        seen = launching if all(one.launched is not None for one in own) else None
        hidden, pinning = bool(self._hidden.get(gpu)), sum(one.pins for one in own)
        return GpuTimes(seen, dispatching, working, workers, min(1.0, busiest), hidden, pinning)

    def forget(self, gpus: Iterable[Labels], at: float) -> None:
        """Drop the processes that were not read now, and the GPUs that are gone."""
        for pid in [p for p, one in self._known.items() if one.whole.at != at]:
            self._end(pid)
        for gpu in self._below.keys() - set(gpus):
            for table in (self._below, self._unreadable, self._hidden):
                del table[gpu]

    def started(self, pid: int) -> float | None:
        """Return the start of a process that was read (s since boot)."""
        known = self._known.get(pid)
        return None if known is None else known.started

    def is_stopped(self, pid: int) -> bool:
        """Return whether a signal or a debugger has stopped a process."""
        known = self._known.get(pid)
        return known is not None and known.state in ("T", "t")

    def _descendants(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> Sequence[int]:
        """The descendants of a GPU's processes, found by a search now and then, for GPUs in
        turns."""
        known = self._below.get(gpu)
        if known is None or known[0] != pids or known[2] <= at:
            turn = 0.0 if known else len(self._below) % SEARCH_FIRST
            found = self._descent.below(pids, foreign, MOST_DESCENDANTS, at)
            known = self._below[gpu] = pids, found, at + SEARCH_FIRST - turn
            unreadable = {pid for pid in found if self._read(pid, at, launches=False) is None}
            unreadable |= self._descent.unlisted
            self._hidden[gpu] = unreadable & self._unreadable.get(gpu, set())
            self._unreadable[gpu] = unreadable
        return known[1]

    def _read(self, pid: int, at: float, *, launches: bool) -> _Process | None:
        """A reading of a process; None if it is not there any more."""
        known = self._known.get(pid)
        if known is not None and known.whole.at == at:
            return known
        try:
            stat = processes.stat(self._files, pid, again=True)
        except OSError:
            self._end(pid)
            return None
        if known is None or known.started != stat.started:
            self._end(pid)
            known = self._known[pid] = _Process(stat.started, stat.parent, met=at)
            parent = self._known.get(stat.parent, known)
            age = (processes.uptime(self._files) or inf) - stat.started
            if parent.met < at and age < SEARCH_EVERY:  # all that it did: a compiler is brief
                known.ended, known.whole = 0.0, _Thread(at=at - age)
        known.state = stat.state
        before, queued = known.whole.at, known.whole.queued
        if not launches and (stat.state == "R" or stat.seconds != known.whole.ran):
            queued = self._queued(pid)  # a thread that sleeps did not wait for a core
        known.whole.take(at, stat.state, stat.seconds, queued, stat.system)
        known.worked = Times(running=known.children(stat.ended))
        if launches:
            self._read_threads(pid, known, at)
            did = [sum(one.grown[:3]) for one in known.followed.values()]
        else:
            self._to_list.pop(pid, None)
            known.worked = known.worked.plus(known.whole.grown)
            did = [sum(known.whole.grown[:3])]
        elapsed = at - before if before is not None else 0.0
        known.workers = sum(seconds > ACTIVE * elapsed for seconds in did)
        known.busiest = max(did, default=0.0) / elapsed if elapsed else 0.0
        return known

    def _read_threads(self, pid: int, process: _Process, at: float) -> None:
        every = SEARCH_EVERY if at - process.met > processes.YOUNG else SEARCH_FIRST
        if at != self._at:
            self._left, self._at = MOST_LISTED, at
        if process.listed is None or at - process.listed >= every:
            self._to_list.setdefault(pid)
        if self._left > 0 and pid == next(iter(self._to_list), None):
            self._list_threads(pid, process, at)
        main = process.launching.setdefault(pid, _Thread())
        rests = process.state == "S" and not process.whole.grown.running  # to 10 ms
        alone = len(process.launching) == 1 and not process.followed
        if rests and alone and main.at is not None:
            process.launched = main.take(at, "S", main.ran, main.queued)
            return
        grown = {
            tid: self._take(pid, tid, thread, process.state if tid == pid else "", at)
            for tid, thread in process.launching.items()
        }
        launched = NONE
        for one in grown.values():
            launched = launched.plus(one or NONE)
        if process.dispatches:
            launched = launched._replace(running=process.whole.grown.running)
        others, system = process.others(launched.running), process.whole.grown.system
        process.worked = process.worked.plus(Times(others))
        process.unexplained += others
        for tid, thread in process.followed.items():
            worked = self._take(pid, tid, thread, None, at) or NONE
            process.worked = process.worked.plus(worked._replace(running=0.0))
            process.unexplained -= worked.running
            system -= worked.system
        launched = launched._replace(system=min(launched.running, max(0.0, system)))
        process.launched = None if grown[pid] is None else launched

    def _take(
        self, pid: int, tid: int, thread: _Thread, state: str | None, at: float
    ) -> Times | None:
        """A reading of a thread; None if it has ended or is not readable. Without a `state` it is
        read."""
        try:
            if state is not None:
                return thread.take(at, state, *self._schedule(pid, tid))
            stat = processes.stat(self._files, pid, tid, again=True)
            return thread.take(at, stat.state, *self._schedule(pid, tid), stat.system)
        except OSError:
            thread.grown = NONE
            return None

    def _list_threads(self, pid: int, process: _Process, at: float) -> None:
        """Find the threads that launch, and those that ran most since the last list."""
        if process.listing is None:
            process.listing = self._begin_list(pid, process, at)
        one, most = process.listing, max(0, self._left)
        names, one.names = one.names[:most], one.names[most:]
        self._left -= len(names)
        for name in names:
            with suppress(OSError, ValueError):
                if int(name) not in process.asleep:
                    one.take(process, processes.stat(self._files, pid, int(name)), pid)
        if one.names:
            return
        active = sorted(one.active, reverse=True)
        if self._asks_for_lock(pid, process, one.elapsed):
            process.launching.pop(process.engine, None)
        else:
            process.choose_engine(active, max(one.launched, ACTIVE * one.elapsed))
        chosen = [tid for _, tid in active[:MOST_FOLLOWED] if tid not in process.launching]
        process.followed = {tid: process.followed.get(tid, _Thread()) for tid in chosen}
        process.seconds, process.listing = one.seconds, None
        del self._to_list[pid]

    def _begin_list(self, pid: int, process: _Process, at: float) -> _Listing:
        self._left -= LIST_BEGUN
        elapsed = 0.0 if process.listed is None else at - process.listed
        process.listed = at
        process.pins = processes.pins(self._files, pid)
        if process.unexplained > ACTIVE * elapsed or at - process.surveyed >= processes.LOOK_EVERY:
            process.surveyed, process.asleep = at, set()
        process.unexplained = 0.0
        seconds = {tid: process.seconds[tid] for tid in process.asleep}
        return _Listing(elapsed, self._names(pid), seconds)

    def _names(self, pid: int) -> list[str]:
        try:
            return self._files.names(f"/proc/{pid}/task")[:MOST_THREADS]
        except OSError:
            return []

    def _schedule(self, pid: int, tid: int) -> tuple[float, float]:
        """Seconds that a thread ran and that it was ready without a core; if the kernel has no
        schedstat its CPU time in steps of 10 ms, and no queue. Raises OSError."""
        try:
            text = self._files.reread(f"/proc/{pid}/task/{tid}/schedstat").split()
            return int(text[0]) / 1e9, int(text[1]) / 1e9
        except (FileNotFoundError, ValueError, IndexError, OverflowError):
            return processes.stat(self._files, pid, tid, again=True).seconds, 0.0

    def _asks_for_lock(self, pid: int, process: _Process, elapsed: float) -> bool:
        """Return whether the main thread mostly asked for the interpreter's lock since the last
        list, by how often it was put on a core."""
        before = process.woken
        with suppress(OSError, ValueError, IndexError):
            path = f"/proc/{pid}/task/{pid}/schedstat"
            process.woken = int(self._files.reread(path).split()[2])
        return elapsed / 2 < processes.LOCK_ASKED_EACH * (process.woken - before) < elapsed * 2

    def _queued(self, pid: int) -> float:
        """Seconds for which the main thread of a process was ready without a core."""
        with suppress(OSError, ValueError, IndexError, OverflowError):
            return int(self._files.reread(f"/proc/{pid}/schedstat").split()[1]) / 1e9
        return 0.0

    def _end(self, pid: int) -> None:
        """Forget a process that has ended: the kernel adds its time to its parent's children."""
        gone = self._known.pop(pid, None)
        self._to_list.pop(pid, None)
        if gone is not None and gone.parent in self._known:
            self._known[gone.parent].due += gone.whole.ran + (gone.ended or 0.0) - gone.grown
