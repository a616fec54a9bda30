"""The poller. On every tick, it starts workers, collects readings, and publishes a snapshot."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from agent.clock import Clock
from agent.errors import Failure, LogEvent, log
from agent.model import Reading, ReadKey, Snapshot
from agent.polling import intervals
from agent.polling.reads import ReadCosts
from agent.polling.worker import Guard, Worker, settle
from agent.series import SampleStore


class Observer(Protocol):
    """A part of the agent that derives data from the readings of every tick."""

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Process a tick's readings and recent samples. Return the snapshot with any new data."""

    def report(self, snapshot: Snapshot) -> Iterable[Reading]:
        """Return the readings that the observer derives from a snapshot."""


TURN_SHARE = 0.8
"""Maximum share of a tick for which the poller waits for workers before it publishes readings."""

FIRST_TICKS = 0.2
"""Seconds between ticks until all reads have run once. Values that are computed from two samples
are thus available soon after startup."""

SILENT, STALL = 3.0, 5.0  # Wall-clock seconds after which a worker is silent, and stalled


class ClockSteps:
    """Detects jumps of the wall clock by at least 1 s. NTP corrects smaller errors gradually. The
    poller calls `check` on every tick."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before: float | None = None
        self.count = 0
        self.at: float | None = None  # time of the latest step (monotonic seconds)

    def check(self) -> None:
        now = self._clock.offset()
        if now is not None and self._before is not None and abs(now - self._before) >= 1.0:
            self.count += 1
            self.at = self._clock.monotonic()
        self._before = now


WAIT_SPAN = 60.0  # Averaging time in wall-clock seconds
SHARED = 1.5  # Wall-clock seconds for which ticks share CPU times, to reduce reads


class ProcessorWaits:
    """Measures how long the agent's threads wait for a CPU, as a total and a moving average."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = clock.processor_time()
        self.counted = bool(self._before.threads)  # some kernels do not support it
        self.seconds = 0.0
        self.mean = 0.0  # s per second

    def check(self) -> None:
        before, now = self._before, self._clock.processor_time(SHARED)
        self._before, passed = now, now.at - before.at
        waited = sum(thread.queued for thread in now.since(before).values())
        self.seconds += waited
        if passed > 0.0:
            self.mean += min(1.0, passed / WAIT_SPAN) * (waited / passed - self.mean)


HEALTH_KEY = ReadKey("agent", "health")


Listener = Callable[[Snapshot], None]
"""A function that the poller calls with the snapshot of every tick. It runs in the event loop, so
it must be fast. Only `Poller.latest` includes readings of observers and the agent's own metrics."""


@dataclass(slots=True, eq=False)
class Poller:
    """Stores the latest reading of every read, and publishes them as a snapshot once per tick.

    `samples` contains recent samples, for observers and for use in the event loop.
    """

    workers: Sequence[Worker]
    read_costs: ReadCosts
    clock: Clock
    observers: Sequence[Observer] = ()
    report_health: Callable[[Snapshot, "Poller"], Reading] = (  # returns the agent's own metrics
        lambda snapshot, _: Reading(HEALTH_KEY, snapshot.at, intervals.TICK)
    )
    config_ok: Callable[[], bool] = lambda: True
    certificate_ends: Callable[[], float | None] = lambda: None
    disclose: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    """Returns a snapshot without personal data, which only observers may process."""
    listeners: list[Listener] = field(default_factory=list)
    samples: SampleStore = field(default_factory=SampleStore)
    stuck: frozenset[str] = frozenset()  # names of workers with a call that hangs
    complete: bool = False  # every read had been run before the latest tick
    _data: Snapshot = field(default_factory=lambda: Snapshot(0, 0.0, 0.0))
    _whole: Snapshot = field(default_factory=lambda: Snapshot(-1, 0.0, 0.0))
    stalled: frozenset[str] = frozenset()  # stalled workers, and their sources
    _readings: dict[ReadKey, Reading] = field(default_factory=dict)
    _worker_of: dict[str, Worker] = field(default_factory=dict)
    _ready: bool = False
    _understood: threading.Lock = field(default_factory=threading.Lock)
    clock_steps: ClockSteps = field(init=False)
    processor_waits: ProcessorWaits = field(init=False)
    _guards: dict[Listener, Guard] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock_steps = ClockSteps(self.clock)
        self.processor_waits = ProcessorWaits(self.clock)

    @property
    def latest(self) -> Snapshot:
        """The snapshot of the last tick, with the reports of observers and the agent's health,
        which are computed on the first use.

        Any thread may use this property. It blocks while observers process a tick.
        """
        with self._understood:
            if self._whole.tick != self._data.tick:
                self._whole = self._with_health(self._data)
            return self.disclose(self._whole)

    async def run(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Run ticks until `ended` returns True. Until all reads have run once, run a tick every
        0.2 s on the agent's clock, and then every second. Skip missed ticks."""
        due = self.clock.monotonic()
        while not ended():
            await self.tick()
            await self.look_again()
            now = self.clock.monotonic()
            due = max(due + (FIRST_TICKS if self.waiting_for() else intervals.TICK), now)
            await self.clock.sleep(due - now)

    async def tick(self) -> None:
        """Start all idle workers, wait up to 0.8 s for them, and publish the readings."""
        self.processor_waits.check()  # first, as all turns start with these CPU times
        self.complete = not self.waiting_for()
        turns = [worker.start_turn() for worker in self.workers if worker.busy or worker.due()]
        await self._wait(turns)
        fresh: list[Reading] = []
        gone: set[ReadKey] = set()
        for worker in self.workers:
            for finished in worker.finished():
                if isinstance(finished, ReadKey):
                    self._readings.pop(finished, None)
                    gone.add(finished)
                    fresh = [reading for reading in fresh if reading.key != finished]
                    continue
                before = self._readings.get(finished.key)
                _log_change(finished, before.failure if before else None)
                self._worker_of[finished.key.source] = worker
                self._readings[finished.key] = finished
                fresh.append(finished)
        with self._understood:
            snapshot = self._gathered()
            self.samples.take(snapshot.at, fresh, gone)
            for observer in self.observers:
                snapshot = observer.observe(snapshot, self.samples)
            self._data = snapshot
        shown = self.disclose(snapshot)
        for listener in self.listeners:
            guard = self._guards.setdefault(listener, Guard(type(listener).__name__, "listener"))
            guard.run(partial(listener, shown), None)

    async def look_again(self) -> None:
        """Start workers again shortly after a tick if a read has requested a second run. Such a
        read needs two samples 100 ms apart. The next tick collects the readings."""
        pending = [worker for worker in self.workers if worker.is_pending()]
        if pending:
            await self.clock.sleep(intervals.WINDOW)
            await self._wait([worker.start_turn() for worker in pending])

    def waiting_for(self) -> str:
        """Return a string with the workers whose reads have not all run yet, or an empty string if
        the agent is ready.

        Stalled workers do not prevent the agent from being ready. An alert reports them.
        """
        waited = [
            worker.name
            for worker in self.workers
            if not (self._ready or worker.complete() or worker.stalled_for > STALL)
        ]
        self._ready = self._data.tick > 0 and not waited
        return "" if self._ready else "the first readings of " + ", ".join(waited or ["all"])

    async def _wait(self, turns: list[asyncio.Future[None]]) -> None:
        if all(turn.done() for turn in turns):
            return
        timeout = asyncio.ensure_future(self.clock.sleep(TURN_SHARE * intervals.TICK))
        # busy workers continue, and a later tick collects their readings
        timeout.add_done_callback(lambda _: list(map(settle, turns)))
        await asyncio.gather(*turns, return_exceptions=True)
        timeout.cancel()

    def _gathered(self) -> Snapshot:
        now = self.clock.monotonic()
        self.clock_steps.check()
        took = {worker.name: worker.stalled_for for worker in self.workers}
        # A wait for a CPU that is counted late shortens a turn: half of STALL ends no stall.
        least = {name: STALL / 2 if name in self.stuck else STALL for name in took}
        stuck = frozenset(name for name, seconds in took.items() if seconds > least[name])
        for name in sorted(stuck - self.stuck):
            log.error(LogEvent("worker_stalled", worker=name, seconds=STALL))
        for name in sorted(self.stuck - stuck):
            log.info(LogEvent("worker_recovered", worker=name))
        self.stuck = stuck
        sources = (source for source, worker in self._worker_of.items() if worker.name in stuck)
        self.stalled = stuck.union(sources)
        late = (worker for worker in self.workers if took[worker.name] > SILENT)
        turns = {worker.name: turn.since for worker in late if (turn := worker.turn)}
        tick, wall = self._data.tick + 1, self.clock.time()
        return Snapshot(tick, now, wall, dict(self._readings), turns=turns)

    def _with_health(self, data: Snapshot) -> Snapshot:
        speed = self.clock.speed
        reports = (replace(r, speed=speed) for one in self.observers for r in one.report(data))
        readings = {**data.readings, **{report.key: report for report in reports}}
        report = self.report_health(replace(data, readings=dict(readings)), self)
        readings[HEALTH_KEY] = replace(report, speed=speed)
        return replace(data, readings=readings)


def _log_change(reading: Reading, before: Failure | None) -> None:
    """Log a read that begins to fail, recovers, or fails in a different way. Two errors of the same
    type from the same line of code are the same failure, even if their messages differ."""
    failure = reading.failure
    if (failure and failure[:2]) == (before and before[:2]):
        return
    where = reading.key._asdict()
    if failure:
        log.error(LogEvent("read_failed", **where, error=str(failure)))
    else:
        log.info(LogEvent("read_recovered", **where))
