"""The NVML worker writes down who is on which GPU, the host worker reads it: on whole machines."""

from agent.hardware.processes import Descent
from agent.model import Metric
from agent.sources import process
from agent.sources import workload as work
from tests.support import machines
from tests.support.machine_controls import start_process
from tests.support.machines import AgentBench
from tests.support.process_tree import ProcessTree

SECONDS = 12


def shown(bench: AgentBench, metric: Metric) -> dict[tuple[str, ...], float]:
    """The figures of a metric by its labels, GPUs by number."""
    found = bench.latest.samples(bench.clock.monotonic())
    return {
        tuple(label for label in labels if not label.startswith("GPU-")): value
        for other, labels, value in found
        if other is metric
    }


def test_a_gpu_that_is_lost_takes_its_workload_along() -> None:
    bench = machines.simulated("dgx-h100:gpu-lost", gpus=2).run(60)
    answering = {labels[0] for labels in shown(bench, process.PROCESSES)}
    assert len(answering) == 1
    assert {labels[0] for labels in shown(bench, work.JOB_PIDS)} == answering


def test_a_server_of_mps_is_no_user() -> None:
    """It stands on every GPU for who comes: it joins nothing and works for no one."""
    bench = machines.simulated("dgx-h100:idle", gpus=2).run(2)
    machine = bench.machine
    for gpu in (0, 1):
        pid = start_process(machine, gpu)
        machine.jobs.processes[pid].name = process.MPS_SERVER
        machine.jobs.processes[pid].uid = 0
    bench.run(SECONDS)
    assert set(shown(bench, process.PROCESSES).values()) == {0}
    assert not shown(bench, process.PROCESS)
    assert not shown(bench, work.JOB_PIDS)
    assert {verdict.state for verdict in bench.latest.verdicts.values()} == {"idle"}
    client = start_process(machine, 1)
    bench.run(SECONDS)
    assert [labels[1] for labels in shown(bench, process.PROCESS)] == [str(client)]


def test_a_users_program_called_like_the_server_of_mps_is_a_process() -> None:
    bench = machines.simulated("dgx-h100:idle", gpus=2).run(2)
    pid = start_process(bench.machine, 0)
    bench.machine.jobs.processes[pid].name = process.MPS_SERVER
    bench.run(SECONDS)
    assert [labels[1] for labels in shown(bench, process.PROCESS)] == [str(pid)]
    daemon = start_process(bench.machine, 1)
    bench.machine.jobs.processes[daemon].name = process.MPS_SERVER
    bench.machine.jobs.processes[daemon].uid = 0
    bench.machine.jobs.processes[pid].parent = daemon  # root's daemon serves this user
    bench.run(SECONDS)
    assert not shown(bench, process.PROCESS)


def test_forks_of_processes_that_ended_are_forgotten(tree: ProcessTree) -> None:
    """A job that compiles starts thousands an hour."""
    descent = Descent(tree.tree)
    for pid in range(500, 700):
        tree.start(pid, parent=100)
        assert pid in descent.below([100], set(), 999, now=2.0 * pid)
        tree.end(pid)
    assert len(descent._forks) <= 60
