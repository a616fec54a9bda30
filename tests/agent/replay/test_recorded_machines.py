"""Recorded answers of real GPUs under known loads, replayed: the known figures still hold.

The tapes were recorded by `python -m tests.hardware` on an H100 and on four H200, driver 580.159.
"""

import pytest

from agent.model import Metric
from agent.sources import activity, gpu, nvlink, pcie, process, system
from tests.support.machines import AgentBench, taped
from tests.support.repository import TAPES

NCCL_BUS = 352.75e9
"""Bytes per second that NCCL moved in each direction on each GPU while the tape ran."""

LINKS = 18 * 25e9


def rates(bench: AgentBench, metric: Metric, seconds: int) -> list[float]:
    """Units per second of every GPU over the next seconds of the tape."""
    before = {key: bench.samples.point(metric, *key) for key in bench.samples.all(metric)}
    bench.run(seconds)
    found = []
    for key, first in before.items():
        last = bench.samples.point(metric, *key)
        assert first is not None
        assert last is not None
        found.append((last[1] - first[1]) / (last[0] - first[0]))
    return found


def test_all_reduce_on_four_h200_moves_what_nccl_says() -> None:
    bench = taped(TAPES / "h200-x4-all-reduce.tape").run(28)
    assert bench.samples.value(system.GPUS) == 4
    payload = rates(bench, nvlink.TRANSMITTED, 15)
    assert payload == pytest.approx([NCCL_BUS] * 4, rel=0.01)
    assert rates(bench, nvlink.WIRE_RECEIVED, 5) == pytest.approx([0.92 * LINKS] * 4, rel=0.03)
    assert set(bench.samples.all(nvlink.LINKS).values()) == {18.0}
    assert set(bench.samples.all(process.PROCESSES).values()) == {1.0}


def test_nccl_spins_read_as_utilisation_and_hardly_as_sm() -> None:
    bench = taped(TAPES / "h200-x4-all-reduce.tape").run(35)
    assert min(bench.samples.all(gpu.UTILIZATION).values()) > 0.95
    assert max(bench.samples.all(activity.SM_ACTIVE).values()) < 0.3


def test_bare_copies_are_no_activity() -> None:
    bench = taped(TAPES / "h100-copies.tape").run(16)
    (received,) = rates(bench, pcie.RECEIVED, 5)
    assert received > 0.8 * 63e9
    assert max(bench.samples.all(gpu.UTILIZATION).values()) > 0.95
    assert max(bench.samples.all(activity.ACTIVITY).values()) < 0.01


def test_matrix_products_are_activity() -> None:
    bench = taped(TAPES / "h100-matrices.tape").run(14)
    (active,) = rates(bench, activity.ACTIVE_SECONDS, 4)
    assert active == pytest.approx(0.97, abs=0.03)


def test_an_idle_gpu_rests() -> None:
    bench = taped(TAPES / "h100-idle.tape").run(12)
    assert list(bench.samples.all(activity.ACTIVITY).values()) == [0.0]
    assert list(bench.samples.all(process.PROCESSES).values()) == [0.0]
