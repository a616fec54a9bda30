"""Links of a GPU: the NVSwitch fabric, NVLink 5, PCIe switches; and what else
machines of 2026 have."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.faults.findings import Search
from agent.model import Metric, Reason
from agent.simulator import driver, fields
from agent.sources import clocks, fabric, memory, nvlink, pcie, power, system
from agent.status.words import finding_text
from tests.support.machine_controls import change_answer
from tests.support.machines import AgentBench, simulated

CASES = tomllib.loads(Path(__file__).with_name("links.toml").read_text("utf-8"))

H100 = "dgx-h100{}:training"


@pytest.mark.parametrize(
    ("driver", "mask"),
    [("", True), ("@550", True), ("@535", False), ("@525", False)],
    ids=["version 3", "version 2", "version 1", "version 1 of the first"],
)
def test_each_driver_answers_in_its_version(driver: str, mask: bool) -> None:
    bench = simulated(H100.format(driver), gpus=2).run(2)
    assert set(bench.samples.all(fabric.FABRIC_STATE).values()) == {fabric.COMPLETED}
    kinds = {labels[2] for labels in bench.samples.all(fabric.HEALTH)}
    assert kinds == {fabric.REGISTRATION} | ({*fabric.MASK_PARTS} - UNASSIGNED if mask else set())


UNASSIGNED = {"no_partition", "manager_disconnected"}


@pytest.mark.parametrize(
    ("mask", "summary", "kinds"),
    [
        (0x2AA, 2, ["incorrect_configuration"]),
        (0x1AA, 2, [fabric.UNHEALTHY]),
        (0x1AA, 3, [fabric.UNHEALTHY]),
        (0x1AA, 9, [fabric.UNHEALTHY]),
        (0x1A9, 2, ["degraded_bandwidth"]),
        (0x1AB, 0, ["degraded_bandwidth"]),
        (0x2000 | 0x1AA, 0, ["no_partition"]),
        (0x8000 | 0x1AA, 2, ["manager_disconnected"]),
        (0x5000 | 0x1AA, 1, []),
        (0x10000 | 0x1AA, 0, []),
        (0, 0, []),
    ],
)
def test_each_bit_and_the_summary_count_once(mask: int, summary: int, kinds: list[str]) -> None:
    assert [kind for kind, holds in fabric.health(mask, summary).items() if holds] == kinds


def test_an_odd_mask_costs_no_state() -> None:
    bench = simulated(H100.format(""), gpus=2)

    def odd(_: object, __: object, info: Any) -> None:
        info._obj.healthMask = 0xFFFFFFFF

    change_answer(bench.machine.nvml, "nvmlDeviceGetGpuFabricInfoV", odd)
    bench.run(2)
    assert set(bench.samples.all(fabric.FABRIC_STATE).values()) == {fabric.COMPLETED}
    assert not bench.samples.all(fabric.HEALTH)


@pytest.mark.parametrize(("state", "up"), [(0, 0), (1, 1), (2, 1), (3, 0)])
def test_a_link_whose_traffic_is_disabled_is_not_up(state: int, up: int) -> None:
    bench = simulated(H100.format(""), gpus=1)
    bench.machine.nvml.nvmlDeviceGetNvLinkState = lambda *_: state
    assert set(bench.run(2).samples.all(nvlink.LINK_UP).values()) == {up}


def test_a_reason_for_low_clocks_without_a_name_costs_no_other_and_is_counted() -> None:
    bench = simulated(H100.format(""), gpus=1)
    bench.machine.nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda *_: 0x20004
    bench.run(4)
    (mask,) = bench.samples.all(clocks.REASONS).values()
    assert mask == 0x20004
    (unknown,) = bench.samples.where(clocks.THROTTLE, reason="unknown").values()
    assert unknown > 0


def test_links_that_are_refused_later_cost_no_other_read() -> None:
    """The interval of the bytes asked for the links, beyond the bounds of a read."""
    bench = simulated(H100.format(""), gpus=1).run(5)
    assert bench.samples.all(nvlink.TRANSMITTED)
    bench.machine.driver.fail("nvmlDeviceGetNvLinkState", driver.NOT_SUPPORTED)
    for gpu in bench.agent.gpus.watched.all_gpus():
        gpu.device.ask_again()  # as after a look at the driver's GPUs
    assert bench.run(75).samples.all(power.POWER)


def test_an_action_without_a_name_is_a_fault() -> None:
    bench = simulated(H100.format(""), gpus=1)

    def odd(found: Any, *_: Any) -> Any:
        for one in found:
            if one.fieldId == 230:
                one.nvmlReturn, one.value.uiVal, one.valueType = 0, 77, 1
        return found

    change_answer(bench.machine.nvml, "nvmlDeviceGetFieldValues", odd)
    found = [f for f in Search().findings(bench.run(2).latest) if f.kind == "recovery_needed"]
    assert "77" in finding_text(found[0])


def test_a_registration_that_completed_with_an_error_is_a_fault() -> None:
    bench = simulated(H100.format("").replace("training", "training+fabric-error"), gpus=2).run(2)
    broken = bench.samples.where(fabric.HEALTH, kind=fabric.REGISTRATION)
    assert sorted(broken.values()) == [0, 1]
    found = [f for f in Search().findings(bench.latest) if f.device == fabric.REGISTRATION]
    assert [f.kind for f in found] == ["fabric_health"]
    assert [f.gpu and f.gpu.index for f in found] == [0]
    said = "the NVSwitch fabric reports a fault of this GPU: registration error"
    assert finding_text(found[0]) == said


def test_a_gpu_without_a_fabric_says_so() -> None:
    bench = simulated("dgx-a100:training", gpus=2).run(2)
    assert {one.reason for one in bench.absent(fabric.FABRIC_STATE)} == {Reason.UNSUPPORTED}


ROOT = "../../../devices/pci0000:00/0000:00:02.0"


@pytest.mark.parametrize(("path", "ports"), CASES["ports"])
def test_upstream_ports_are_found_in_the_tree(path: str, ports: list[str]) -> None:
    assert pcie.upstream_ports(path) == ports


def test_two_gpus_of_a_dgx_1_share_each_uplink() -> None:
    found = simulated("dgx-1-v100:idle").run(3).samples.all(pcie.UPLINK)
    below: dict[str, list[str]] = {}
    for (index, _, bridge), limit in found.items():
        below.setdefault(bridge, []).append(index)
        assert limit == pytest.approx(8e9 * 128 / 130 * 16 / 8)
    assert sorted(map(sorted, below.values())) == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_without_a_switch_nothing_is_reported() -> None:
    assert not simulated("dgx-station-v100:idle").run(3).samples.all(pcie.UPLINK)


@pytest.fixture(scope="module")
def tray() -> AgentBench:
    """A tray of GB200 with a faulty link, after links were read twice."""
    bench = simulated("gb200-tray@610:nvlink-errors", gpus=2).run(3)
    bench.clock.advance(60.0)
    return bench.run(3)


def of_gpu(bench: AgentBench, metric: Metric, *labels: str) -> Any:
    found = bench.samples.all(metric).items()
    return next((v for k, v in found if k[0] == "0" and k[2:] == labels), None)


def test_a_faulty_link_of_the_fifth_generation_recovers_and_others_do_not(tray: AgentBench) -> None:
    assert of_gpu(tray, nvlink.ERRORS, "1", "recovery") > 100
    assert of_gpu(tray, nvlink.ERRORS, "0", "recovery") == 0
    kinds = {labels[3] for labels in tray.samples.all(nvlink.ERRORS)}
    assert kinds == set(nvlink.KINDS["nvlink5"])


def test_bytes_come_from_nvlink_5_where_only_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in (138, 139, 140, 141):
        monkeypatch.delitem(fields.FIELDS, field)
    bench = simulated("gb200-tray:nvlink-saturated", gpus=2).run(2)
    key, before = next(iter(bench.samples.all(nvlink.TRANSMITTED).items()))
    bench.run(2)
    rate = (bench.samples.value(nvlink.TRANSMITTED, *key) or 0.0) - before
    assert rate / 2 == pytest.approx(0.92 * 900e9 * 354.4 / 412.5, rel=0.01)
    assert {one.reason for one in bench.absent(nvlink.WIRE_TRANSMITTED)} == {Reason.UNSUPPORTED}


def test_a_tray_that_starts_with_a_gpu_missing_misses_it() -> None:
    tray = simulated("gb200-tray:idle")
    tray.machine.lose(3)
    tray.run(1)
    assert list(tray.samples.all(system.GPUS).values()) == [3]
    assert list(tray.samples.all(system.GPUS_EXPECTED).values()) == [4]


def test_a_gpu_that_shares_the_hosts_memory_says_so_and_no_other_does() -> None:
    def shown(bench: AgentBench) -> list[str]:
        return [one.detail for one in bench.run(1).absent(memory.USED)]

    spark, card = simulated("dgx-spark:training"), simulated("l40s:idle")
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        card.machine.driver.fail(call, driver.NOT_SUPPORTED)  # as in a guest with part of a GPU
    assert shown(spark) == ["the driver shows none: this GPU shares the memory of its host"]
    assert shown(card) == ["nvmlDeviceGetMemoryInfo: Not Supported"]
