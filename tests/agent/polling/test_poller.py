"""The poller with real threads: what hangs costs its own worker, and everything says so.

Their clock waits for every thread that can answer before it lets time pass, so that a busy machine
is as good as an idle one.
"""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.clock import SystemClock
from agent.model import GPU_LABELS, Metric, Reading, ReadKey, Reason, Snapshot
from agent.polling import intervals
from agent.polling.poller import HEALTH_KEY, STALL, TURN_SHARE, Poller
from agent.polling.reads import Read, ReadCosts, ReadOutput, ReadSchedule, fixed, is_due, plan
from agent.polling.worker import Emit, InlineWorker, Worker
from agent.series import SampleStore
from agent.sources.agent_health import ABSENT_VALUES, SOURCE_UP, reading
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated
from tests.support.patience import PATIENCE

POWER = Metric("dgx_gpu_power_watts", "Power.", "a call", GPU_LABELS)
CLOCK = Metric("dgx_gpu_clock_hertz", "Clock.", "a call", GPU_LABELS)
BUSY = Metric("dgx_cpu_busy_ratio", "CPUs.", "a file")
GPU = ("0", "GPU-0")


class Clock(FrozenClock):
    """Time passes in `sleep` alone, and not before all workers are idle that will be."""

    def __init__(self) -> None:
        super().__init__()
        self.settled: Callable[[], bool] = lambda: True

    async def sleep(self, seconds: float) -> None:
        while not self.settled():  # noqa: ASYNC110 - threads set no event of asyncio
            await asyncio.sleep(0.001)
        await super().sleep(seconds)


class Machine:
    """Two workers of one or two reads each; the call behind `power` can hang or raise."""

    def __init__(self, worker: type[Worker] = Worker) -> None:
        self.clock = Clock()
        self.answers = threading.Event()
        self.answers.set()
        self.error: Exception | None = None
        self.read_costs = ReadCosts()
        self.agendas = {
            "nvml": self._schedule(("power", POWER, GPU, self.power), ("clocks", CLOCK, GPU, None)),
            "host": self._schedule(("cpu", BUSY, (), None)),
        }
        self.poller = Poller(
            workers=[worker(n, a.run, a.complete, self.clock) for n, a in self.agendas.items()],
            read_costs=self.read_costs,
            clock=self.clock,
            report_health=reading,
        )
        self.clock.settled = self._settled

    def _settled(self) -> bool:
        """Return whether each worker has ended its turn, except one that hangs."""
        busy = [worker.name for worker in self.poller.workers if worker.busy]
        return not busy or (busy == ["nvml"] and not self.answers.is_set())

    def _schedule(self, *rows: tuple[str, Metric, tuple[str, ...], Any]) -> ReadSchedule:
        reads = []
        for source, metric, labels, run in rows:
            key = ReadKey(source, "all", *labels[1:])
            answer = run or (lambda out, metric=metric: out.add(metric, 1.0))
            reads.append(Read(key, (metric,), answer, fixed(intervals.TICK), labels))
        return ReadSchedule(reads, self.clock, self.read_costs)

    def power(self, out: ReadOutput) -> None:
        assert self.answers.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        out.add(POWER, 250.0)

    async def tick(self, times: int = 1) -> None:
        """Tick as `run` does, but only so often."""
        for _ in range(times):
            start = self.clock.monotonic()
            await self.poller.tick()
            await self.clock.sleep(start + intervals.TICK - self.clock.monotonic())

    @property
    def samples(self) -> SampleStore:
        return SampleStore.of(self.poller.latest)

    def up(self) -> dict[str, float]:
        return {source: value for (source,), value in self.samples.all(SOURCE_UP).items()}

    def stalled(self) -> dict[Metric, Reason]:
        latest = self.poller.latest
        return {a.metric: a.reason for a in latest.absences(latest.at)}


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def test_every_tick_publishes_a_new_snapshot(machine: Machine) -> None:
    assert machine.poller.waiting_for() == "the first readings of nvml, host"
    await machine.tick()
    first = machine.poller.latest
    await machine.tick(2)
    assert first.tick == 1
    assert machine.poller.latest.tick == 3
    assert machine.poller.latest.at > first.at
    assert machine.samples.value(POWER, *GPU) == 250.0
    assert machine.up() == {"power": 1, "clocks": 1, "cpu": 1}
    assert machine.poller.waiting_for() == ""


async def test_a_call_that_hangs_stalls_its_own_lane_only(machine: Machine) -> None:
    await machine.tick(2)
    machine.answers.clear()
    await machine.tick(3)
    assert machine.up() == {"power": 1, "clocks": 1, "cpu": 1}, "not so soon"
    await machine.tick(int(STALL) + 1)
    assert machine.up() == {"power": 0, "clocks": 0, "cpu": 1, "nvml": 0}
    assert machine.samples.value(POWER, *GPU) is None, "data expire after three intervals"
    assert machine.samples.value(CLOCK, *GPU) is None
    assert machine.samples.value(BUSY) == 1.0
    assert machine.stalled() == {POWER: Reason.STALLED, CLOCK: Reason.STALLED}
    assert machine.samples.all(ABSENT_VALUES) == {
        ("dgx_gpu_clock_hertz", "stalled"): 1,
        ("dgx_gpu_power_watts", "stalled"): 1,
    }
    assert machine.poller.waiting_for() == "", "it was ready, and the rest is worth serving"
    machine.answers.set()
    await machine.tick(3)
    assert machine.up() == {"power": 1, "clocks": 1, "cpu": 1}
    assert machine.samples.value(POWER, *GPU) == 250.0
    assert machine.stalled() == {}


async def test_a_wait_that_is_counted_late_ends_no_stall(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.tick()
    for took, stuck in ((5.1, 1), (4.6, 1), (5.1, 1), (0.3, 0), (4.6, 0)):
        monkeypatch.setattr(Worker, "stalled_for", took)
        await machine.tick()
        assert len(machine.poller.stuck) == 2 * stuck, took


async def test_a_tick_waits_for_its_lanes_but_not_for_ever(machine: Machine) -> None:
    machine.answers.clear()
    start = machine.clock.monotonic()
    await machine.poller.tick()
    assert machine.clock.monotonic() - start == TURN_SHARE * intervals.TICK
    assert machine.samples.value(BUSY) == 1.0
    machine.answers.set()


async def test_an_agent_whose_driver_hangs_from_the_start_gets_ready_without_it(
    machine: Machine,
) -> None:
    machine.answers.clear()
    await machine.tick(2)
    assert machine.poller.waiting_for() == "the first readings of nvml"
    await machine.tick(int(STALL) + 1)
    assert machine.poller.waiting_for() == ""
    assert machine.up() == {"cpu": 1, "nvml": 0}
    machine.answers.set()


class RecordingObserver:
    """An observer that notes six ticks, and lets time pass at the third."""

    def __init__(self, clock: FrozenClock) -> None:
        self.clock = clock
        self.ticks: list[float] = []
        self.full = asyncio.Event()

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        self.ticks.append(snapshot.at)
        if len(self.ticks) == 3:
            self.clock.advance(2.5)
        if len(self.ticks) == 6:
            self.full.set()
        return snapshot

    def report(self, snapshot: Snapshot) -> Iterator[Reading]:
        yield Reading(ReadKey("recording", "all"), snapshot.at, 1.0)


@pytest.mark.parametrize(
    ("first", "ticks"),
    [(0, [0.0, 1.0, 2.0, 4.5, 5.5, 6.5]), (2, [0.0, 0.2, 0.4, 2.9, 3.9, 4.9])],
    ids=["all is read in the first tick", "something needs two more"],
)
async def test_run_ticks_once_a_second_and_makes_up_for_none_that_was_missed(
    first: int, ticks: list[float]
) -> None:
    machine = Machine(InlineWorker)
    recording = RecordingObserver(machine.clock)
    machine.poller.observers = (recording,)
    machine.poller.workers[0].complete = lambda: len(recording.ticks) > first
    running = asyncio.create_task(machine.poller.run())
    await recording.full.wait()
    running.cancel()
    assert recording.ticks == pytest.approx(ticks)


async def test_a_read_that_fails_is_down_and_logged_once_until_it_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(InlineWorker)
    with caplog.at_level(logging.INFO):
        await machine.tick(2)
        machine.error = ValueError("odd")
        await machine.tick(3)
        assert machine.up() == {"power": 0, "clocks": 1, "cpu": 1}
        assert machine.stalled() == {POWER: Reason.FAILED}
        machine.error = None
        await machine.tick(2)
        assert machine.up() == {"power": 1, "clocks": 1, "cpu": 1}
    shown = [record.getMessage().split(" error=")[0] for record in caplog.records]
    assert shown == [
        "event=read_failed source=power part=all device=GPU-0",
        "event=read_recovered source=power part=all device=GPU-0",
    ]


async def test_a_lane_whose_turn_raises_takes_the_next(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def work(_: Emit) -> None:
        turns.append(1)
        raise RuntimeError("broken")

    clock = Clock()
    worker = Worker("odd", work, lambda: bool(turns), clock)
    poller = Poller([worker], ReadCosts(), clock)
    clock.settled = lambda: not worker.busy
    await poller.tick()
    await poller.tick()
    assert len(turns) == 2
    assert "event=worker_failed source=odd" in caplog.text


def test_a_turn_that_ends_after_the_loop_closed_ends_quietly(machine: Machine) -> None:
    async def coroutine() -> None:
        machine.answers.clear()
        await machine.poller.tick()

    asyncio.run(coroutine())
    machine.answers.set()
    worker = machine.poller.workers[0]
    deadline = time.monotonic() + PATIENCE
    while worker.busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    asyncio.run(machine.tick())
    assert machine.samples.value(POWER, *GPU) == 250.0


async def test_what_is_forgotten_leaves_the_snapshot() -> None:
    clock = FrozenClock()
    key = ReadKey("power", "all", "GPU-0")
    out: list[Any] = []

    def work(emit: Emit) -> None:
        for one in out:
            emit(one)

    worker = InlineWorker("nvml", work, lambda: True, clock)
    poller = Poller([worker], ReadCosts(), clock)
    machine = Machine(InlineWorker)
    await machine.tick()
    out.append(machine.poller.latest.readings[key])
    await poller.tick()
    assert key in poller.latest.readings
    out[:] = [key, ReadKey("never", "seen")]
    await poller.tick()
    assert set(poller.latest.readings) == {HEALTH_KEY}


class StandingClock(SystemClock):
    """A clock on which a wait is over at once, or never."""

    stands = False

    async def sleep(self, seconds: float) -> None:
        if self.stands:
            await asyncio.Event().wait()


async def test_a_turn_that_was_busy_at_the_tick_holds_it_up_no_longer_than_it_lasts() -> None:
    """The tick's share never passes: it goes on once the turn has ended."""
    clock, ends = StandingClock(), threading.Event()

    def work(_: Emit) -> None:
        ends.wait(PATIENCE)

    worker = Worker("slow", work, lambda: True, clock)
    poller = Poller([worker], ReadCosts(), clock)
    await poller.tick()
    assert worker.busy
    clock.stands = True
    asyncio.get_running_loop().call_later(0.05, ends.set)
    await asyncio.wait_for(poller.tick(), PATIENCE)


def test_a_read_of_each_tick_runs_at_the_next_tick_after_a_late_one() -> None:
    read = Read(ReadKey("x", "y"), (), lambda _: None, fixed(intervals.TICK))
    plan(read, 0.4, pending=False)
    assert is_due(read, 1.0)


def test_each_series_of_a_tick_stands_once() -> None:
    """A source that two workers read has one sum of costs."""
    latest = simulated("k40:training").run(2).latest
    series = [(metric.name, labels) for metric, labels, _ in latest.samples(latest.at)]
    assert len(series) == len(set(series))


def test_a_tick_leaves_no_garbage_in_cycles() -> None:
    """Two GPUs left 600 objects a tick, which a collector had to search for."""
    bench = simulated("dgx-a100:training", gpus=2).run(8)
    gc.freeze()
    gc.disable()
    bench.run(8)
    left = gc.collect()
    gc.enable()
    assert left < 100, "types of arrays, which ctypes makes"
