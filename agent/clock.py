"""The agent's clock, and the CPU time of the agent's threads. Functions receive the clock as an
argument, so that tests can freeze it and simulations can speed it up."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from operator import sub
from typing import NamedTuple, Protocol

FRESH, SAME = 2.0, 0.01  # Maximum age of CPU times at a start and at an end (wall-clock s)


class ThreadTime(NamedTuple):
    """A thread's run time and wait time in seconds, and its number of time slices."""

    ran: float
    queued: float  # ready to run, but waiting for a CPU
    slices: int


NO_TIME = ThreadTime(0.0, 0.0, 0)


class ProcessorTime(NamedTuple):
    """The run times and wait times of all threads of this process at time `at`."""

    at: float
    threads: Mapping[int, ThreadTime]  # by kernel thread ID
    late: float  # total event loop delay, the only sign of a stopped process

    def waited(self, before: "ProcessorTime", thread: int) -> float:
        """Return the seconds since `before` for which a thread, or the whole process, waited for a
        CPU or for Python's interpreter lock. The kernel counts a wait for the lock as sleep, like a
        wait in a driver. However, a wait for the lock consists of short sleeps, and ends when the
        thread that holds the lock, probably the busiest other thread, has run."""
        since = self.since(before)
        mine = since.pop(thread, NO_TIME)
        asleep = max(0.0, self.at - before.at - mine.ran - mine.queued)
        holder = max((other.ran + other.queued for other in since.values()), default=0.0)
        # Such a thread wakes up each half millisecond, unless another acquires the lock first.
        lock = min(asleep, holder, mine.slices * 0.005)
        return max(mine.queued + lock, self.late - before.late)

    def since(self, before: "ProcessorTime") -> dict[int, ThreadTime]:
        """Return the times of each thread since `before`."""
        return {
            thread: ThreadTime(*map(sub, time, before.threads.get(thread, NO_TIME)))
            for thread, time in self.threads.items()
        }


class Clock(Protocol):
    """The interface to the agent's clock."""

    speed: float
    """Speed of this clock relative to wall-clock time. Timeouts are in wall-clock seconds."""

    def monotonic(self) -> float:
        """Return this clock's time in seconds. It may start at any value, and never decreases."""

    def time(self) -> float:
        """Return the wall-clock time in seconds since the epoch. The wall clock may jump."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` on this clock."""

    def block(self, until: float) -> None:
        """Block this thread until a time of this clock, or forever if it is infinite."""

    def meter(self) -> tuple[float, float]:
        """Return a wall-clock time and this thread's CPU time (s), to measure durations."""

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        """Return the CPU times of this process, read at most `age` wall-clock seconds ago."""

    def offset(self) -> float | None:
        """Return the wall-clock time minus the time since boot, in seconds. It changes only if the
        wall clock is set. Return None shortly after boot, before the clock is synchronized."""


class SystemClock:
    """The system clock, or a clock that is `speed` times as fast (`--simulate-speed`)."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._began = self._origin = self._awake = time.monotonic()
        self._late = 0.0  # total seconds by which sleeps were too long
        self._end = inf  # time at which the clock was stopped
        self._due: set[float] = set()  # due time of each sleep
        self._processor_time = ProcessorTime(0.0, {}, 0.0)

    def monotonic(self) -> float:
        return (min(time.monotonic(), self._end) - self._origin) * self.speed

    def time(self) -> float:
        # A fast clock advances both times; otherwise, timestamps and durations would disagree.
        return time.time() + (time.monotonic() - self._began) * (self.speed - 1.0)

    async def sleep(self, seconds: float) -> None:
        if self._end < inf:
            await asyncio.Event().wait()
        seconds = max(0.0, seconds) / self.speed
        due = time.monotonic() + seconds
        self._due.add(due)
        try:
            await asyncio.sleep(seconds)
            now = time.monotonic()
            self._late, self._awake = self._late + self._overdue(now, due), now
        finally:
            self._due.discard(due)

    def _overdue(self, now: float, due: float) -> float:
        """Return the seconds from `due`, or the end of the last sleep if later, to `now`."""
        return max(0.0, now - max(due, self._awake))

    def block(self, until: float) -> None:
        while (left := until - self.monotonic()) > 0:
            time.sleep(min(left / self.speed, 3600.0))  # s; infinity would raise an exception

    def skip(self, seconds: float) -> None:
        """Advance the clock by `seconds`, as if a simulated machine had started earlier."""
        self._origin -= seconds / self.speed

    def stop(self) -> None:
        """Stop the clock. A sleep that begins after this never ends."""
        self._end = time.monotonic()

    def meter(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        now = time.monotonic()
        if now - self._processor_time.at >= age:
            overdue = self._overdue(now, min(tuple(self._due), default=now))
            self._processor_time = ProcessorTime(now, _threads(), self._late + overdue)
        return self._processor_time

    def offset(self) -> float | None:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - since_boot if since_boot > 600.0 else None  # s


SETTLED = 10  # Rounds of the event loop in which each task that is ready has begun its next sleep


class TapeClock(SystemClock):
    """The clock of a recording that is read to its end at once. Once no thread runs, because all
    have ended their turns or are blocked, it advances to the end of the earliest sleep."""

    def __init__(self, speed: float = 1.0) -> None:
        super().__init__(speed)
        self.busy: Callable[[], int] = int  # returns the number of threads with an unfinished turn
        self.epoch, self._now = time.time(), 0.0
        self._sleeps: list[float] = []  # ends of sleeps, and of blocks of threads
        self._blocked: list[float] = []
        self._advanced = threading.Condition()

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self.epoch + self._now  # otherwise, the start of a fault would disagree

    def skip(self, seconds: float) -> None:
        self._now += seconds

    def processor_time(self, age: float = 0.0) -> ProcessorTime:  # noqa: ARG002 - always current
        return ProcessorTime(self._now, {}, 0.0)  # a wait for a CPU takes no time of this clock

    async def sleep(self, seconds: float) -> None:
        due = self._now + max(0.0, seconds)
        self._sleeps.append(due)
        try:
            earliest = 0  # times that this sleep was the earliest; other tasks may only start
            while earliest < SETTLED:
                await asyncio.sleep(0)
                earliest = earliest + 1 if due <= min(self._sleeps) else 0
            self.rest()
            self._now = max(self._now, due)
        finally:
            self._sleeps.remove(due)

    def block(self, until: float) -> None:
        with self._advanced:
            self._blocked.append(until)
            self._advanced.wait_for(lambda: self._now >= until)
            self._blocked.remove(until)

    def rest(self) -> None:
        """Block until no thread runs. Threads whose block has ended run again."""
        while self.busy() > sum(until > self._now for until in tuple(self._blocked)):
            with self._advanced:
                self._advanced.notify_all()
            time.sleep(0.0005)  # s


def _threads() -> dict[int, ThreadTime]:
    """Return the times of this process's threads by thread ID. Omit threads that cannot be read."""
    found = {}
    for thread in os.scandir("/proc/self/task"):
        with suppress(OSError, ValueError):
            file = os.open(f"{thread.path}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            try:  # Python's file objects take as long as the kernel
                ran, queued, slices = map(int, os.read(file, 128).split())
            finally:
                os.close(file)
            found[int(thread.name)] = ThreadTime(ran / 1e9, queued / 1e9, slices)
    return found


class Stopwatch:
    """Measures the wall-clock seconds that a thread has spent in calls. Waits for a CPU are
    excluded, so that an overloaded machine does not look like a driver that hangs.

    Time for which a call sleeps in the driver or spins on the driver's lock is included.
    """

    __slots__ = ("_before", "_clock", "_thread", "since")

    def __init__(self, clock: Clock) -> None:
        self.since = clock.monotonic()
        self._clock, self._thread = clock, threading.get_native_id()
        self._before = clock.processor_time(FRESH)

    @property
    def took(self) -> float:
        """Wall-clock seconds since the start, excluding waits for a CPU. Any thread may read this
        property. A result below 0.1 s includes waits, because measuring them is expensive."""
        passed = (self._clock.monotonic() - self.since) / self._clock.speed
        if passed < 0.1:  # wall-clock seconds
            return passed
        waited = self._clock.processor_time(SAME).waited(self._before, self._thread)
        return max(0.0, passed - waited)
