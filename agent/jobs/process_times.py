"""Measures how long the threads of GPU processes run, wait for a core, and sleep uninterruptibly.

A GPU process, which NVML reports, launches kernels from its main thread and its backward-pass
threads in turn. These are its launching threads. All other threads, descendants, and short-lived
children are workers. In an XLA (JAX) process, all threads are dispatching threads: they sleep while
the GPU is busy, and wake up to launch a kernel. The Linux kernel counts the nanoseconds for which
each thread runs and waits for a core (`schedstat`), so no time between two reads is missed.
Uninterruptible sleep is not counted. It is sampled once per read.
"""

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from operator import add
from typing import NamedTuple

from agent.bounds import LIST_BEGUN, MOST_DESCENDANTS, MOST_FOLLOWED, MOST_LISTED, MOST_THREADS
from agent.hardware import processes
from agent.hardware.files import FileTree, names_in
from agent.model import Labels

SEARCH_EVERY, SEARCH_FIRST = 10.0, 2.0
"""SEARCH_EVERY: seconds between two searches for new threads of a process, because listing 150
threads takes 1 ms. SEARCH_FIRST: the same for new processes and for descendants (chosen)."""

ACTIVE = 2 / processes.TICKS_PER_SECOND
"""Share of time above which a thread or process counts as active: two kernel ticks of 10 ms per
second. The kernel may count a whole tick for a thread that only wakes up briefly."""

ENGINE = 8.0
"""A thread that runs this many times as long as any other counts as the engine of a server: it
launches kernels while the main thread serves clients. Chosen: data loaders all run equally long."""


class Times(NamedTuple):
    """Seconds for which a thread runs, waits for a core, is in uninterruptible sleep (D), runs in
    the kernel, and runs in the kernel to map new memory."""

    running: float = 0.0
    queued: float = 0.0
    blocked: float = 0.0
    system: float = 0.0
    fresh: float = 0.0

    def plus(self, other: "Times") -> "Times":
        """Return the sum of these times and `other`."""
        return Times(*map(add, self, other))


NONE = Times()


class GpuTimes(NamedTuple):
    """Times of a GPU's processes since the last read, by role: launching threads (None if a main
    thread cannot be read), dispatching threads, and workers. The other fields are the number of
    active workers, the share of time (0-1) for which the busiest worker is active, whether /proc
    hides any workers, and the number of processes with pinned memory and with a backward pass."""

    launching: Times | None
    dispatching: Times
    working: Times
    workers: int
    busiest: float
    hidden: bool = False
    pinning: int = 0
    training: int = 0


@dataclass(slots=True, eq=False)
class _Thread:
    """Counters of a thread or of a whole process. `grown` is the increase at the last reading."""

    grown: Times = NONE
    counted: Times = NONE
    at: float | None = None

    def take(self, at: float, state: str, counted: Times) -> Times:
        """Record a reading of the counters, and return the increase."""
        self.grown = NONE
        if self.at is not None:
            both = zip(counted, self.counted, strict=True)
            grown = [now - before if now > before else 0.0 for now, before in both]
            running, queued, _, system, fresh = grown
            blocked = at - self.at if state == "D" else 0.0
            self.grown = Times(running, queued, blocked, system, fresh)
        self.at, self.counted = at, counted
        return self.grown


@dataclass(slots=True, eq=False)
class _Listing:
    """A search for the threads of a process. It takes several ticks for thousands of threads."""

    elapsed: float  # s since the previous listing
    names: list[str]  # IDs of threads still to be read
    seconds: dict[int, float]
    active: list[tuple[float, int]] = field(default_factory=list)
    launched: float = 0.0

    def take(self, process: "_Process", found: processes.Stat, pid: int) -> None:
        """Add a thread of process `pid` to the threads found so far."""
        self.seconds[found.pid] = found.seconds
        used = found.seconds - process.seconds.get(found.pid, found.seconds)
        process.dispatches |= found.name.startswith(processes.DISPATCHING)
        if found.name.startswith(processes.LAUNCHING):
            process.launching.setdefault(found.pid, _Thread())
            process.trains = True
            self.launched += used
        elif found.pid == pid:
            self.launched += used
        elif found.state in "RD" or used > ACTIVE * self.elapsed:
            self.active.append((used, found.pid))
        elif not used and found.pid in process.seconds:
            process.asleep.add(found.pid)


@dataclass(slots=True, eq=False)
class _Process:
    """A GPU process or a descendant. `whole` contains the sums over all threads. The threads in
    `launching` and `followed` are also read individually."""

    started: float
    parent: int
    met: float  # time of the first read
    state: str = ""
    whole: _Thread = field(default_factory=_Thread)
    launching: dict[int, _Thread] = field(default_factory=dict)
    followed: dict[int, _Thread] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # CPU time of each listed thread
    engine: int = 0  # thread that launches instead of the main thread, if any
    woken: float = 0.0  # time slices of the main thread at the last listing
    asleep: set[int] = field(default_factory=set)  # threads idle at the last listing
    unexplained: float = 0.0  # s that workers which are not followed ran since then
    listed: float | None = None
    listing: "_Listing | None" = None
    surveyed: float = 0.0
    dispatches: bool = False  # its threads sleep while the GPU works
    pins: bool = False  # it has pinned memory
    trains: bool = False  # it has run a backward pass
    launched: Times | None = NONE  # increase of the launching threads in the last reading
    worked: Times = NONE  # increase of all other threads and of ended children
    workers: int = 0  # number of active workers
    busiest: float = 0.0  # active share of the busiest worker
    _surplus: float = 0.0  # CPU time of workers that is not visible in 10 ms ticks yet
    ended: float | None = None  # s of all ended descendants, according to the kernel
    grown: float = 0.0  # increase of `ended` in the last reading, not reported yet
    due: float = 0.0  # s of known children that have ended; the kernel adds this time to `ended`

    def children(self, ended: float) -> float:
        """Return the CPU seconds of children that ended before they were read, from the kernel's
        total for ended children (`ended`). The result is one reading late, because only the next
        reading shows which children ended."""
        known = min(self.grown, self.due)
        self.due -= known
        found = self.grown - known
        self.grown = 0.0 if self.ended is None else max(0.0, ended - self.ended)
        self.ended = ended
        return found

    def choose_engine(
        self, active: list[tuple[float, int]], launched: float, elapsed: float
    ) -> None:
        """If one thread ran much longer than all others, make it the engine, a launching thread.
        `active` contains the CPU seconds and IDs of threads that do not launch, longest first.
        Launching threads ran for `launched` of the last `elapsed` seconds."""
        ran = next((ran for ran, tid in active if tid == self.engine), 0.0)
        if ran and ENGINE * launched > ran:
            self.launching.pop(self.engine, None)
            self.engine = 0
        next_most = max([launched, ACTIVE * elapsed, *(ran for ran, _ in active[1:2])])
        if active and active[0][0] > ENGINE * next_most:
            self.engine = active.pop(0)[1]
            self.launching.setdefault(self.engine, _Thread())

    def others(self, launched: float) -> float:
        """Return the CPU seconds of threads that launch no GPU work. The others used `launched`."""
        self._surplus += self.whole.grown.running - launched
        found = max(0.0, self._surplus)
        self._surplus -= found
        return found


class ProcessTimes:
    """Reads the times of GPU processes. A process on several GPUs is read once for all of them."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._descent = processes.Descent(files)
        self.known: dict[int, _Process] = {}
        self._below: dict[Labels, tuple[tuple[int, ...], list[int], float]] = {}
        self._unreadable: dict[Labels, set[int]] = {}  # descendants in the last search
        self._hidden: dict[Labels, set[int]] = {}  # in both last searches, so still alive
        self._to_list: dict[int, None] = {}  # processes whose threads will be listed
        self._left, self._at = 0, -inf  # number of threads that can be listed now

    def read(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> GpuTimes | None:
        """Return the increases in the times of a GPU's processes up to `at` (s), or None if all
        have exited. `foreign` contains the PIDs on all GPUs, which do not count as workers."""
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
        counts = bool(self._hidden.get(gpu)), sum(p.pins for p in own), sum(p.trains for p in own)
        return GpuTimes(seen, dispatching, working, workers, min(1.0, busiest), *counts)

    def forget(self, gpus: Iterable[Labels], at: float) -> None:
        """Drop processes that were not read at time `at`, and GPUs that are not in `gpus`."""
        for pid in [p for p, one in self.known.items() if one.whole.at != at]:
            self._end(pid)
        for gpu in self._below.keys() - set(gpus):
            for table in (self._below, self._unreadable, self._hidden):
                del table[gpu]

    def _descendants(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> Sequence[int]:
        """Return the PIDs of the descendants of a GPU's processes. They are searched for every 2 s
        (SEARCH_FIRST), at a different time for each GPU."""
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
        """Read the times of a process, and return the process, or None if it has exited."""
        known = self.known.get(pid)
        if known is not None and known.whole.at == at:
            return known
        try:
            stat = processes.stat(self._files, pid, again=True)
        except OSError:
            self._end(pid)
            return None
        if known is None or known.started != stat.started:
            self._end(pid)
            known = self.known[pid] = _Process(stat.started, stat.parent, met=at)
            parent = self.known.get(stat.parent, known)
            age = (processes.uptime(self._files) or inf) - stat.started
            if parent.met < at and age < SEARCH_EVERY:  # short-lived, so count its whole life
                known.ended, known.whole = 0.0, _Thread(at=at - age)
        known.state = stat.state
        before, queued = known.whole.at, known.whole.counted.queued
        if not launches and (stat.state == "R" or stat.seconds != known.whole.counted.running):
            queued = 0.0  # a sleeping thread has not waited for a core
            with suppress(OSError, ValueError, IndexError, OverflowError):
                queued = int(self._files.reread(f"/proc/{pid}/schedstat").split()[1]) / 1e9
        known.whole.take(at, stat.state, Times(stat.seconds, queued, 0.0, stat.system, stat.fresh))
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
        rests = process.state == "S" and not process.whole.grown.running  # for up to 10 ms
        alone = len(process.launching) == 1 and not process.followed
        if rests and alone and main.at is not None:
            process.launched = main.take(at, "S", main.counted)
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
        system = min(launched.running, max(0.0, system))
        launched = launched._replace(system=system, fresh=process.whole.grown.fresh)
        process.launched = None if grown[pid] is None else launched

    def _take(
        self, pid: int, tid: int, thread: _Thread, state: str | None, at: float
    ) -> Times | None:
        """Read a thread's counters and return their increase, or None if the thread has exited or
        cannot be read. If `state` is None, also read the thread's state."""
        try:
            if state is not None:
                return thread.take(at, state, Times(*self._schedule(pid, tid)))
            stat = processes.stat(self._files, pid, tid, again=True)
            return thread.take(at, stat.state, Times(*self._schedule(pid, tid), system=stat.system))
        except OSError:
            thread.grown = NONE
            return None

    def _list_threads(self, pid: int, process: _Process, at: float) -> None:
        """List a process's threads, and select its launching threads and those that ran longest."""
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
            process.choose_engine(active, one.launched, one.elapsed)
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
        names = names_in(self._files, f"/proc/{pid}/task")[:MOST_THREADS]
        return _Listing(elapsed, names, seconds)

    def _schedule(self, pid: int, tid: int) -> tuple[float, float]:
        """Return the seconds for which a thread ran, and the seconds for which it waited for a
        core. If the kernel lacks schedstat, return the CPU time in steps of 10 ms, and 0 for the
        wait. Raise OSError if the thread's statistics cannot be read."""
        try:
            text = self._files.reread(f"/proc/{pid}/task/{tid}/schedstat").split()
            return int(text[0]) / 1e9, int(text[1]) / 1e9
        except (FileNotFoundError, ValueError, IndexError, OverflowError):
            return processes.stat(self._files, pid, tid, again=True).seconds, 0.0

    def _asks_for_lock(self, pid: int, process: _Process, elapsed: float) -> bool:
        """Return whether the main thread has mainly polled for Python's interpreter lock since the
        last listing. A thread that polls for the lock gets a time slice every 5 ms."""
        before = process.woken
        with suppress(OSError, ValueError, IndexError):
            path = f"/proc/{pid}/task/{pid}/schedstat"
            process.woken = float(self._files.reread(path).split()[2])
        return elapsed / 2 < processes.LOCK_ASKED_EACH * (process.woken - before) < elapsed * 2

    def _end(self, pid: int) -> None:
        """Drop a process that has exited, and expect its CPU time in its parent's counters."""
        gone = self.known.pop(pid, None)
        self._to_list.pop(pid, None)
        if gone is not None and gone.parent in self.known:
            ended = (gone.ended or 0.0) - gone.grown
            self.known[gone.parent].due += gone.whole.counted.running + ended
