"""The NVSwitch fabric: the newest answer that a driver has, and the error of a registration."""

import pytest

from agent.faults.findings import findings
from agent.model import Reason
from agent.sources import fabric
from exporters.messages import finding_text
from tests.support.machines import simulated

H100 = "dgx-h100{}:training"


@pytest.mark.parametrize(
    ("driver", "mask"),
    [("", True), ("@550", True), ("@535", False), ("@525", False)],
    ids=["version 3", "version 2", "version 1", "version 1 of the first"],
)
def test_each_driver_answers_in_its_version(driver: str, mask: bool) -> None:
    bench = simulated(H100.format(driver), gpus=2).run(2)
    assert set(bench.samples.all(fabric.STATE).values()) == {fabric.COMPLETED}
    kinds = {labels[2] for labels in bench.samples.all(fabric.HEALTH)}
    assert kinds == {fabric.REGISTRATION} | (
        {*fabric.MASK_SHIFTS, "incorrect_configuration"} if mask else set()
    )


def test_a_registration_that_completed_with_an_error_is_a_fault() -> None:
    bench = simulated(H100.format("").replace("training", "training+fabric-error"), gpus=2).run(2)
    broken = bench.samples.where(fabric.HEALTH, kind=fabric.REGISTRATION)
    assert sorted(broken.values()) == [0, 1]
    found = [f for f in findings(bench.agent.poller.latest) if f.device == fabric.REGISTRATION]
    assert [f.kind for f in found] == ["fabric_health"]
    assert "its registration completed with an error" in finding_text(found[0])


def test_a_gpu_without_a_fabric_says_so() -> None:
    bench = simulated("dgx-a100:training", gpus=2).run(2)
    absences = bench.agent.poller.latest.absences(bench.clock.monotonic())
    reasons = {one.reason for one in absences if one.metric is fabric.STATE}
    assert reasons == {Reason.UNSUPPORTED}
