"""Kernels launched one by one, counted by what the GPU fetches over PCIe."""

import pytest

from agent.diagnosis.accounting import Account
from agent.diagnosis.division import Division, divide_second
from agent.diagnosis.launches import ACTIVE_BY_LAUNCH, SENT_BY_LAUNCH, launch_rate, launches
from agent.model import BUSY, Cause, Pair, State
from agent.sources import activity, pcie, power, process
from agent.sources import workload as work
from exporters.words import fact_text
from tests.support.evidence import GPU, Figures, evidence

HOST_THREAD: Pair = (State.STARVED, Cause.HOST_THREAD)
DISK: Pair = (State.STARVED, Cause.DISK)
UNKNOWN: Pair = (State.STARVED, Cause.UNKNOWN)
RATE = 60e3
LAUNCHING: Figures = {
    (process.PROCESSES, GPU): 1,
    (activity.ACTIVITY, GPU): 0.43,
    (activity.SM_ACTIVE, GPU): 0.03,
    (power.POWER, GPU): 126,
    (power.POWER_LIMIT, GPU): 700,
    (work.LAUNCHER_CORES, GPU): 1.0,
    (pcie.TRANSMITTED, GPU): RATE * SENT_BY_LAUNCH,
    (pcie.RECEIVED, GPU): 9 * RATE * SENT_BY_LAUNCH,
}


def with_traffic(sent: float, received: float) -> Figures:
    return {**LAUNCHING, (pcie.TRANSMITTED, GPU): sent, (pcie.RECEIVED, GPU): received}


def test_launches_are_counted_where_pcie_carries_little_else() -> None:
    assert launch_rate(evidence(LAUNCHING)) == pytest.approx(RATE)
    assert launch_rate(evidence(with_traffic(14e6, 5e9))) is None, "copies to the GPU"
    assert launch_rate(evidence(with_traffic(2e9, 150e6))) is None, "copies from it"
    assert launch_rate(evidence(with_traffic(0.0, 0.0))) is None
    untold = {k: v for k, v in LAUNCHING.items() if k[0] not in (pcie.TRANSMITTED, pcie.RECEIVED)}
    assert launch_rate(evidence(untold)) is None


def test_what_launching_takes_is_no_work() -> None:
    divided = divide_second(evidence(LAUNCHING))
    taken = ACTIVE_BY_LAUNCH * RATE
    assert divided.parts[BUSY] == pytest.approx(0.43 - taken)
    assert divided.parts[HOST_THREAD] == pytest.approx(0.57 + taken)
    (fact,) = divided.found[HOST_THREAD].facts
    assert "launches about 60 thousand kernels a second" in fact_text(fact)
    assert divided.found[HOST_THREAD].place == "launches.py:launches"


@pytest.mark.parametrize(("active", "cause"), [(0.89, HOST_THREAD), (0.94, UNKNOWN)])
def test_who_sleeps_for_as_long_as_the_gpu_rests_does_not_launch(
    active: float, cause: Pair
) -> None:
    """A rank that sleeps for 5 % of its step, beside one that does not (two H200)."""
    figures = {
        **with_traffic(12.1e6, 52.5e6),
        (activity.ACTIVITY, GPU): active,
        (work.LAUNCHER_CORES, GPU): 0.95,
    }
    assert cause in divide_second(evidence(figures)).parts


@pytest.mark.parametrize(
    ("rate", "cores", "found"), [(RATE, 0.87, True), (RATE, 0.84, False), (15e3, 0.87, False)]
)
def test_two_threads_that_launch_by_turns_use_less_than_a_core(
    rate: float, cores: float, found: bool
) -> None:
    """Forward and backward pass: 0.90 to 0.94 cores at 54,000 launches a second (H200)."""
    sent = rate * SENT_BY_LAUNCH
    e = evidence({**with_traffic(sent, 9 * sent), (work.LAUNCHER_CORES, GPU): cores})
    assert bool(launches(e)) is found


def test_of_a_gpu_that_is_nearly_always_active_launches_wait_in_a_queue() -> None:
    busy = {**LAUNCHING, (activity.ACTIVITY, GPU): 0.98, (activity.SM_ACTIVE, GPU): 0.9}
    assert divide_second(evidence(busy)).parts[BUSY] == pytest.approx(0.98 - 0.25 * 0.02)


def test_pauses_are_not_explained_by_what_the_job_before_waited_for() -> None:
    account, now = Account(), 0.0
    for lives, pair in ((100.0, DISK), (110.0, UNKNOWN), (3.0, UNKNOWN)):
        for second in range(10):
            e = evidence({**LAUNCHING, (work.LIVES, GPU): lives + second})
            account.enter(e, Division({pair: 0.5, BUSY: 0.5}), now)
            now += 1.0
    seconds = account.booked.seconds
    assert seconds[DISK] == pytest.approx(0.47 * 19, abs=0.1)
    assert seconds[UNKNOWN] == pytest.approx(0.47 * 10, abs=0.1)
