"""Devices that are gone are forgotten, kept data hold no reference to others, and a device that is
back is detected again."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from agent import simulator as simulation
from agent.config.settings import Configuration, Settings
from agent.faults.findings import Search
from agent.hardware.device import MOST_LINKS
from agent.hardware.files import RealFiles
from agent.limits.paths import KEPT_S, LIMIT, LIMIT_INFO, RATIO, REFRESH, PathAccounts
from agent.limits.resolution import LimitConfig, LimitsConfig, PathKey
from agent.model import Absence, Reading, ReadKey, Reason, Sample
from agent.series import SampleStore
from agent.sources import activity, disk, network, nvlink, system
from agent.sources.system import FILE, ExpectedGpus
from agent.sources.table import SourcesConfig
from agent.specs.sheets import Limit, MachineSpecs, SpecConfig
from agent.status.words import finding_text
from tests.support.fake_host import put
from tests.support.frozen_clock import FrozenClock
from tests.support.hotplug import Hotplug
from tests.support.machine_controls import cut_link, lose
from tests.support.machines import AgentBench, simulated, watched

NIC = PathKey("network", "eth7", "", "", "transmit")
SENT = ReadKey("network", "counters")


def sent(at: float, count: float) -> Reading:
    return Reading(SENT, at, 1.0, (Sample(network.TRANSMITTED, ("eth7",), count),))


def test_a_nic_that_is_gone_keeps_its_seconds_for_an_hour() -> None:
    paths = PathAccounts(Configuration(), {NIC: Limit(1e9, "configured", "")})
    samples = SampleStore()
    for at in (0.0, 1.0):
        samples.take(at, [sent(at, at * 1e9)])
        paths.observe(samples)
    expired = paths.paths[NIC].until
    paths.forget(expired + KEPT_S + 1)
    assert paths.paths[NIC].saturated == 1.0, "it has a limit: it is there, if silent"
    paths.limits = {}
    paths.forget(expired + KEPT_S)
    assert NIC in paths.paths
    paths.forget(expired + KEPT_S + 1)
    assert paths.paths == {}


def test_refusals_of_disks_that_are_gone_are_forgotten() -> None:
    samples = SampleStore()
    refused = Absence(disk.BUSY, ("sdx1",), Reason.UNSUPPORTED, "counts none")
    samples.take(0.0, [Reading(ReadKey("disk", "counters"), 0.0, 1.0, (), (refused,))])
    samples.take(3.0, [])
    assert samples.absence(disk.BUSY, "sdx1") is refused
    samples.take(3.1, [])
    assert samples.absence(disk.BUSY, "sdx1") is None


def test_the_far_end_of_a_link_is_asked_when_it_comes_up() -> None:
    """A link that is down does not report it; the next look for its own sake is an hour away."""
    bench = simulated("dgx-station-v100:idle")
    cut_link(bench.machine, 0, 2)
    bench.run(5)
    assert far_ends(bench)["0", "2"] == "unknown"
    for gpu in bench.machine.gpus:
        for link in gpu.links:
            link.cut = False
    bench.skip(60).run(2).skip(60).run(3)
    assert set(far_ends(bench).values()) == {"gpu"}


def far_ends(bench: AgentBench) -> dict[tuple[str, str], str]:
    """Kind of the far end by GPU and link."""
    found = bench.samples.labelled(nvlink.LINK_INFO)
    return {(labels["gpu"], labels["link"]): labels["remote"] for labels in found}


MOMENTS = {
    "nvmlDeviceGetNvLinkState": nvlink.LINKS,
    "nvmlGpmQueryDeviceSupport": activity.SM_ACTIVE,
    "nvmlGpmSampleGet": activity.SM_ACTIVE,
}


@pytest.mark.parametrize("function", MOMENTS)
def test_a_gpu_that_was_met_in_a_bad_moment_is_met_again(function: str) -> None:
    """A GPU first queried at a bad moment is queried again, though its next probe is an hour
    away."""
    bench, metric = simulated("dgx-h100:training", gpus=2), MOMENTS[function]
    bench.machine.driver.fail(function, 999)
    bench.run(5)
    assert bench.samples.all(metric) == {}
    assert Reason.MISSING not in {one.reason for one in bench.absent(nvlink.LINKS)}
    bench.machine.driver.fail(function, None)
    bench.skip(60).run(13)
    assert len(bench.samples.all(metric)) == 2


def test_fields_that_a_gpu_refused_for_a_moment_are_asked_at_the_next_turn() -> None:
    """They decide which error counters are read."""
    bench = simulated("gb200-tray:idle", gpus=1)
    bench.machine.driver.fail("nvmlDeviceGetFieldValues", 999)
    bench.run(2)
    assert not bench.samples.all(nvlink.ERRORS)
    assert {one.reason for one in bench.absent(nvlink.ERRORS)} == {Reason.FAILED}
    bench.machine.driver.fail("nvmlDeviceGetFieldValues", None)
    bench.skip(60).run(3)
    assert len(bench.samples.all(nvlink.ERRORS)) == 180


@pytest.mark.parametrize("code", [4, 10, 999])
@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues"])
def test_what_an_odd_moment_decided_does_not_outlast_it(function: str, code: int) -> None:
    """An old GPU, which has neither links nor counters of throttling, was asked at that moment."""
    usual, bench = simulated("k40:training").run(5), simulated("k40:training")
    bench.machine.driver.fail(function, code)
    bench.run(5)
    bench.machine.driver.fail(function, None)
    for one in (usual, bench):
        one.skip(60).run(12)
    assert shown(bench) == shown(usual)
    assert not any(gpu.state.doubtful for gpu in bench.agent.gpus.watched.answering())


def shown(bench: AgentBench) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """Series, and absences with their reasons."""
    latest = bench.latest
    series = {(m.name, *labels) for m, labels, _ in latest.samples(latest.at)}
    return series, {(a.metric.name, *a.labels, a.reason) for a in latest.absences(latest.at)}


def test_links_are_asked_once_for_all_who_read_them() -> None:
    bench = simulated("dgx-h100:idle", gpus=1)
    library = bench.machine.nvml
    asked, answer = list[int](), library.nvmlDeviceGetNvLinkState

    def state(handle: Any, link: int) -> int:
        asked.append(link)
        return int(answer(handle, link))

    library.nvmlDeviceGetNvLinkState = state
    bench.run(1)
    assert asked == [*range(MOST_LINKS), *range(18)]  # which there are; their states


KEY = ("network", "eth1", "", "", "receive")
CONFIG = Settings(LimitsConfig((LimitConfig("network", "eth1", "receive", 2e7),)))
FINDING = "[[limit]] names network eth1 receive, which does not exist here"


def machine(config: Settings = CONFIG) -> tuple[AgentBench, Hotplug]:
    clock = FrozenClock()
    built = simulation.SimulatedSystem(simulation.parse("k40:idle"), clock)
    plugs = Hotplug(built.host)
    return watched(built, clock, config, plugs.wrapped()), plugs


def said(bench: AgentBench) -> list[str]:
    found = map(finding_text, Search().findings(bench.latest))
    return [text for text in found if "[[limit]]" in text]


def test_a_limit_waits_for_its_device() -> None:
    bench, plugs = machine()
    bench.run(3 * REFRESH)
    assert [(a.labels, a.reason, a.detail) for a in bench.absent(LIMIT)] == [
        (KEY, Reason.MISSING, "the configuration limits a device that is not here")
    ]
    assert said(bench) == [FINDING]
    plugs.plug("eth")
    bench.run(REFRESH + 12)
    assert bench.samples.value(LIMIT, *KEY) == 2e7
    assert bench.samples.where(LIMIT_INFO, device="eth1", origin="configured")
    assert bench.samples.value(RATIO, *KEY) is not None
    assert said(bench) == []
    plugs.unplug("eth1")
    bench.run(2 * REFRESH)
    assert said(bench) == [FINDING]
    off, _ = machine(CONFIG.including(SourcesConfig(disable=("network",))))
    assert [a.reason for a in off.run(30).absent(LIMIT)] == [Reason.NOT_CONFIGURED]
    assert said(off) == []


def test_nothing_is_shown_of_a_nic_that_is_gone() -> None:
    bench, plugs = machine()
    plugs.plug("eth")
    bench.run(5).skip(60).run(5)
    assert "eth1" in bench.scrape()
    plugs.unplug("eth1")
    bench.run(5).skip(60).run(5 + REFRESH)
    shown = [line for line in bench.scrape().splitlines() if "eth1" in line]
    assert shown == []
    assert bench.samples.value(network.RECEIVED, "eth1") is None


def pci(root: Path, address: str, kind: str = "0x030200", driver: str = "nvidia") -> None:
    folder = f"sys/bus/pci/devices/{address}"
    put(root, f"{folder}/vendor", "0x10de\n")
    put(root, f"{folder}/class", f"{kind}\n")
    if driver:
        (root / folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def expected(root: Path, folder: Path | None = None, *, keeps: bool = True) -> ExpectedGpus:
    return ExpectedGpus(RealFiles(root), folder, keeps=keeps)


def test_the_most_of_three_counts_is_expected(tmp_path: Path) -> None:
    assert expected(tmp_path).most(3, 0.0) == 3
    for number in range(4):
        put(tmp_path, f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information", "")
    assert expected(tmp_path).most(3, 0.0) == 4
    for number in range(4):
        pci(tmp_path, f"0000:0{number}:00.0")
    pci(tmp_path, "0000:05:00.0", driver="")  # it failed, and no driver took it
    pci(tmp_path, "0000:06:00.0", driver="vfio-pci")  # a virtual machine has it
    pci(tmp_path, "0000:07:00.0", kind="0x068000")  # an NVSwitch
    pci(tmp_path, "0000:08:00.0", kind="0x0c0330")
    assert expected(tmp_path).most(3, 0.0) == 5


def test_it_is_kept_across_restarts_until_the_file_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    expected(tmp_path, state).most(4, 0.0)
    deadline = time.monotonic() + 60
    while not (state / FILE).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert expected(tmp_path, state).most(3, 0.0) == 4
    (state / FILE).unlink()
    looking = expected(tmp_path, state, keeps=False)
    assert looking.most(3, 0.0) == 3
    assert not (state / FILE).exists()


@pytest.mark.parametrize("text", ["", "many", "-3", "4.5", "\xff", "99999999999999"])
def test_a_file_that_holds_no_number_is_worth_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    assert expected(tmp_path, tmp_path, keeps=False).most(2, 0.0) == 2


def test_a_gpu_that_fails_at_start_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MachineSpecs, "system_of", lambda *_: None)  # a box without a sheet
    bench = simulated("dgx-station-v100:training")
    lose(bench.machine, 2)
    bench.run(2)
    assert bench.samples.value(system.GPUS) == 3
    assert bench.samples.value(system.GPUS_EXPECTED) == 4


def test_a_person_has_the_last_word() -> None:
    bench = simulated("dgx-station-v100:training", Settings(SpecConfig(gpus=3))).run(2)
    assert bench.samples.value(system.GPUS_EXPECTED) == 3


def test_a_fifo_in_its_place_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / FILE)
    assert expected(tmp_path, tmp_path / "state").most(3, 0.0) == 3
