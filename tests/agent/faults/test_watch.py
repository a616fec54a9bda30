"""Faults over time: since when, the state of the alert, the fault that hides it."""

import pytest

from agent.config.settings import Settings
from agent.faults.findings import USUAL, by_kind
from agent.faults.model import Finding
from agent.faults.thresholds import AlertThresholds
from agent.faults.watch import ActiveFault, AlertState
from agent.model import GpuKey, Severity
from agent.status.words import finding_text
from tests.support.machines import AgentBench, simulated


def active(bench: AgentBench) -> dict[str, ActiveFault]:
    bench.agent.look_for_faults()
    return {one.id.partition(":")[0]: one for one in bench.agent.faults.active}


def test_an_alert_holds_and_then_would_fire() -> None:
    bench = simulated("k40:training").run(5).skip(60).run(6)
    assert active(bench) == {}
    bench = simulated("dgx-a100:row-remap", gpus=1).run(120)
    fault = active(bench)["remap_failure"]
    assert fault.alert is AlertState.WOULD_FIRE
    assert fault.finding.fault.alert == "DgxGpuRowRemapFailure"


def test_the_configured_thresholds_apply_to_texts_and_holds() -> None:
    own = Settings(AlertThresholds(held_share=0.5, held_window="2m", silent_for="5m"))
    held = active(simulated("k40:held", own).run(200))["held"]
    assert finding_text(held.finding).endswith("of the last 2 min (limit 50%)")
    assert active(simulated("k40:driver-hang", own).run(60))["values_absent"].hold == 330.0


def test_doubt_in_results_comes_before_heat() -> None:
    bench = simulated("dgx-h100:gpu-hot+double-bit", gpus=2).run(30)
    ids = list(active(bench))
    assert ids, "nothing was found"
    assert "too_hot" in ids
    errors = [ids.index(one) for one in ids if one in ("xid", "ecc_uncorrected")]
    assert ids.index("too_hot") > min(errors)
    assert all(one.finding.severity is Severity.CRITICAL for one in bench.agent.faults.active[:1])


@pytest.mark.parametrize(
    ("kind", "gpu", "device", "names"),
    [
        ("nvlink_saturated", GpuKey(3, "GPU-3"), "gpu3", ["nvlink transmit", "nvlink receive"]),
        ("port_down", None, "mlx5_0", ["1", "2"]),
        ("array_member_failed", None, "md0", ["sda1", "sdb1"]),
        ("job_hung", GpuKey(3, "GPU-3"), "", ["4711", "4712"]),
        ("switch_error", None, "switch0", ["12028", "20034"]),
        ("values_absent", None, "", ["lost", "denied"]),
    ],
)
def test_two_instances_of_a_fault_at_one_place_have_ids_of_their_own(
    kind: str, gpu: GpuKey | None, device: str, names: list[str]
) -> None:
    fault = by_kind(USUAL)[kind]
    found = [Finding(fault, Severity.WARNING, gpu, device, names=tuple(n.split())) for n in names]
    assert len({one.id for one in found}) == len(names)


def test_what_may_change_of_a_fault_is_not_in_its_id() -> None:
    reasons = ("hardware_thermal",), ("hardware_thermal", "power_brake")
    fault, gpu = by_kind(USUAL)["clocks_held_down"], GpuKey(3, "GPU-3")
    found = [Finding(fault, Severity.WARNING, gpu, names=names) for names in reasons]
    assert len({one.id for one in found}) == 1


def test_two_looks_at_one_snapshot_are_equal() -> None:
    bench = simulated("dgx-h100:xid-79", gpus=2).run(40)
    faults = bench.agent.faults
    faults.observe(bench.latest)
    before = faults.active, faults.events
    faults.observe(bench.latest)
    assert (faults.active, faults.events) == before


@pytest.mark.parametrize(("read", "looks"), [(False, 4), (True, 12)])
def test_a_look_comes_each_15_seconds_and_each_5_for_a_reader(*, read: bool, looks: int) -> None:
    bench = simulated("k40:idle").run(10)
    looked = {bench.agent.faults.looked}
    for _ in range(60):
        bench.run(1)
        if read:
            bench.agent.look_for_faults()
        looked.add(bench.agent.faults.looked)
    assert len(looked) - 1 == looks


def test_a_tick_without_all_first_readings_is_not_looked_at() -> None:
    bench = simulated("k40:idle")
    while bench.run(1).agent.poller.waiting_for():
        assert active(bench) == {}
    assert bench.agent.faults.looked is None
    active(bench.run(1))
    assert bench.agent.faults.looked == bench.agent.poller.samples.now
