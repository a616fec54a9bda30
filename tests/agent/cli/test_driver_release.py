"""A driver that is given back on demand, and taken again."""

import logging
import os
import time
from pathlib import Path

import pytest

from agent.cli import driver_release
from agent.cli.driver_release import IN_FORCE, RELEASE_SECONDS, DriverConfig, asked_by, device_nodes
from agent.cli.run import condition_of
from agent.config.settings import Settings
from agent.model import Reason, Snapshot
from agent.sources import power, system
from agent.sources.agent_health import SOURCE_UP
from tests.support.frozen_clock import FrozenClock
from tests.support.machine_controls import upgrade_driver
from tests.support.machines import AgentBench, simulated
from tests.support.statuses import shown

BUSY = "dgx_gpu_state_seconds_total"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "release"


@pytest.fixture
def bench(file: Path) -> AgentBench:
    config = Settings(DriverConfig(release_file=str(file)))
    return simulated("dgx-h100:training", config, gpus=2).run(10)


def reason(bench: AgentBench) -> Reason | None:
    absence = bench.samples.absence(system.GPUS)
    return absence.reason if absence else None


def test_all_that_is_held_goes_back_and_the_driver_can_be_replaced(
    bench: AgentBench, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connections, sets, samples = bench.machine.nvml.held()
    assert (connections, sets) == (1, 1)
    assert samples >= 4  # two of each GPU
    with pytest.raises(AssertionError, match="in use"):
        upgrade_driver(bench.machine, "590.48.01")
    file.touch()
    with caplog.at_level(logging.INFO):
        bench.run(30)
    assert bench.machine.nvml.held() == (0, 0, 0)
    assert [r.message for r in caplog.records if "driver_released" in r.message] == [
        f'event=driver_released why="the driver is released by {file}"'
    ]
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
    upgrade_driver(bench.machine, "590.48.01")
    file.unlink()
    bench.run(3)
    assert bench.agent.gpus.inventory.driver_version == "590.48.01"
    assert bench.machine.nvml.held()[:2] == (1, 1)


def test_meanwhile_gpus_are_absent_with_a_reason_and_the_host_is_not(
    bench: AgentBench, file: Path
) -> None:
    before = bench.samples.all(power.POWER)
    file.touch()
    bench.run(5)
    assert before
    assert not bench.samples.all(power.POWER)
    assert reason(bench) is Reason.RELEASED
    assert bench.samples.all(SOURCE_UP)[("nvml",)] == 1.0  # no alert: nothing is wrong
    assert "dgx_cpu_busy_ratio" in bench.scrape()
    file.unlink()
    bench.run(3)
    assert bench.samples.all(power.POWER).keys() == before.keys()
    assert reason(bench) is None


def test_the_page_and_the_service_manager_say_so_and_are_not_alarmed(file: Path) -> None:
    machine = shown("dgx-h100:training", DriverConfig(release_file=str(file))).run(5)
    file.touch()
    machine.run(8)
    sentence = f"o GPU is monitored: the driver is released by {file}"
    status = machine.status
    assert status.headline[0].text == f"N{sentence}"
    assert status.level is None
    assert [finding.level for finding in status.findings] == ["info"]
    assert condition_of(machine.bench.agent) == f"N{sentence}."


def test_counters_go_on_after_it(bench: AgentBench, file: Path) -> None:
    def seconds() -> float:
        return sum(float(s.split()[-1]) for s in bench.scrape().splitlines() if s.startswith(BUSY))

    before = seconds()
    assert before > 0
    file.touch()
    bench.run(10)
    file.unlink()
    bench.run(10)
    assert seconds() >= before + 10


def test_a_file_that_is_there_at_the_start_keeps_hands_off_the_driver(file: Path) -> None:
    file.touch()
    config = Settings(DriverConfig(release_file=str(file)))
    bench = simulated("dgx-h100:training", config, gpus=2).run(5)
    assert bench.machine.nvml.held() == (0, 0, 0)
    assert not bench.agent.poller.waiting_for()
    assert reason(bench) is Reason.RELEASED


def test_the_file_counts_for_an_hour_after_the_last_touch(file: Path) -> None:
    config = DriverConfig(release_file=str(file))
    assert asked_by(config) == ""
    file.touch()
    assert asked_by(config) == f"the driver is released by {file}"
    now = time.time()
    os.utime(file, (now, now - IN_FORCE - 1))
    assert asked_by(config) == ""
    os.utime(file, (now, now + IN_FORCE))  # touch -d "+1 hour"
    assert asked_by(config)
    assert asked_by(DriverConfig(release_file="")) == ""
    assert asked_by(DriverConfig(release_file="\0")) == ""


def test_a_node_that_is_open_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "nvidia0"
    node.write_bytes(b"x" * 4096)
    monkeypatch.setattr("agent.cli.driver_release.NVIDIA_NODES", str(tmp_path))
    assert device_nodes() == set()
    with node.open("rb"):
        assert device_nodes() == {str(node)}
    assert device_nodes() == set()


class Process:
    """State of a process: the files it holds, and whether it was started again."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.asked, self.version, self.restarts = "", "580", 0
        self.held: set[str] = set()
        self.release = driver_release.DriverRelease(
            lambda: self.asked, self.clock, self.restart, lambda: self.held, lambda: self.version
        )

    def restart(self) -> None:
        self.restarts += 1

    def run(self, seconds: float) -> int:
        for _ in range(round(seconds)):
            self.release(Snapshot(1, 0.0, 0.0))
            self.clock.advance(1.0)
        return self.restarts


@pytest.mark.parametrize("given_back", [False, True])
def test_what_is_not_given_back_in_time_goes_with_the_process(
    given_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process()
    process.held = {"/dev/nvidiactl"}
    assert process.run(100) == 0
    process.asked = "a file"
    assert process.run(3 if given_back else RELEASE_SECONDS) == 0
    process.held = set() if given_back else process.held
    assert process.run(60) == (not given_back)
    assert ("/dev/nvidiactl still open" in caplog.text) == (not given_back)
    process.asked = ""
    assert process.run(10) == (not given_back)


def test_a_driver_of_another_version_needs_another_process() -> None:
    process = Process()
    process.asked = "a file"
    process.run(20)
    process.version = ""  # unloaded
    process.run(20)
    process.version = "590"
    assert process.run(20) == 0
    process.asked = ""
    assert process.run(10) == 1
