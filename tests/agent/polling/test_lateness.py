"""Time counts as the driver's only as far as the agent did not wait for a processor."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from agent.clock import ProcessorTime, Stopwatch, SystemClock, ThreadTime
from agent.faults.findings import Search
from agent.model import Reason, Severity
from agent.polling.gpu_state import GpuAnswers
from agent.polling.gpu_threads import GpuThreads, Left
from agent.polling.poller import HEALTH_KEY
from agent.polling.worker import Emit, Worker
from agent.sources.agent_health import PROCESSOR_WAIT
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import simulated

READER, LOOP = 7, 1
IDLE = ThreadTime(0.0, 0.0, 0)
QUIET = ThreadTime(0.05, 0.01, 40)  # of an event loop, in ten seconds

HANGS = ThreadTime(0.001, 0.002, 3)
SPINS = ThreadTime(9.8, 0.2, 900)
POLLS = ThreadTime(0.1, 0.02, 9000)
QUEUED = ThreadTime(0.3, 9.7, 700)
LOCKED_OUT = ThreadTime(0.2, 0.3, 4000)


@pytest.mark.parametrize(
    ("reader", "loop", "counts"),
    [
        (HANGS, QUIET, 9.9),
        (HANGS, ThreadTime(9.9, 0.1, 900), 9.9),  # a loop that works all the time hides no hang
        (SPINS, QUIET, 9.7),
        (SPINS, ThreadTime(1.0, 8.0, 300), 9.7),
        (POLLS, QUIET, 9.8),
        (QUEUED, QUIET, 0.0),
        (LOCKED_OUT, ThreadTime(0.5, 9.0, 500), 0.0),
    ],
)
def test_what_a_thread_waited_for_is_told_from_its_driver(
    reader: ThreadTime, loop: ThreadTime, counts: float
) -> None:
    before = ProcessorTime(0.0, {READER: IDLE, LOOP: IDLE}, 0.0)
    after = ProcessorTime(10.0, {READER: reader, LOOP: loop}, 0.0)
    low, high = counts, counts + 0.5
    assert low <= 10.0 - after.waited(before, READER) <= high


def test_a_process_that_was_stopped_waited() -> None:
    """It was in no queue meanwhile; its event loop was late."""
    before = ProcessorTime(0.0, {READER: IDLE, LOOP: IDLE}, 2.0)
    assert ProcessorTime(10.0, {READER: HANGS, LOOP: QUIET}, 11.5).waited(before, READER) == 9.5


def test_a_kernel_that_counts_no_queues_still_shows_a_late_loop() -> None:
    assert ProcessorTime(10.0, {}, 4.0).waited(ProcessorTime(0.0, {}, 1.0), READER) == 3.0


def test_the_kernel_counts_this_thread() -> None:
    clock = SystemClock()
    watch, before = Stopwatch(clock), clock.processor_time()
    while not any(
        now.ran > before.threads.get(thread, IDLE).ran
        for thread, now in clock.processor_time().threads.items()
    ):
        sum(range(10_000))
    assert watch.took <= clock.monotonic() - watch.since


def test_limits_are_real_seconds_on_a_fast_clock() -> None:
    clock = FrozenClock()
    clock.speed = 10.0
    watch = Stopwatch(clock)
    clock.advance(5.0)
    assert watch.took == 0.5


@pytest.mark.parametrize("seconds", [2.0, 45.0])
def test_a_machine_short_of_processors_is_no_gpu_that_hangs(seconds: float) -> None:
    clock, answers = FrozenClock(), GpuAnswers()
    threads = GpuThreads(clock)
    threads.gpus = 8
    with threads.visit(3) as visit:
        clock.starve(seconds)
        assert (threads.leave() or 0.0) > 0.0
    answers.took(visit.watch.took, clock.monotonic())
    assert not threads.left
    assert max(answers.longest) < 0.1
    with suppress(Left), threads.visit(4) as visit:
        clock.starve(30.0)
        clock.advance(seconds)
        assert threads.leave() == 0.0
    threads.judge()
    assert {gpu: left.why is not None for gpu, left in threads.left.items()} == {4: True}
    assert visit.watch.took == pytest.approx(seconds)


def test_a_turn_that_waits_for_a_processor_is_no_silence_of_the_driver() -> None:
    """As of `once` on a machine whose cores are taken: its first turn took a minute."""
    clock, begun, over = FrozenClock(), threading.Event(), threading.Event()

    def work(_: Emit) -> None:
        begun.set()
        over.wait()

    worker = Worker("nvml", work, lambda: False, clock)

    async def silences() -> list[float]:
        turn, found = worker.start_turn(), []
        await asyncio.to_thread(begun.wait)
        for pass_time in (clock.starve, clock.advance):
            pass_time(60.0)
            found.append(worker.stalled_for)
        over.set()
        await turn
        return [*found, worker.stalled_for]

    assert asyncio.run(silences()) == [0.0, 60.0, 0.0]


def test_the_agent_says_once_that_it_is_short_of_processors() -> None:
    bench = simulated("titan-x-pascal:training").run(5)
    found = [Search().findings(bench.latest)]
    for _ in range(60):
        bench.clock.starve(1.0)
        bench.run(1)
    latest = bench.latest
    bench.clock.starve(30.0)  # what was read has expired
    now = bench.clock.monotonic()
    health = replace(latest.readings[HEALTH_KEY], at=now)  # which each tick makes
    expired = replace(latest, at=now, readings={**latest.readings, HEALTH_KEY: health})
    assert {a.reason for a in expired.absences(expired.at)} >= {Reason.STALLED}
    found.append(Search().findings(expired))
    assert [[(one.kind, one.severity) for one in each] for each in found] == [
        [],
        [("short_of_processors", Severity.INFO)],
    ]
    assert bench.samples.value(PROCESSOR_WAIT) == 60.0
