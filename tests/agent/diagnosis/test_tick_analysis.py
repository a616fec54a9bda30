"""The parts of a tick: one that fails costs what it finds, and nothing else."""

from typing import Any

import pytest

from agent.sources.agent_health import SOURCE_UP
from tests.support.machines import AgentBench, simulated

PARTS = {"paths": "bandwidth", "_groups": "jobs", "_pulses": "pulse", "jobs": "jobs"}


def broken(*_: object) -> Any:
    raise ZeroDivisionError("odd")


def up(bench: AgentBench) -> dict[str, float]:
    wanted = ("bandwidth", "pulse", "diagnosis", "jobs")
    return {name: bench.samples.value(SOURCE_UP, name) or 0.0 for name in wanted}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_no_job_and_costs_no_verdict(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = simulated("dgx-station-v100:training").run(20)
    analysis = bench.agent._analysis
    began = bench.agent.jobs.current.running[0].receipt.began
    with monkeypatch.context() as patch:
        patch.setattr(type(getattr(analysis, part)), "take", broken)
        bench.run(3)
        assert up(bench) == {name: float(name != PARTS[part]) for name in up(bench)}
        assert len(bench.agent.poller.latest.verdicts) == 4
    bench.run(3)
    assert set(up(bench).values()) == {1.0}
    assert [job.receipt.began for job in bench.agent.jobs.current.running] == [began]
    assert bench.agent.jobs.current.ended == ()
