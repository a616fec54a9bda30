"""Assignment of threads to GPUs: a thread for all, and another for each GPU whose call hangs.

Callers of NVML at the same time spin on the driver's lock, so one thread asks all GPUs in turn. It
makes a visit to each. A visit that lasts too long is left to its thread, and another thread visits
the others within the same tick. The GPU stays on its own thread until it has answered promptly for
some minutes, so that the next call that hangs delays no other GPU at all. Its turn comes after that
of the others: only calls that hang run beside theirs.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue

from agent.clock import Clock, Stopwatch
from agent.errors import LogEvent
from agent.model import Absent, Reason
from agent.polling import intervals

log = logging.getLogger(__name__)

OVERTAKEN = 0.3
"""Real seconds of a visit after which another thread goes on with the other GPUs: they are read in
this tick still. A visit that ends before PATIENCE is over has no further consequence."""

PATIENCE = 1.0  # Real seconds of a visit from which its GPU does not answer
PROMPT = 0.5  # Real seconds within which a GPU must answer all that is due, on its own thread

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
"""Seconds between the end of a call that hung and the next attempt; each is twice the last."""

PROBATION, LONGEST_PROBATION = 150.0, 3600.0
"""Time (in pauses; s) that a GPU that answers again stays on its own thread: 5 min at first."""

MOST_IN_VAIN = 2  # consecutive GPUs that may hang before any other answers
FORGOTTEN = 600.0  # Seconds without trouble after which the pauses of a GPU start small again


class Left(Exception):
    """This thread was left with a GPU: another thread has all other work."""

    def __init__(self, gpu: "LeftGpu") -> None:
        super().__init__(gpu.index)
        self.gpu = gpu


@dataclass(slots=True, eq=False)
class Visit:
    """A thread asks a GPU; it may be left after so many real seconds."""

    index: int
    watch: Stopwatch
    patience: float
    left: "LeftGpu | None" = None


@dataclass(slots=True, eq=False)
class LeftGpu:
    """A GPU that has a thread of its own. `why` is why it has no values, None while it answers."""

    index: int
    pause: float
    since: float  # when it last answered in time, while it does not
    answers_since: float
    busy: bool  # an attempt runs, or the visit that was left
    watch: Stopwatch  # of the last of them
    why: Absent | None = None
    due: float = 0.0  # next attempt
    modes: float = 0.0  # when to see whether it answers other questions than before
    attempts: SimpleQueue[bool] = field(default_factory=SimpleQueue)  # False ends the thread
    at_rest: threading.Event = field(default_factory=threading.Event)

    @property
    def hung(self) -> bool:
        """True if a call lasted longer than PATIENCE, rather than only longer than OVERTAKEN."""
        return self.pause >= FIRST_PAUSE

    @property
    def took(self) -> float:
        """Real seconds that the present visit or attempt takes."""
        return self.watch.took if self.busy else 0.0


class GpuThreads:
    """Visits, and the GPUs that were left to threads of their own, by index."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._visit: Visit | None = None
        self.in_vain = 0  # visits that were left since the last visit that ended
        self._pauses: dict[int, tuple[float, float]] = {}  # last pause, and when it was over
        self.left: dict[int, LeftGpu] = {}
        self.gpus = 0  # how many there are, those that were left included

    @contextmanager
    def visit(self, index: int, patience: float = PATIENCE) -> Iterator[Visit]:
        """Ask this GPU. Raises Left if the others went to another thread meanwhile."""
        visit = Visit(index, Stopwatch(self._clock), patience)
        self._visit = visit
        try:
            yield visit
        finally:
            with self._lock:
                if visit.left is None:
                    self._visit, self.in_vain = None, 0
            if visit.left is not None:
                raise Left(visit.left)

    def leave(self) -> float | None:
        """Leave the present visit to its thread: look again in so many real seconds, 0 if it is
        done, None if it would be of no use."""
        with self._lock:
            visit, now = self._visit, self._clock.monotonic()
            if visit is None:
                return OVERTAKEN
            if self._useless():
                return None
            wait = visit.patience - visit.watch.took
            if wait > 0.0:
                return wait
            pause, over = self._pauses.get(visit.index, (0.0, -FORGOTTEN))
            if now - over >= FORGOTTEN:
                pause = FIRST_PAUSE / 2
            since = visit.watch.since
            visit.left = LeftGpu(visit.index, pause, since, since, busy=True, watch=visit.watch)
            self.left = {**self.left, visit.index: visit.left}
            self._visit = None
            self.in_vain += 1
        return 0.0

    def late(self, visit: Visit) -> bool:
        return visit.left is not None and visit.watch.took > PATIENCE

    def _useless(self) -> bool:
        """No other GPU is there, or two were left and none has answered since: then this GPU waits
        with them for the driver's lock, and more threads would wait too."""
        hang = sum(one.took > OVERTAKEN for one in self.left.values())
        return hang + 1 >= self.gpus or self.in_vain >= MOST_IN_VAIN

    def blind(self) -> bool:
        """Return whether the present visit hangs and cannot be left, or all GPUs hang; for any
        thread."""
        visit, left = self._visit, self.left.values()
        if visit is not None:
            return visit.watch.took > PATIENCE and self._useless()
        return 0 < self.gpus <= sum(one.took > PATIENCE for one in left)

    def ended(self, left: LeftGpu, *, answered: bool = True) -> None:
        """Note, on the thread of a GPU, the end of the visit that was left, or of an attempt. A GPU
        without an answer (it is lost) is tried again as rarely as other lost GPUs."""
        with self._lock:
            now, self.in_vain = self._clock.monotonic(), 0  # the driver's lock is free
            took, left.busy, left.due = left.took, False, now
            if took > PATIENCE:
                left.pause = min(2 * left.pause, LONGEST_PAUSE)
            if left.hung and took > PROMPT:
                self._does_not_answer(left)
                left.due += left.pause
            elif not answered:
                left.due, left.answers_since = now + max(left.pause, intervals.REDISCOVERY), now
            elif left.why is not None:
                log.info(LogEvent("gpu_answers", gpu=left.index, after=round(now - left.since, 1)))
                left.why, left.answers_since = None, now
        left.at_rest.set()

    def _does_not_answer(self, left: LeftGpu) -> None:
        if left.why is not None:
            return
        left.since = left.watch.since
        ago = self._clock.monotonic() - left.since
        at = datetime.fromtimestamp(self._clock.time() - ago, UTC)
        left.why = Absent(Reason.NOT_ANSWERING, f"not responding since {at:%Y-%m-%d %H:%M:%S} UTC")
        log.error(LogEvent("gpu_not_answering", gpu=left.index, error=str(left.why)))

    # On the thread of all GPUs

    def judge(self) -> None:
        with self._lock:
            for left in self.left.values():
                if left.took > PATIENCE:
                    self._does_not_answer(left)

    def start_attempts(self) -> None:
        """Let each GPU that has a thread of its own be read, in sequence as long as they answer
        promptly, or be tried once its pause is over."""
        until = time.perf_counter() + OVERTAKEN
        for left in self.left.values():
            if not left.busy and self._clock.monotonic() >= left.due:
                left.watch, left.busy = Stopwatch(self._clock), True
                left.at_rest.clear()
                left.attempts.put(True)
                if left.why is None:
                    left.at_rest.wait(max(0.0, until - time.perf_counter()))

    def take_back(self, *, unused: bool = False) -> None:
        """End the threads of GPUs that were well for long enough, and all `unused` threads."""
        now = self._clock.monotonic()
        for left in self.left.values():
            probation = min(PROBATION * left.pause, LONGEST_PROBATION) if left.hung else 0.0
            well = left.why is None and now - left.answers_since >= probation
            if not left.busy and (well or unused):
                if left.hung:
                    self._pauses[left.index] = left.pause, now
                self.left = {k: one for k, one in self.left.items() if one is not left}
                left.attempts.put(False)
