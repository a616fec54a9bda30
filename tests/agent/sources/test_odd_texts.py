"""Texts that are no UTF-8, and faults while connecting: each costs itself alone."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from agent.catalogue import METRICS
from agent.cli.check import values
from agent.model import Reason
from agent.sources import activity, ecc, gpu, instances, memory, power, process, system
from tests.support.machines import AgentBench, simulated
from tests.support.statuses import status_of


def answering(name: str, answer: Callable[..., Any]) -> AgentBench:
    """A machine of two GPUs on which one function of the library does this."""
    bench = simulated("dgx-h100:training", gpus=2)
    setattr(bench.machine.nvml, name, answer)
    return bench.run(3)


def no_utf8(*_: Any) -> str:
    return b"NVIDIA \xff\xfe".decode()


@pytest.mark.parametrize("call", ["Name", "Serial", "VbiosVersion"])
def test_a_text_of_a_gpu_costs_itself_alone(call: str) -> None:
    bench = answering(f"nvmlDeviceGet{call}", no_utf8)
    infos = bench.samples.labelled(gpu.INFO)
    label = {"Name": "model", "Serial": "serial", "VbiosVersion": "vbios_version"}[call]
    assert [info[label] for info in infos] == ["", ""]
    assert len(bench.samples.all(power.POWER)) == 2


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"])
def test_a_version_costs_no_gpu_and_none_of_its_fields(call: str) -> None:
    bench = answering(call, no_utf8)
    whole = simulated("dgx-h100:training", gpus=2).run(3)
    assert bench.samples.value(system.GPUS) == 2
    action = METRICS["dgx_gpu_recovery_action"]
    actions, expected = (one.samples.all(action) for one in (bench, whole))
    assert len(actions) == len(expected)


def test_only_the_uuid_may_cost_a_gpu() -> None:
    bench = answering("nvmlDeviceGetUUID", no_utf8)
    assert bench.samples.value(system.GPUS) == 0


def test_a_fault_while_connecting_is_reported_as_what_it_is() -> None:
    def broken() -> int:
        raise ZeroDivisionError("the bindings")

    bench = answering("nvmlDeviceGetCount", broken)
    (absence,) = bench.absent(system.GPUS)
    assert absence.reason is Reason.FAILED
    assert "ZeroDivisionError: the bindings" in absence.detail
    status = status_of(bench)
    assert "does not answer" not in status.machine.text
    assert values(status, {})["status"] == 1


# ---- answers of another shape than NVML declares, from the start

ADDRESS = pynvml.nvmlPciInfo_t()
ADDRESS.busId = b"\xff\xfe:00:00.0"
MISSHAPEN = {
    "a version with a digit that is none": ("nvmlSystemGetDriverVersion", "\u00b280.1"),
    "an address that is no text": ("nvmlDeviceGetPciInfo", ADDRESS),
    "no MIG mode": ("nvmlDeviceGetMigMode", None),
    "an empty MIG mode": ("nvmlDeviceGetMigMode", []),
    "no fields": ("nvmlDeviceGetFieldValues", None),
    "empty fields": ("nvmlDeviceGetFieldValues", []),
    "no support of GPM": ("nvmlGpmQueryDeviceSupport", None),
    "no rows": ("nvmlDeviceGetRemappedRows", None),
    "two of four rows": ("nvmlDeviceGetRemappedRows", [0, 0]),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_an_answer_of_another_shape_costs_itself_alone(case: str) -> None:
    call, answer = MISSHAPEN[case]
    bench = answering(call, lambda *_: answer)
    assert bench.samples.value(system.GPUS) == 2
    assert len(bench.samples.all(power.POWER)) == 2
    assert len(bench.samples.all(ecc.ERRORS)) == 8
    assert [r.failure for r in bench.latest.readings.values() if r.failure] == []


@pytest.mark.parametrize("uuid", ["", "GPU-\0", 'GPU-"\n', None, b"GPU-1", "G" * 10_000])
def test_a_uuid_that_is_none_costs_its_gpu(uuid: object) -> None:
    bench = simulated("dgx-h100:training", gpus=2)
    right = bench.machine.nvml.nvmlDeviceGetUUID
    calls = iter([uuid])
    bench.machine.nvml.nvmlDeviceGetUUID = lambda gpu: next(calls, right(gpu))
    bench.run(1)
    assert bench.samples.value(system.GPUS) == 1


def test_two_gpus_of_one_uuid_are_one_and_stay_it() -> None:
    bench = simulated("dgx-h100:training", gpus=2)
    bench.machine.nvml.nvmlDeviceGetUUID = lambda _: "GPU-1"
    before = 0.0
    bench.run(3)
    for _ in range(25):
        bench.run(1)
        (seconds,) = bench.samples.all(activity.ACTIVE_SECONDS).values()
        assert seconds >= before
        before = seconds
    assert bench.samples.value(system.GPUS) == 1


@pytest.mark.parametrize("field", ["used", "free"])
def test_no_more_memory_is_used_or_free_than_there_is(field: str) -> None:
    odd = SimpleNamespace(total=80 << 30, used=0, free=0, reserved=0)
    setattr(odd, field, 240 << 30)
    bench = answering("nvmlDeviceGetMemoryInfo", lambda *_, **__: odd)
    assert bench.samples.all(memory.USED) == {}
    assert {one.reason for one in bench.absent(memory.USED)} == {Reason.IMPLAUSIBLE}


@pytest.mark.parametrize(
    ("call", "answer", "instances_left"),
    [
        ("nvmlDeviceGetName", no_utf8, 3),
        ("nvmlDeviceGetName", lambda *_: None, 3),
        *(
            ("nvmlDeviceGetMaxMigDeviceCount", lambda *_, odd=odd: odd, 3)
            for odd in (None, -1, "x")
        ),
        *(
            ("nvmlDeviceGetGpuInstanceId", lambda *_, odd=odd: odd, 0)
            for odd in (None, -1, 1 << 32)
        ),
    ],
)
def test_an_odd_answer_about_instances_costs_itself_alone(
    call: str, answer: Callable[..., Any], instances_left: int
) -> None:
    bench = simulated("dgx-h100:mig", gpus=2).run(2)
    setattr(bench.machine.nvml, call, answer)
    bench.skip(60).run(2)
    assert len(bench.samples.all(instances.INSTANCE_INFO)) == instances_left
    assert [r.failure for r in bench.latest.readings.values() if r.failure] == []


def test_a_gpu_has_no_hundred_thousand_processes() -> None:
    many = [SimpleNamespace(pid=n, usedGpuMemory=1) for n in range(1, 100_000)]
    bench = answering("nvmlDeviceGetComputeRunningProcesses", lambda *_: many)
    assert {one.reason for one in bench.absent(process.PROCESSES)} == {Reason.IMPLAUSIBLE}
