"""Graphics work counts as work on a GPU; the server of a display does not."""

import pytest

from agent.simulator.gpu import SimulatedGpuProcess
from agent.sources import process
from tests.support import machine_controls as controls
from tests.support.machines import AgentBench, simulated


def drawing() -> AgentBench:
    """A GPU that rests but for one process that draws."""
    bench = simulated("dgx-station-v100:idle").run(2)
    pid = controls.start_process(bench.machine, 0)
    (one,) = bench.machine.gpus[0].processes
    bench.machine.gpus[0].processes = [SimulatedGpuProcess(pid, one.memory, draws=True)]
    return bench


def test_a_process_that_only_draws_is_on_the_gpu() -> None:
    bench = drawing()
    bench.run(6)
    assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [1]
    assert list(bench.samples.where(process.PROCESSES, gpu="1").values()) == [0]


@pytest.mark.parametrize("name", sorted(process.DISPLAYS))
def test_a_server_of_a_display_is_no_job(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.Processes, "_name", lambda *_: name)
    bench = drawing()
    bench.run(6)
    assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [0]


def test_a_program_that_computes_is_a_job_whatever_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process.Processes, "_name", lambda *_: "Xorg")
    bench = simulated("dgx-station-v100:idle").run(2)
    controls.start_process(bench.machine, 0)
    bench.run(6)
    assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [1]
