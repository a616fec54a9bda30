"""Machines of 2026: NVLink 5, links to the CPU, module power, places in a rack."""

from typing import Any

import pytest

from agent.model import Metric, Reason
from agent.simulator import driver, fields
from agent.sources import gpu, memory, nvlink, nvlink5, power, system
from tests.support.machines import AgentBench, simulated

FIRST, OTHER = "0", "1"


@pytest.fixture(scope="module")
def tray() -> AgentBench:
    """A tray of GB200 with a faulty link, after links were read twice."""
    bench = simulated("gb200-tray@610:nvlink-errors", gpus=2).run(3)
    bench.clock.advance(60.0)
    return bench.run(3)


def of_gpu(bench: AgentBench, metric: Metric, *labels: str) -> Any:
    found = bench.samples.all(metric).items()
    return next((v for k, v in found if k[0] == FIRST and k[2:] == labels), None)


def reasons(bench: AgentBench, metric: Metric) -> set[Reason]:
    latest = bench.agent.poller.latest
    return {reason for of, _, reason, _ in latest.absences(latest.at) if of is metric}


def test_a_faulty_link_of_the_fifth_generation_recovers_and_others_do_not(tray: AgentBench) -> None:
    recovered = of_gpu(tray, nvlink.ERRORS, "1", "recovery")
    assert recovered == of_gpu(tray, nvlink5.EFFECTIVE_ERRORS, "1") > 100
    assert of_gpu(tray, nvlink.ERRORS, "0", "recovery") == 0
    kinds = {labels[3] for labels in tray.samples.all(nvlink.ERRORS)}
    assert kinds == set(nvlink.NVLINK5_ERRORS)
    assert of_gpu(tray, nvlink5.BIT_ERRORS, "1", "effective") == 1e-15


@pytest.mark.parametrize(("packed", "ratio"), [(0x10F, 1e-15), (0xA08, 1e-7), (0xFF, 0.0)])
def test_a_packed_bit_error_ratio(packed: int, ratio: float) -> None:
    assert nvlink5.ratio(packed) == pytest.approx(ratio)


def test_bytes_come_from_nvlink_5_where_only_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in (138, 139, 140, 141):
        monkeypatch.delitem(fields.FIELDS, field)
    bench = simulated("gb200-tray:nvlink-saturated", gpus=2).run(2)
    key, before = next(iter(bench.samples.all(nvlink.TRANSMITTED).items()))
    bench.run(2)
    rate = (bench.samples.value(nvlink.TRANSMITTED, *key) or 0.0) - before
    assert rate / 2 == pytest.approx(0.92 * 900e9 * 354.4 / 412.5, rel=0.01)
    assert reasons(bench, nvlink.WIRE_TRANSMITTED) == {Reason.UNSUPPORTED}


def test_links_to_the_cpu(tray: AgentBench) -> None:
    assert of_gpu(tray, nvlink5.C2C_LINKS) == 5
    speed = sum(v for k, v in tray.samples.all(nvlink5.C2C_LINK_SPEED).items() if k[0] == FIRST)
    assert speed == pytest.approx(223.56e9)
    assert of_gpu(tray, nvlink5.C2C_ERRORS, "4", "replay") == 0


def test_a_module_draws_what_its_gpus_and_their_cpu_draw() -> None:
    tray = simulated("gb200-tray:idle", gpus=2).run(2)
    gpus = sum(tray.samples.all(power.POWER).values())
    assert of_gpu(tray, power.MODULE_POWER) == pytest.approx(gpus + 135, rel=0.03)
    assert of_gpu(tray, power.MODULE_LIMIT) == 2500


def test_a_tray_knows_its_place_and_a_box_has_none(tray: AgentBench) -> None:
    def places(bench: AgentBench) -> list[tuple[str, ...]]:
        return [labels[2:] for labels in bench.samples.all(gpu.PLATFORM)]

    assert places(tray) == [("1820000000001", "14", "4", "1", n) for n in ("1", "2")]
    assert places(simulated("dgx-b200:idle", gpus=2).run(1)) == [
        ("", "", "", "1", "1"),
        ("", "", "", "1", "2"),
    ]


def test_a_tray_that_starts_with_a_gpu_missing_misses_it() -> None:
    tray = simulated("gb200-tray:idle")
    tray.machine.lose(3)
    tray.run(1)
    assert list(tray.samples.all(system.GPUS).values()) == [3]
    assert list(tray.samples.all(system.GPUS_EXPECTED).values()) == [4]


def test_older_machines_say_why_they_have_none_of_it() -> None:
    hopper = simulated("dgx-h100:idle", gpus=2).run(1)
    assert reasons(hopper, nvlink5.BIT_ERRORS) == {Reason.UNSUPPORTED}
    assert reasons(hopper, nvlink5.C2C_LINKS) == {Reason.MISSING}
    assert reasons(hopper, power.MODULE_POWER) == {Reason.UNSUPPORTED}
    card = simulated("l40s:idle").run(1)
    assert reasons(card, nvlink5.BIT_ERRORS) == {Reason.MISSING}


def test_a_gpu_that_shares_the_hosts_memory_says_so_and_no_other_does() -> None:
    def shown(bench: AgentBench) -> list[str]:
        latest = bench.run(1).agent.poller.latest
        return [why for of, _, _, why in latest.absences(latest.at) if of is memory.USED]

    spark, card = simulated("dgx-spark:training"), simulated("l40s:idle")
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        card.machine.driver.fail(call, driver.NOT_SUPPORTED)  # as in a guest with part of a GPU
    assert shown(spark) == ["the driver shows none: this GPU shares the memory of its host"]
    assert shown(card) == ["nvmlDeviceGetMemoryInfo: Not Supported"]
