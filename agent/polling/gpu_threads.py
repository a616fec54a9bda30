"""Which thread is with which GPU: one for all, and one more for each GPU whose call hangs.

Callers of NVML at the same time spin on the driver's lock, so that one thread asks all GPUs in
turn. It makes a visit to each. A visit that lasts too long is left to its thread, which keeps that
GPU until it answers promptly again; another thread visits the others meanwhile.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue

from agent.clock import Clock
from agent.errors import LogEvent
from agent.model import Absent, Reason

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds for which a GPU may hold up the others."""

PROMPT = 0.5
"""Seconds within which a GPU must answer all that is due to be read with the others again."""

LEAST = 0.25
"""The same in real seconds, where the agent's clock runs faster: threads of a busy machine wait."""

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
"""Seconds between the end of a call that hung and the next attempt; each is twice the last."""

MOST_IN_VAIN = 2
"""GPUs that may hang one after the other before any other answers."""

FORGOTTEN = 600.0
"""Seconds without trouble after which the pauses of a GPU start small again."""


class Left(Exception):
    """This thread was left with a GPU of this index: all else is another thread's."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


@dataclass(slots=True, eq=False)
class Visit:
    """One thread asks one GPU, since then on the agent's clock and in real time."""

    index: int
    since: float
    real: float
    left: bool = False


@dataclass(slots=True, eq=False)
class LeftGpu:
    """A GPU that has a thread of its own; `since` is when it last answered in time."""

    index: int
    since: float
    why: Absent
    pause: float
    busy_since: float | None  # of the call that hangs, or of the attempt that runs
    took: float = 0.0  # seconds of the longest call until now
    well: bool = False  # it answered promptly, and may be read with the others
    due: float = 0.0  # next attempt
    attempts: SimpleQueue[None] = field(default_factory=SimpleQueue)

    def longest(self, now: float) -> float:
        """Seconds of the longest call, the one that runs included."""
        since = self.busy_since
        return self.took if since is None else max(self.took, now - since)

    def end(self, now: float) -> None:
        """An attempt has ended: the pause before the next one grows where it took too long."""
        took = now - (self.busy_since or now)
        self.took, self.busy_since, self.well = max(self.took, took), None, took <= PROMPT
        if took > PATIENCE:
            self.pause = min(2 * self.pause, LONGEST_PAUSE)


class GpuThreads:
    """Visits, and the GPUs that were left to threads of their own, by index."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._visit: Visit | None = None
        self._in_vain = 0  # visits that were left since one last ended
        self._pauses: dict[int, tuple[float, float]] = {}  # last pause, and when it was over
        self.left: dict[int, LeftGpu] = {}
        self.gpus = 0  # how many there are, those that were left included

    @contextmanager
    def visit(self, index: int) -> Iterator[Visit]:
        """Ask this GPU. Raises Left where the others went to another thread meanwhile."""
        visit = Visit(index, self._clock.monotonic(), time.perf_counter())
        self._visit = visit
        try:
            yield visit
        finally:
            with self._lock:
                if not visit.left:
                    self._visit, self._in_vain = None, 0
            if visit.left:
                raise Left(index)

    def leave(self) -> float | None:
        """Leave the present visit to its thread: in so many seconds, 0 where that is done, None
        where it is of no use."""
        with self._lock:
            visit, now = self._visit, self._clock.monotonic()
            if visit is None or self._useless():
                return None
            wait = PATIENCE - (now - visit.since)
            if wait <= 0.0:
                wait = LEAST - (time.perf_counter() - visit.real)
            if wait > 0.0:
                return wait
            left = self.left[visit.index] = self._left(visit, now)
            visit.left, self._visit = True, None
            self._in_vain += 1
        log.error(LogEvent("gpu_not_answering", gpu=left.index, error=str(left.why)))
        return 0.0

    def _left(self, visit: Visit, now: float) -> LeftGpu:
        """Its pauses go on growing where it was in trouble not long ago."""
        last, over = self._pauses.get(visit.index, (FIRST_PAUSE, -FORGOTTEN))
        pause = min(2 * last, LONGEST_PAUSE) if now - over < FORGOTTEN else FIRST_PAUSE
        at = datetime.fromtimestamp(self._clock.time() - (now - visit.since), UTC)
        why = Absent(Reason.NOT_ANSWERING, f"not answering since {at:%Y-%m-%d %H:%M:%S} UTC")
        return LeftGpu(visit.index, visit.since, why, pause, busy_since=visit.since)

    def _useless(self) -> bool:
        """No other GPU is there, or two were left and none has answered since: then this one waits
        with them for the driver's lock, and more threads would wait too."""
        return len(self.left) + 1 >= self.gpus or self._in_vain >= MOST_IN_VAIN

    def blind(self) -> bool:
        """Whether the present visit hangs and cannot be left; for any thread."""
        visit, now = self._visit, self._clock.monotonic()
        return visit is not None and now - visit.since > PATIENCE and self._useless()

    def troubled(self, index: int) -> bool:
        """Whether this GPU was ever left: it is visited last, so that it holds up no other."""
        return index in self._pauses

    def attempt(self, left: LeftGpu) -> None:
        """Wait, on the GPU's own thread, until the next attempt is due, and begin it."""
        left.due = self._clock.monotonic() + left.pause
        left.attempts.get()
        left.busy_since = self._clock.monotonic()

    def start_attempts(self) -> None:
        """Let each GPU that is left be tried once its pause is over."""
        now = self._clock.monotonic()
        for left in self.left.values():
            if left.busy_since is None and left.due and now >= left.due:
                left.due = 0.0
                left.attempts.put(None)

    def returned(self) -> list[LeftGpu]:
        """Those that answered promptly: the thread of all GPUs takes them back."""
        now, found = self._clock.monotonic(), [one for one in self.left.values() if one.well]
        for one in found:
            self._pauses[one.index] = one.pause, now
            del self.left[one.index]
        return found
