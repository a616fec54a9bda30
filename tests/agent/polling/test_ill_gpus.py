"""A GPU whose calls hang costs its own samples alone; a driver that hangs is said to."""

import pytest

from agent.model import Reason
from agent.sources import answers, memory, power, system
from agent.sources.agent_health import SOURCE_UP
from tests.benchmarks.soak_ill_gpus import soak, wrong
from tests.support.ill_gpus import IllGpus

SPEED = 4.0
"""Of the clock: a second of patience is a quarter of a real one."""


def test_a_gpu_that_hangs_costs_its_own_samples_alone() -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    hung: list[float] = []

    def step(at: float) -> None:
        if at > 4.0 and not hung:
            hung.append(at)
            bench.slow(1, 45.0)

    bench.run(30.0, step)
    assert [bench.lost(gpu) <= 1 for gpu in range(4)] == [True, False, True, True]
    assert {gpu: seconds > 2.0 for gpu, seconds in bench.unobserved().items()} == {
        "0": False,
        "1": True,
        "2": False,
        "3": False,
    }
    took = {gpu: value for (gpu, _), value in bench.values.all(answers.READ_SECONDS).items()}
    assert took["1"] > 20.0
    assert max(took[gpu] for gpu in ("0", "2", "3")) < 1.0
    assert set(bench.values.all(SOURCE_UP).values()) == {1.0}
    assert bench.values.value(system.GPUS) == 4.0
    latest = bench.agent.poller.latest
    told = {a.metric: a for a in latest.absences(latest.at) if a.labels[:1] == ("1",)}
    assert told[power.POWER].reason is told[memory.USED].reason is Reason.NOT_ANSWERING
    assert told[power.POWER].detail.startswith("not answering since 20")
    assert bench.threads == 2


def test_it_is_read_again_once_it_answers_promptly() -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    bench.run(4.0)
    bench.slow(2, 5.0)
    bench.run(4.0)
    assert bench.values.value(power.POWER, *_labels(bench, 2)) is None
    bench.slow(2, 0.0)
    bench.run(10.0)
    assert bench.values.value(power.POWER, *_labels(bench, 2)) is not None
    assert not bench.agent.gpus.threads.left
    before = bench.samples["2"], bench.ticks
    bench.run(6.0)
    assert bench.samples["2"] - before[0] == bench.ticks - before[1]
    latest = bench.agent.poller.latest
    reasons = {a.reason for a in latest.absences(latest.at)}
    assert not reasons & {Reason.NOT_ANSWERING, Reason.STALLED}


def test_many_calls_that_are_slow_one_by_one_hold_up_nobody_either() -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    bench.run(4.0)
    bench.slow(0, 0.4)
    bench.run(20.0)
    assert [bench.lost(gpu) <= 1 for gpu in range(4)] == [False, True, True, True]


@pytest.mark.parametrize("ill", [(0, 1), (1, 2), (2, 3)])
def test_two_gpus_that_hang_at_once_cost_no_other(ill: tuple[int, int]) -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    bench.run(4.0)
    for gpu in ill:
        bench.slow(gpu, 45.0)
    bench.run(20.0)
    assert [bench.lost(gpu) <= 2 for gpu in range(4)] == [gpu not in ill for gpu in range(4)]
    assert bench.threads == 3


def test_a_driver_that_hangs_is_no_gpu_that_does_not_answer() -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    bench.run(4.0)
    bench.machine.driver.hang(on=True)
    bench.run(12.0)
    assert bench.threads == 3
    assert bench.values.value(SOURCE_UP, "nvml") == 0.0
    assert not bench.values.all(answers.READ_SECONDS)
    latest = bench.agent.poller.latest
    reasons = [a.reason for a in latest.absences(latest.at) if a.metric is power.POWER]
    assert reasons.count(Reason.STALLED) >= 2, "but for those that were the first to hang"
    bench.machine.driver.hang(on=False)
    bench.run(12.0)
    assert set(bench.values.all(SOURCE_UP).values()) == {1.0}
    assert len(bench.values.all(power.POWER)) == 4
    assert not bench.agent.gpus.threads.left


def test_a_gpu_that_hangs_at_the_start_costs_only_itself() -> None:
    bench = IllGpus("dgx-station-v100", SPEED)
    bench.slow(1, 12.0)
    bench.run(8.0)
    assert {gpu for gpu, _ in bench.values.all(power.POWER)} == {"0", "2", "3"}
    assert bench.values.value(system.GPUS) == 3.0
    bench.slow(1, 0.0)
    bench.run(14.0)
    assert {gpu for gpu, _ in bench.values.all(power.POWER)} == {"0", "1", "2", "3"}


def _labels(bench: IllGpus, gpu: int) -> tuple[str, str]:
    """Labels of the metrics of one GPU."""
    return str(gpu), bench.machine.gpus[gpu].uuid


def test_random_trouble_of_some_costs_the_others_nothing() -> None:
    bench, troubles = soak(1.5, SPEED, seed=3)
    assert troubles.count >= 3
    assert list(wrong(bench)) == []
