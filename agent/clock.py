"""The agent's clock, handed in, so that tests freeze it and simulations run it fast; and the time
that the agent's threads had of the machine's processors."""

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from operator import sub
from typing import NamedTuple, Protocol

SLEEP_FOR_LOCK = 0.005
"""Seconds of a sleep of a thread that waits for Python's lock: it looks again each half
millisecond, and waits longer only for the thread that takes the lock from it."""

SHORT = 0.1  # Real seconds of a call that are always its own
FRESH, SAME = 2.0, 0.01  # Real seconds for which processor times serve as a start, and as an end


class ThreadTime(NamedTuple):
    """Processor time of a thread since its start (real s), and the number of its time slices."""

    ran: float
    queued: float  # ready to run, without a processor
    slices: int


NO_TIME = ThreadTime(0.0, 0.0, 0)


class ProcessorTime(NamedTuple):
    """Processor time of all threads of this process at a moment (real s)."""

    at: float
    threads: Mapping[int, ThreadTime]  # by the kernel's thread id
    late: float  # total delay of the event loop: stopped processes have no other sign

    def waited(self, before: "ProcessorTime", thread: int) -> float:
        """Return the seconds since `before` in which this thread waited for a processor or for
        Python's lock, or the whole process did.

        A wait for the lock is a sleep, as a driver's wait is. It cannot last longer than the thread
        that held the lock, the busiest of the others, ran or was queued, and consists of short
        sleeps.
        """
        since = self._since(before)
        mine = since.pop(thread, NO_TIME)
        asleep = max(0.0, self.at - before.at - mine.ran - mine.queued)
        holder = max((other.ran + other.queued for other in since.values()), default=0.0)
        lock = min(asleep, holder, mine.slices * SLEEP_FOR_LOCK)
        return max(mine.queued + lock, self.late - before.late)

    def queued_since(self, before: "ProcessorTime") -> float:
        """Return the seconds that all threads waited for a processor."""
        return sum(thread.queued for thread in self._since(before).values())

    def _since(self, before: "ProcessorTime") -> dict[int, ThreadTime]:
        return {
            thread: ThreadTime(*map(sub, time, before.threads.get(thread, NO_TIME)))
            for thread, time in self.threads.items()
        }


class Clock(Protocol):
    """Time as the agent sees it."""

    speed: float
    """Seconds of this clock in a real second. Limits of lateness are real seconds."""

    def monotonic(self) -> float:
        """Seconds on the agent's clock, from an arbitrary origin; never steps back."""

    def time(self) -> float:
        """Wall time in seconds since the epoch; may step."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many of this clock's seconds."""

    def meter(self) -> tuple[float, float]:
        """Real seconds of wall time and of this thread's CPU time: the price of its work."""

    def processor_time(self, age: float = 0.0) -> ProcessorTime:
        """Processor time of this process, as read at most `age` real seconds ago."""

    def offset(self) -> float | None:
        """Wall time less the real time since boot (s): it stays the same unless somebody sets the
        clock. None while the machine has just started, and is about to learn the time."""


STARTED = 600.0
"""Seconds after boot by which a machine has learned the time from the network."""


class SystemClock:
    """The machine's clock, or a clock that runs `speed` times faster (`--simulate-speed`)."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._began = self._origin = self._awake = time.monotonic()
        self._late = 0.0  # s by which sleeps ended late
        self._due: set[float] = set()  # end of each sleep
        self._processor_time = ProcessorTime(0.0, {}, 0.0)

    def monotonic(self) -> float:
        return (time.monotonic() - self._origin) * self.speed

    def time(self) -> float:
        # A fast clock is ahead in both, or times of day contradict the durations beside them.
        return time.time() + (time.monotonic() - self._began) * (self.speed - 1.0)

    async def sleep(self, seconds: float) -> None:
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
        """Seconds since a sleep should have ended, without those of sleeps that were late before"""
        return max(0.0, now - max(due, self._awake))

    def skip(self, seconds: float) -> None:
        """Advance the clock, so that a simulated machine has been running for a while."""
        self._origin -= seconds / self.speed

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
        return time.time() - since_boot if since_boot > STARTED else None


def _threads() -> dict[int, ThreadTime]:
    """Processor time of each thread of this process; empty on a kernel that does not count it."""
    found = {}
    for task in os.scandir("/proc/self/task"):
        with suppress(OSError, ValueError), open(f"{task.path}/schedstat", "rb") as file:
            ran, queued, slices = map(int, file.read().split())
            found[int(task.name)] = ThreadTime(ran / 1e9, queued / 1e9, slices)
    return found


class Stopwatch:
    """Real seconds that the calls of a thread take; the waits of the agent do not count: a machine
    short of processors is not a driver that hangs.

    A call that hangs sleeps in the driver, or runs while it waits for its lock: both count.
    """

    __slots__ = ("_before", "_clock", "_thread", "since")

    def __init__(self, clock: Clock) -> None:
        self.since = clock.monotonic()
        self._clock, self._thread = clock, threading.get_native_id()
        self._before = clock.processor_time(FRESH)

    @property
    def passed(self) -> float:
        """Real seconds since the start, waits included."""
        return (self._clock.monotonic() - self.since) / self._clock.speed

    @property
    def took(self) -> float:
        """Real seconds since the start without the waits, for any thread; a short time is returned
        as it is, without a search for waits."""
        passed = self.passed
        if passed < SHORT:
            return passed
        waited = self._clock.processor_time(SAME).waited(self._before, self._thread)
        return max(0.0, passed - waited)
