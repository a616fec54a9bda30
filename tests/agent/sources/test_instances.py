"""GPUs that several share, divided by MIG or in turns; graphics count as work, the server of a
display does not."""

import pytest

from agent.config.settings import Settings
from agent.jobs.allocation import Devices, of_pods
from agent.model import Metric, Reason
from agent.polling.gpu_state import GpuProcesses
from agent.simulator.gpu import SimulatedGpuProcess
from agent.sources import activity, gpu, instances, memory, process
from agent.sources.process import ProcessConfig
from tests.support import machine_controls as controls
from tests.support.machines import AgentBench, simulated

GIB = 1 << 30
FIRST, SECOND, THIRD = "2", "3", "9"
"""Numbers of the GPU instances as the driver gives them."""


def rows(bench: AgentBench, metric: Metric) -> dict[str, float]:
    """By GPU instance, of the first GPU; no other GPU has any."""
    found = bench.samples.all(metric)
    assert {labels[0] for labels in found} <= {"0"}
    return {labels[2]: value for labels, value in found.items()}


@pytest.fixture(scope="module")
def divided() -> AgentBench:
    """The first of two GPUs is divided; three processes are on it, one on each instance."""
    bench = simulated("dgx-h100:training+mig", gpus=2)
    for _ in range(2):
        controls.start_process(bench.machine, 0, 8 * GIB)
    return bench.run(12)


def test_each_instance_has_a_row(divided: AgentBench) -> None:
    memory = divided.machine.gpus[0].model.memory
    shares = {FIRST: memory * 4 // 8, SECOND: memory * 2 // 8, THIRD: memory // 8}
    assert rows(divided, instances.TOTAL) == shares
    assert rows(divided, instances.INSTANCE_PROCESSES) == {FIRST: 1, SECOND: 1, THIRD: 1}
    used = rows(divided, instances.USED)
    assert (used[SECOND], used[THIRD]) == (2 * GIB, GIB)
    shown = divided.samples.labelled(instances.INSTANCE_INFO)
    assert [one["profile"] for one in shown] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert len({one["mig_uuid"] for one in shown}) == 3


def test_what_an_instance_did_is_measured_of_it(divided: AgentBench) -> None:
    """As the other GPU, which does the same without MIG."""
    alike = divided.samples.value(activity.SM_ACTIVE, "1", divided.machine.gpus[1].uuid)
    for ratio in rows(divided, instances.SM_ACTIVE).values():
        assert ratio == pytest.approx(alike, rel=0.2)
    seconds = rows(divided, instances.ACTIVE_SECONDS)
    assert all(4.0 < value <= 12.0 for value in seconds.values())


def test_nothing_is_reported_twice(divided: AgentBench) -> None:
    """Of the whole GPU only what no instance has; its processes are those of its instances."""
    labels = divided.machine.gpus[0]
    for metric in (gpu.UTILIZATION, activity.ACTIVITY, activity.SM_ACTIVE, memory.USED):
        assert [one.reason for one in divided.absent(metric)] == [Reason.MIG]
    assert divided.samples.value(process.PROCESSES, "0", labels.uuid) == 3


def test_instances_come_and_go() -> None:
    bench = simulated("dgx-h100:training", gpus=1).run(3)
    assert not rows(bench, instances.INSTANCE_PROCESSES)
    controls.set_mig(bench.machine, 0, on=True)
    bench.run(2).skip(60).run(20)
    assert set(rows(bench, instances.INSTANCE_PROCESSES)) == {FIRST, SECOND, THIRD}
    resting = rows(bench, instances.SM_ACTIVE)
    assert resting[FIRST] > 0.2
    assert resting[SECOND] == resting[THIRD] == 0
    controls.set_mig(bench.machine, 0, on=False)
    bench.run(2).skip(60).run(15)
    assert not rows(bench, instances.INSTANCE_PROCESSES)
    assert bench.samples.value(activity.ACTIVITY, "0", bench.machine.gpus[0].uuid) is not None


def test_ampere_shows_no_activity_of_an_instance() -> None:
    bench = simulated("dgx-a100:training+mig", gpus=1).run(7)
    assert rows(bench, instances.INSTANCE_PROCESSES) == {FIRST: 1, SECOND: 0, THIRD: 0}
    assert not rows(bench, instances.ACTIVITY)
    absent = {one.labels[2]: one.reason for one in bench.absent(instances.ACTIVITY)}
    assert absent[FIRST] is Reason.UNSUPPORTED


def test_a_pod_with_an_instance_was_given_its_gpu() -> None:
    there = GpuProcesses()
    there.by_gpu["0", "GPU-a"] = ()
    there.by_gpu["1", "GPU-b"] = ()
    there.divided["1", "GPU-b"] = ("MIG-1", "MIG-2")
    ids = {"one": ["MIG-2"], "two": ["GPU-a::3", "MIG-9"]}
    pods = [("lab", pod, "main", [("nvidia.com/gpu", i) for i in its]) for pod, its in ids.items()]
    given = of_pods(pods, Devices(there.parents(), {}, {}))
    assert {one.labels.pod: one.gpus for one in given.jobs} == {"one": {"GPU-b"}, "two": {"GPU-a"}}
    assert "MIG-9" in str(given.hidden)
    there.keep([("0", "GPU-a")])
    assert there.parents() == {"GPU-a": "GPU-a"}


def test_processes_that_share_a_gpu_are_reported_side_by_side() -> None:
    """By time-slicing and MPS alike: NVML lists the clients, each with its memory and share."""
    bench = simulated("dgx-h100:training", Settings(ProcessConfig(series=4)), 2)
    second = controls.start_process(bench.machine, 0, 8 * GIB)
    bench.run(12)
    shares = bench.samples.all(process.SHARE)
    held = bench.samples.all(process.PROCESS_MEMORY)
    assert {labels[0] for labels in shares} == {"0"}, "who is alone has no share"
    assert {int(labels[2]) for labels in shares} == {p.pid for p in bench.machine.gpus[0].processes}
    assert 0.8 < sum(shares.values()) <= 1.0
    assert {v for labels, v in held.items() if labels[2] == str(second)} == {8 * GIB}


def drawing(memory: int = GIB) -> AgentBench:
    """A GPU that rests but for one process that draws."""
    bench = simulated("dgx-h100:idle", gpus=2).run(2)
    pid = controls.start_process(bench.machine, 0)
    bench.machine.gpus[0].processes = [SimulatedGpuProcess(pid, memory, draws=True)]
    return bench


def test_a_process_that_only_draws_is_on_the_gpu() -> None:
    bench = drawing()
    bench.run(6)
    assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [1]
    assert list(bench.samples.where(process.PROCESSES, gpu="1").values()) == [0]


@pytest.mark.parametrize("name", sorted(process.DISPLAYS))
def test_a_server_of_a_display_is_no_job_unless_it_holds_what_none_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "text_or_nothing", lambda *_: name)
    for held, jobs in ((GIB, 0), (60 * GIB, 1)):
        bench = drawing(held)
        bench.run(6)
        assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [jobs]


def test_a_program_that_computes_is_a_job_whatever_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "text_or_nothing", lambda *_: "Xorg")
    bench = simulated("dgx-h100:idle", gpus=2).run(2)
    controls.start_process(bench.machine, 0)
    bench.run(6)
    assert list(bench.samples.where(process.PROCESSES, gpu="0").values()) == [1]


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        ("nvmlDeviceGetMemoryInfo", {instances.USED, instances.TOTAL}),
        ("nvmlDeviceGetComputeRunningProcesses", {instances.INSTANCE_PROCESSES}),
        ("nvmlGpmMigSampleGet", {instances.ACTIVITY, *instances.SHARES.values()}),
    ],
)
def test_a_refusal_costs_no_other_value_of_a_row(call: str, lost: set[Metric]) -> None:
    bench = simulated("dgx-h100:training+mig", gpus=1)
    for function in (call, f"{call}_v2"):
        bench.machine.driver.fail(function, 3)
    samples = bench.run(8).samples
    told = {instances.INSTANCE_INFO, instances.USED, instances.TOTAL, instances.INSTANCE_PROCESSES}
    for metric in told - lost:
        assert samples.all(metric), metric.name
    assert not any(samples.all(metric) for metric in lost)
