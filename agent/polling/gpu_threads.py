"""Assigns threads to GPUs: a shared thread for all GPUs, and a thread for each GPU that hangs.

Concurrent callers of NVML spin on the driver's lock. Therefore, a single thread visits one GPU
after another. In a visit, it runs the due reads of the GPU. If a visit takes too long, the thread
stays with this GPU, and another thread visits the other GPUs in the same tick. The GPU keeps its
own thread until it has responded promptly for some minutes, because its next call may hang again.
Its reads run after the visits, so that calls for two GPUs are concurrent only if one of them hangs.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue

from agent.clock import Clock, Stopwatch
from agent.errors import LogEvent, log
from agent.model import Absent, Reason
from agent.polling import intervals

OVERTAKEN = 0.3
"""If a visit takes longer than this (wall-clock seconds), another thread visits the other GPUs in
this tick. The GPU counts as hanging only after PATIENCE seconds."""

PATIENCE = 1.0  # Wall-clock seconds of a visit after which its GPU counts as silent
PROMPT = 0.5  # Wall-clock seconds for all due reads of a GPU with its own thread

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
"""Seconds to wait after a visit that hung. Each further hang doubles the pause."""

PROBATION, LONGEST_PROBATION = 150.0, 3600.0
"""A GPU that responds again keeps its own thread for PROBATION times its last pause (5 min after
the first hang), but at most for LONGEST_PROBATION seconds."""

MOST_IN_VAIN = 2  # maximum number of GPUs in a row that hang
FORGOTTEN = 600.0  # Seconds without a hang after which a GPU's pause is reset


class Left(Exception):
    """Raised after a visit if another thread has taken over the other GPUs."""

    def __init__(self, gpu: "LeftGpu") -> None:
        super().__init__(gpu.index)
        self.gpu = gpu


@dataclass(slots=True, eq=False)
class Visit:
    """A run of a GPU's due reads. After `patience` wall-clock seconds, it takes too long."""

    index: int
    watch: Stopwatch
    patience: float
    left: "LeftGpu | None" = None


@dataclass(slots=True, eq=False)
class LeftGpu:
    """A GPU whose reads run on its own thread. Each run is an attempt. While the GPU does not
    respond, its values are absent, and `why` is the reason."""

    index: int
    pause: float
    since: float  # last prompt response before the GPU became silent
    answers_since: float
    busy: bool  # an attempt or the visit that was left is in progress
    watch: Stopwatch  # stopwatch of the latest attempt or visit
    why: Absent | None = None
    due: float = 0.0  # time of the next attempt
    modes: float = 0.0  # when to check for changes of the supported queries
    attempts: SimpleQueue[bool] = field(default_factory=SimpleQueue)  # False ends the thread
    at_rest: threading.Event = field(default_factory=threading.Event)

    @property
    def hung(self) -> bool:
        """Whether reading the GPU took longer than PATIENCE. Exceeding OVERTAKEN is not enough."""
        return self.pause >= FIRST_PAUSE

    @property
    def took(self) -> float:
        """Wall-clock seconds that the current run of reads has taken so far."""
        return self.watch.took if self.busy else 0.0


class GpuThreads:
    """Tracks which GPU the shared thread visits, and which GPUs have their own threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._visit: Visit | None = None
        self.in_vain = 0  # visits left since the last visit that completed
        self._pauses: dict[int, tuple[float, float]] = {}  # last pause and the time of its end
        self.left: dict[int, LeftGpu] = {}
        self.gpus = 0  # number of GPUs, including those with their own threads

    @contextmanager
    def visit(self, index: int, patience: float = PATIENCE) -> Iterator[Visit]:
        """Return a context manager for a visit. It raises Left if another thread has taken over."""
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
        """If the current visit takes too long, return 0, so that the caller starts another thread.
        Otherwise, return the seconds until the next check, or None to end the checks."""
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
        """Return whether another thread would be useless, because all other GPUs hang, or because
        MOST_IN_VAIN visits in a row hung: probably, all threads wait for the driver's lock."""
        hang = sum(one.took > OVERTAKEN for one in self.left.values())
        return hang + 1 >= self.gpus or self.in_vain >= MOST_IN_VAIN

    def blind(self) -> bool:
        """Return whether no GPU responds: all GPUs hang, or a visit hangs and another thread would
        not help. Any thread may call this method."""
        visit, left = self._visit, self.left.values()
        if visit is not None:
            return visit.watch.took > PATIENCE and self._useless()
        return 0 < self.gpus <= sum(one.took > PATIENCE for one in left)

    def ended(self, left: LeftGpu, *, answered: bool = True) -> None:
        """Record the end of an attempt. If the GPU is lost (`answered` is false), retry it as
        rarely as other lost GPUs. Call this method on the GPU's own thread."""
        with self._lock:
            now, self.in_vain = self._clock.monotonic(), 0  # the lock of the driver is available
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

    # On the GPU thread that all GPUs share

    def judge(self) -> None:
        with self._lock:
            for left in self.left.values():
                if left.took > PATIENCE:
                    self._does_not_answer(left)

    def start_attempts(self) -> None:
        """Start an attempt for each GPU that has its own thread and whose pause has ended. Attempts
        for GPUs that respond promptly run one after another."""
        until = time.perf_counter() + OVERTAKEN
        for left in self.left.values():
            if not left.busy and self._clock.monotonic() >= left.due:
                left.watch, left.busy = Stopwatch(self._clock), True
                left.at_rest.clear()
                left.attempts.put(True)
                if left.why is None:
                    left.at_rest.wait(max(0.0, until - time.perf_counter()))

    def take_back(self, *, unused: bool = False) -> None:
        """End the threads of GPUs that have recovered, or all idle threads if `unused` is true."""
        now = self._clock.monotonic()
        for left in self.left.values():
            probation = min(PROBATION * left.pause, LONGEST_PROBATION) if left.hung else 0.0
            well = left.why is None and now - left.answers_since >= probation
            if not left.busy and (well or unused):
                if left.hung:
                    self._pauses[left.index] = left.pause, now
                self.left = {k: one for k, one in self.left.items() if one is not left}
                left.attempts.put(False)
