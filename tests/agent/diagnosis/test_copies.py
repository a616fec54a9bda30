"""Launches of kernels, counted by the bytes that they take over PCIe."""

import pytest

from agent.diagnosis import copies
from agent.diagnosis.copies import (
    ACTIVE_BY_LAUNCH,
    RECEIVED_BY_LAUNCH,
    copies_by_thread,
    launch_rate,
)
from agent.diagnosis.division import divide_second
from agent.diagnosis.tick_context import GpuHistory
from agent.model import BUSY, Cause, Pair, State
from agent.sources import activity, pcie, power, process, workload
from tests.agent.diagnosis.test_division import PEER, job
from tests.support.evidence import GPU, Figures, evidence, threads

HOST_THREAD: Pair = (State.STARVED, Cause.HOST_THREAD)
RATE = 60e3


def with_traffic(sent: float, received: float) -> Figures:
    return {
        (process.PROCESSES, GPU): 1,
        (activity.ACTIVITY, GPU): 0.43,
        (activity.SM_ACTIVE, GPU): 0.03,
        (power.POWER, GPU): 126,
        (power.POWER_LIMIT, GPU): 700,
        (pcie.TRANSMITTED, GPU): sent,
        (pcie.RECEIVED, GPU): received,
        **threads(GPU, 1.0),
    }


LAUNCHING = with_traffic(RATE * copies.SENT_BY_LAUNCH, RATE * RECEIVED_BY_LAUNCH)


@pytest.mark.parametrize("copied", [0.0, 70e6, 5e9], ids=["alone", "a batch", "large copies"])
def test_launches_are_counted_beside_copies_to_the_gpu(copied: float) -> None:
    sent = RATE * copies.SENT_BY_LAUNCH + copied / copies.RECEIVED_BY_COPY
    received = RATE * RECEIVED_BY_LAUNCH + copied
    assert launch_rate(evidence(with_traffic(sent, received))) == pytest.approx(RATE)


def test_launches_are_not_known_where_copies_from_the_gpu_hide_them() -> None:
    assert launch_rate(evidence(with_traffic(2e9, 150e6))) is None
    assert launch_rate(evidence(with_traffic(0.0, 5e9))) == 0.0
    assert launch_rate(evidence(with_traffic(4e8, 4e9))) == pytest.approx(0.43 / ACTIVE_BY_LAUNCH)
    unread = {k: v for k, v in LAUNCHING.items() if k[0] not in (pcie.TRANSMITTED, pcie.RECEIVED)}
    assert launch_rate(evidence(unread)) is None


def test_what_launching_takes_is_no_work() -> None:
    divided = divide_second(evidence(LAUNCHING))
    taken = ACTIVE_BY_LAUNCH * RATE
    assert divided.parts[BUSY] == pytest.approx(0.43 - taken)
    assert divided.parts[HOST_THREAD] == pytest.approx(0.57 + taken)


def test_of_a_gpu_that_is_nearly_always_active_launches_wait_in_a_queue() -> None:
    busy = {**LAUNCHING, (activity.ACTIVITY, GPU): 0.98, (activity.SM_ACTIVE, GPU): 0.9}
    busy_share = divide_second(evidence(busy)).parts[BUSY]
    assert busy_share == pytest.approx(0.98 - copies.MOST_OF_INACTIVE * 0.02)


def test_launches_of_a_thread_that_sleeps_meanwhile_cost_nothing() -> None:
    asleep = {**LAUNCHING, **threads(GPU, 0.2)}
    assert divide_second(evidence(asleep)).parts[BUSY] == pytest.approx(0.43)


def test_ranks_copy_to_new_memory_for_as_long_as_its_page_faults_take() -> None:
    roles: Figures = {
        (workload.THREADS, (*GPU, "launching", one)): 0.2 for one in ("fresh", "system")
    }
    figures: Figures = {**job({}, {}), **with_traffic(2e9, 1e7), **roles}
    e = evidence(figures, others={PEER: GpuHistory()})
    assert copies_by_thread(e, 0.6, 0.2) == pytest.approx(0.2)
