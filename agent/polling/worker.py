"""A worker runs reads on its own thread. A call that hangs stalls only its worker."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from agent.clock import Clock, Stopwatch, TapeClock
from agent.errors import Failure, LogEvent, log
from agent.model import Reading, ReadKey, Snapshot
from agent.polling import intervals

T = TypeVar("T")

Finished = Reading | ReadKey
"""A result of a worker: a reading, or the key of a reading to drop because its device is gone."""
Emit = Callable[[Finished], None]

Leave = Callable[[], float | None]
"""A function that checks whether the current call hangs. It returns 0 if another thread must take
over, and otherwise the wall-clock seconds until the next check, or None to end the checks."""

SHORTEST_WAIT = 0.01
"""Minimum wall-clock seconds between two checks of a call. The call may have taken less time than
passed, because waits for a CPU are not included."""


@dataclass(slots=True, eq=False)
class Guard:
    """Runs a part of the agent, such as an observer. If the part raises an exception, its source is
    down, and the agent continues. The first failure and the recovery are logged."""

    source: str
    part: str = "observer"
    failure: Failure | None = None

    def run(self, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of `work`, or `otherwise` if it raises an exception."""
        try:
            result, failure = work(), None
        except Exception as error:  # errors and unexpected data must not stop the agent
            result, failure = otherwise, Failure.of(error)
        if failure and not self.failure:
            log.error(LogEvent(f"{self.part}_failed", source=self.source, error=str(failure)))
        elif self.failure and not failure:
            log.info(LogEvent(f"{self.part}_recovered", source=self.source))
        self.failure = failure
        return result

    def report(self, work: Callable[[Snapshot], Reading], snapshot: Snapshot) -> Reading:
        """Return the reading from `work`, with the failure of the last `run`, if any."""
        try:
            reading = work(snapshot)
        except Exception as error:
            key = ReadKey(self.source, "report")
            return Reading(key, snapshot.at, intervals.TICK, failure=Failure.of(error))
        return replace(reading, failure=self.failure) if self.failure else reading


@dataclass(eq=False)
class Worker:
    """Runs `work` once per tick (a turn) on its own thread, and returns completed readings.

    The thread is a daemon thread outside any executor, because a driver call that never returns
    must not block the exit of the process. If `leave` returns 0, another thread takes over, and the
    thread that hangs ends when its call returns.
    """

    name: str
    work: Callable[[Emit], None]
    complete: Callable[[], bool]  # whether every read has been run at least once
    clock: Clock
    leave: Leave | None = None
    _: KW_ONLY
    due: Callable[[], bool] = lambda: True
    is_pending: Callable[[], bool] = lambda: False  # whether a second turn in the tick has reads
    busy: bool = False
    _finished: SimpleQueue[Finished] = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards the turn
    _turns: SimpleQueue[None] = field(default_factory=SimpleQueue)
    _waiting: list[Callable[[], None]] = field(default_factory=list)
    _threads: int = 0  # number of threads; only the latest runs turns
    turn: Stopwatch | None = None  # the current one
    _relief: "asyncio.Future[None] | None" = None

    def __post_init__(self) -> None:
        self._start()

    def start_turn(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                loop.call_soon_threadsafe(settle, ended)

        with self._lock:
            self._waiting.append(end)
            if not self.busy:
                self._begin()
        if self.leave is not None and (self._relief is None or self._relief.done()):
            self._relief = asyncio.ensure_future(self._relieve(self.leave))
        if isinstance(self.clock, TapeClock):  # a turn takes no time, unless a call of it hung
            self.clock.rest()
            if not self.busy:
                settle(ended)
        return ended

    def finished(self) -> list[Finished]:
        taken: list[Finished] = []
        while not self._finished.empty():
            taken.append(self._finished.get())
        return taken

    @property
    def stalled_for(self) -> float:
        """Wall-clock seconds for which `work` has been running, excluding waits for a CPU."""
        turn = self.turn  # the worker's thread may clear it at any time
        return 0.0 if turn is None else turn.took

    def _begin(self) -> None:
        self.busy = True
        self._turns.put(None)

    async def _relieve(self, leave: Leave) -> None:
        """Start another thread when `leave` returns 0, which means that a call hangs."""
        while True:
            with self._lock:
                wait = leave() if self.busy else None
                if wait == 0.0:
                    self._start()
                    self._begin()
            if wait is None:
                return
            await self.clock.sleep(max(wait, SHORTEST_WAIT) * self.clock.speed)

    def _start(self) -> None:
        self._threads += 1
        name = f"worker-{self.name}"
        threading.Thread(target=self._loop, args=(self._threads,), name=name, daemon=True).start()

    def _loop(self, thread: int) -> None:
        guard = Guard(self.name, "worker")
        while True:
            self._turns.get()
            self.turn = Stopwatch(self.clock)
            guard.run(partial(self.work, self._finished.put), None)
            with self._lock:
                if thread != self._threads:
                    return
                self.busy, self.turn = False, None
                waiting, self._waiting = self._waiting, []
            for end in waiting:
                end()


class InlineWorker(Worker):
    """A worker without a thread, for tests and reads of memory: `start_turn` itself runs `work`."""

    def start_turn(self) -> asyncio.Future[None]:
        ended = asyncio.get_running_loop().create_future()
        self.work(self._finished.put)
        ended.set_result(None)
        return ended

    def _start(self) -> None:
        """Do nothing, because this worker has no thread."""


def settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
