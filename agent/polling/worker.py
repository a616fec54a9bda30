"""A worker: the one daemon thread of a backend. A call that hangs stalls its own worker only."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from agent.clock import Clock
from agent.errors import LogEvent
from agent.model import Reading, ReadKey

log = logging.getLogger(__name__)

Finished = Reading | ReadKey
"""What a worker hands over: a reading, or the key of one to forget because its device is gone."""
Emit = Callable[[Finished], None]
Work = Callable[[Emit], None]


class Worker:
    """Runs `work` once a tick on its own thread; hands readings over as they are finished.

    A daemon thread and no executor: a driver call that never returns must not hold up the exit.
    """

    def __init__(self, name: str, work: Work, complete: Callable[[], bool], clock: Clock) -> None:
        self.name = name
        self.complete = complete  # whether every read has run at least once
        self.busy_since: float | None = None
        self._work = work
        self._clock = clock
        self._finished: SimpleQueue[Finished] = SimpleQueue()
        self._turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._start()

    def start_turn(self) -> asyncio.Future[None]:
        """Start one turn unless one is still running; the future ends with the turn."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        if self.busy_since is not None:
            return ended
        self.busy_since = self._clock.monotonic()

        def done() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_end, ended)

        self._turns.put(done)
        return ended

    def finished(self) -> list[Finished]:
        """Everything handed over since the last call."""
        taken: list[Finished] = []
        while not self._finished.empty():
            taken.append(self._finished.get())
        return taken

    def stalled_for(self, now: float) -> float:
        """Seconds for which the present turn has been running."""
        since = self.busy_since  # the worker's thread clears it at any moment
        return 0.0 if since is None else now - since

    def _start(self) -> None:
        threading.Thread(target=self._loop, name=f"worker-{self.name}", daemon=True).start()

    def _loop(self) -> None:
        failing = False
        while True:
            done = self._turns.get()
            try:
                self._work(self._finished.put)
            except Exception:  # whatever it is, the worker must live to take the next turn
                if not failing:
                    log.exception(LogEvent("worker_failed", worker=self.name))
                failing = True
            else:
                failing = False
            finally:
                self.busy_since = None
                done()


class InlineWorker(Worker):
    """A worker without a thread: its turn is over when `start_turn` returns. For tests, and for
    what is known in memory."""

    def start_turn(self) -> asyncio.Future[None]:
        ended = asyncio.get_running_loop().create_future()
        self._work(self._finished.put)
        ended.set_result(None)
        return ended

    def _start(self) -> None:
        """Nothing to start."""


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
