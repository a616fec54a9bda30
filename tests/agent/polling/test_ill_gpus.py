"""A GPU whose calls hang costs its own samples alone; a driver that hangs is said to."""

from contextlib import suppress

import pytest

from agent.clock import Stopwatch
from agent.faults.findings import Search
from agent.hardware.nvml import address_of
from agent.model import Reason
from agent.polling.gpu_threads import FORGOTTEN, GpuThreads, Left
from agent.sources import memory, power, system
from agent.sources.agent_health import ABSENT_VALUES, GPU_READ_FAILURES, GPU_READ_SECONDS, SOURCE_UP
from tests.support.frozen_clock import FrozenClock
from tests.support.ill_gpus import IllGpus
from tests.support.machine_controls import restore, set_mig
from tests.support.machines import AgentBench, simulated
from tests.support.nightly import NIGHTLY
from tests.support.odd_answers import KINDS, OddAnswers, strike


def test_a_gpu_that_hangs_costs_its_own_samples_alone() -> None:
    bench = IllGpus("dgx-station-v100")
    hung: list[float] = []

    def step(at: float) -> None:
        if at > 4.0 and not hung:
            hung.append(at)
            bench.slow(1, 45.0)

    bench.run(30.0, step)
    assert [bench.lost(gpu) > 0 for gpu in range(4)] == [False, True, False, False]
    assert len(bench.unobserved()) == 4
    assert {gpu for gpu, seconds in bench.unobserved().items() if seconds > 2.0} == {"1"}
    took = {gpu: value for (gpu, _), value in bench.values.all(GPU_READ_SECONDS).items()}
    assert took["1"] > 20.0
    assert max(took[gpu] for gpu in ("0", "2", "3")) < 1.0
    assert set(bench.values.all(SOURCE_UP).values()) == {1.0}
    assert bench.values.value(system.GPUS) == 4.0
    latest = bench.agent.poller.latest
    shown = {a.metric: a for a in latest.absences(latest.at) if a.labels[:1] == ("1",)}
    assert shown[power.POWER].reason is shown[memory.USED].reason is Reason.NOT_ANSWERING
    assert shown[power.POWER].detail.startswith("not responding since 20")
    assert bench.threads == 2


@pytest.mark.parametrize(("delay", "short"), [(2.0, 0.6), (45.0, 0.0)])
def test_a_slow_gpu_is_named_alone_also_by_an_agent_short_of_processors(
    delay: float, short: float
) -> None:
    bench = IllGpus("dgx-station-v100")
    bench.short_of_processors(short)
    bench.run(4.0)
    bench.slow(1, delay)
    looks: list[list[tuple[str, int | None]]] = []
    for _ in range(8):
        bench.run(5.0)
        known = Search().findings(bench.agent.poller.latest)
        looks.append([(one.kind, one.gpu.index if one.gpu else None) for one in known])
    assert looks[-4:] == [[("gpu_not_answering", 1)]] * 4
    assert {gpu for look in looks for _, gpu in look} <= {None, 1}
    took = {gpu: value for (gpu, _), value in bench.values.all(GPU_READ_SECONDS).items()}
    assert {gpu for gpu, value in took.items() if value > 1} == {"1"}


def test_it_is_read_again_once_it_answers_promptly() -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    bench.slow(2, 5.0)
    bench.run(4.0)
    assert bench.values.value(power.POWER, *_labels(bench, 2)) is None
    bench.slow(2, 0.0)
    bench.run(10.0)
    assert bench.values.value(power.POWER, *_labels(bench, 2)) is not None
    before = bench.samples["2"], bench.ticks
    bench.run(6.0)
    assert bench.samples["2"] - before[0] == bench.ticks - before[1]
    latest = bench.agent.poller.latest
    reasons = {a.reason for a in latest.absences(latest.at)}
    assert not reasons & {Reason.NOT_ANSWERING, Reason.STALLED}


def test_many_calls_that_are_slow_one_by_one_delay_nothing_either() -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    bench.slow(0, 0.4)
    bench.run(20.0)
    assert [bench.lost(gpu) > 0 for gpu in range(4)] == [True, False, False, False]


def test_a_gpu_that_hangs_again_costs_the_others_nothing() -> None:
    bench = IllGpus("dgx-station-v100")

    def step(at: float) -> None:
        if round(at) % 45 == 5:
            bench.hold_up(3, 35.0)

    bench.run(60.0, step)
    assert [bench.lost(gpu) for gpu in range(4) if gpu != 3] == [0] * 3
    assert bench.lost(3) > 30
    assert bench.threads == 2


def test_calls_that_return_within_a_second_cost_no_other_and_raise_no_alarm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    bench.run(20.0, lambda at: bench.hold_up(1, 0.7) if round(at) % 3 == 0 else None)
    assert [bench.lost(gpu) for gpu in (0, 2, 3)] == [0] * 3
    assert set(bench.unobserved().values()) == {0.0}
    assert not bench.agent.gpus.threads.left
    assert "gpu_not_answering" not in caplog.text


def failures(bench: AgentBench) -> dict[str, float]:
    return {gpu: count for (gpu, _), count in bench.samples.all(GPU_READ_FAILURES).items()}


@pytest.mark.parametrize("code", [3, 4, 25])
def test_a_gpu_that_refuses_what_it_answered_is_counted(code: int) -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(5)
    for name in ("PowerUsage", "ClockInfo", "Temperature", "TemperatureV"):
        bench.machine.driver.fail(f"nvmlDeviceGet{name}", code, 1)
    counted = failures(bench.run(12))
    assert (counted["0"], counted["1"] > 10) == (0, True)


def test_so_is_one_whose_answers_cannot_be_but_not_for_one_of_them() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(5)
    right, until = bench.machine.nvml.nvmlDeviceGetPowerUsage, 0.0
    ill = address_of(bench.machine.nvml.nvmlDeviceGetHandleByIndex(1))

    def odd(handle: object) -> int:
        struck = bench.clock.monotonic() < until and address_of(handle) == ill
        return 10**9 if struck else int(right(handle))

    for seconds, counts in ((1, False), (20, True)):
        until = bench.clock.monotonic() + seconds
        bench.machine.nvml.nvmlDeviceGetPowerUsage = odd
        counted = failures(bench.run(22))
        assert (counted["0"], counted["1"] > 0) == (0, counts)


@pytest.mark.parametrize(
    ("code", "ill", "before"),
    [
        *((1, 0, 0), (1, 1, 5), (9, 0, 5), (18, 1, 0)),
        *(pytest.param(*case, marks=NIGHTLY) for case in ((9, 1, 0), (18, 0, 5))),
    ],
)
def test_one_that_says_there_is_no_driver_is_lost_alone(code: int, ill: int, before: int) -> None:
    bench = simulated("dgx-h100:training", gpus=2)
    bench.run(before)
    for name in ("PowerUsage", "ClockInfo", "UUID", "FieldValues"):
        bench.machine.driver.fail(f"nvmlDeviceGet{name}", code, ill)
    bench.run(30)
    assert {gpu for gpu, _ in bench.samples.all(power.POWER)} == {str(1 - ill)}
    assert bench.samples.value(system.GPUS) == 1
    for name in ("PowerUsage", "ClockInfo", "UUID", "FieldValues"):
        bench.machine.driver.fail(f"nvmlDeviceGet{name}", None, ill)
    assert len(bench.run(15).samples.all(power.POWER)) == 2


def test_one_that_is_divided_answers_otherwise_and_is_not_ill() -> None:
    bench = simulated("dgx-h100:idle", gpus=2).run(5)
    set_mig(bench.machine, 1, on=True)
    assert set(failures(bench.run(5).skip(60).run(5)).values()) == {0.0}


@pytest.mark.parametrize("ill", [(0, 1), (2, 3)])
def test_two_gpus_that_hang_at_once_cost_no_other(ill: tuple[int, int]) -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    for gpu in ill:
        bench.slow(gpu, 45.0)
    bench.run(20.0)
    assert [bench.lost(gpu) > 0 for gpu in range(4)] == [gpu in ill for gpu in range(4)]
    assert bench.threads == 3


def test_a_driver_that_hangs_is_no_gpu_that_does_not_answer() -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    bench.machine.driver.hung = True
    bench.run(12.0)
    assert bench.threads == 3
    assert bench.values.value(SOURCE_UP, "nvml") == 0.0
    assert not bench.values.all(GPU_READ_SECONDS)
    latest = bench.agent.poller.latest
    reasons = [a.reason for a in latest.absences(latest.at) if a.metric is power.POWER]
    assert reasons.count(Reason.STALLED) >= 2, "but for those that were the first to hang"
    bench.machine.driver.hung = False
    bench.run(12.0)
    assert set(bench.values.all(SOURCE_UP).values()) == {1.0}
    assert len(bench.values.all(power.POWER)) == 4
    assert all(left.why is None for left in bench.agent.gpus.threads.left.values())


def test_a_gpu_that_hangs_at_the_start_costs_only_itself() -> None:
    bench = IllGpus("dgx-station-v100")
    bench.slow(1, 12.0)
    bench.run(8.0)
    assert {gpu for gpu, _ in bench.values.all(power.POWER)} == {"0", "2", "3"}
    assert bench.values.value(system.GPUS) == 4.0, "it is there, though it does not answer"
    assert (bench.values.value(GPU_READ_SECONDS, "1", "") or 0.0) > 5.0
    latest = bench.agent.poller.latest
    found = [(one.kind, one.gpu and one.gpu.index) for one in Search().findings(latest)]
    assert found == [("gpu_not_answering", 1)]
    bench.slow(1, 0.0)
    bench.run(14.0)
    assert {gpu for gpu, _ in bench.values.all(power.POWER)} == {"0", "1", "2", "3"}


def test_a_gpu_on_its_own_thread_is_released_with_the_driver_and_lost_as_any() -> None:
    bench = IllGpus("dgx-station-v100").run(4.0)
    for gpu in (1, 2):
        bench.slow(gpu, 5.0)
    bench.run(4.0)
    for gpu in (1, 2):
        bench.slow(gpu, 0.0)
    bench.run(8.0)
    assert set(bench.agent.gpus.threads.left) == {1, 2}
    bench.machine.lose(2)
    bench.run(12.0)
    assert len(bench.agent.gpus.inventory.lost) == 1
    assert bench.values.value(system.GPUS) == 3.0
    restore(bench.machine, 2)
    bench.run(15.0)
    assert len(bench.values.all(power.POWER)) == 4
    bench.agent.gpus.asked_back = lambda: "a file asks for it"
    bench.run(4.0)
    assert bench.machine.nvml.held() == (0, 0, 0)
    bench.agent.gpus.asked_back = str
    bench.run(4.0)
    assert len(bench.values.all(power.POWER)) == 4


def test_probation_grows_with_each_hang_and_is_forgotten_after_a_quiet_time() -> None:
    clock = FrozenClock()
    threads = GpuThreads(clock)
    threads.gpus = 8

    def hang() -> float:
        """Seconds from the return of a call that hung until the GPU is back with the others."""
        with threads.visit(0):
            pass
        with suppress(Left), threads.visit(3):
            clock.advance(45.0)
            assert threads.leave() == 0.0
        left = threads.left[3]
        threads.ended(left)
        assert left.why is not None
        clock.advance(left.pause)
        left.watch, left.busy = Stopwatch(clock), True
        threads.ended(left)
        began = clock.monotonic()
        while threads.left:
            clock.advance(10.0)
            threads.take_back()
        return clock.monotonic() - began

    assert [hang() for _ in range(5)] == [300.0, 600.0, 1200.0, 2400.0, 3600.0]
    clock.advance(FORGOTTEN)
    assert hang() == 300.0


def test_a_call_that_returns_shows_that_the_lock_is_free() -> None:
    """Two that a busy host delayed must not leave all with a third that hangs."""
    clock = FrozenClock()
    threads = GpuThreads(clock)
    threads.gpus = 8
    for gpu in (0, 1):
        with suppress(Left), threads.visit(gpu):
            clock.advance(2.0)
            assert threads.leave() == 0.0
    with suppress(Left), threads.visit(2):
        clock.advance(2.0)
        assert threads.leave() is None
        threads.ended(threads.left[1])
        assert threads.leave() == 0.0


def _labels(bench: IllGpus, gpu: int) -> tuple[str, str]:
    """Labels of the metrics of one GPU."""
    return str(gpu), bench.machine.gpus[gpu].uuid


def test_odd_answers_are_counted_and_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = simulated("dgx-h100", gpus=2).run(5)
    strike(bench.machine, OddAnswers(KINDS["word"]))
    bench.run(10)
    bench.machine.lose(0)
    bench.run(5)
    restore(bench.machine, 0)
    bench.run(30)
    odd = [r for r in caplog.records if "event=implausible" in r.getMessage()]
    assert odd == []
    counts = bench.samples.where(ABSENT_VALUES, reason=Reason.IMPLAUSIBLE.value)
    assert len(counts) > 5, "all are counted"
