"""GPU Operational Events as nvidia-ml-py 13.615 declares them; no real driver was seen."""

from typing import Any

import pytest

from agent.sources import xid
from tests.support.machines import AgentBench, simulated

NEWER, OLDER = "dgx-h100@615:training", "dgx-h100@610:training"


def counted(bench: AgentBench, code: int) -> list[float]:
    return list(bench.samples.where(xid.ERRORS, xid=str(code), gpu="0").values())


@pytest.mark.parametrize("system", [NEWER, OLDER])
def test_an_error_that_comes_by_every_way_counts_once(system: str) -> None:
    bench = simulated(system, gpus=2).run(2)
    bench.machine.driver.xid(0, 48)
    bench.run(3)
    assert counted(bench, 48) == [1]


def test_an_operational_event_alone_counts() -> None:
    bench = simulated(NEWER, gpus=2).run(2)
    (sets,) = [[one for one in bench.machine.nvml.sets.values() if one.operational]]
    assert len(sets) == 1
    sets[0].operated.append((0, 94))
    bench.run(3)
    assert counted(bench, 94) == [1]


def test_they_are_given_back_with_the_driver() -> None:
    bench = simulated(NEWER, gpus=2).run(2)
    assert bench.machine.nvml.held()[:2] == (1, 2)
    bench.agent.gpus.asked_back = lambda: "an upgrade"
    bench.run(4)
    assert bench.machine.nvml.held() == (0, 0, 0)


@pytest.mark.parametrize(
    "call",
    [
        "nvmlEventSetRegisterGpuOperationalEvents_v1",
        "nvmlEventSetWait_v3",
        "nvmlEventSetGetContextCount_v1",
    ],
)
def test_a_refusal_costs_the_operational_events_alone(call: str) -> None:
    bench = simulated(NEWER, gpus=2)
    bench.machine.driver.fail(call, 3)
    bench.run(2)
    bench.machine.driver.xid(0, 48)
    bench.run(3)
    assert counted(bench, 48) == [1]


def test_bindings_without_them_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = simulated(NEWER, gpus=2)

    def missing(*_: Any) -> None:
        raise AttributeError("no such structure")

    monkeypatch.setattr(
        bench.machine.nvml, "c_nvmlGpuOperationalEventConfig_v1_t", missing, raising=False
    )
    bench.run(2)
    bench.machine.driver.xid(0, 48)
    bench.run(3)
    assert counted(bench, 48) == [1]
