"""From the condition of the hardware to the message: every scenario, all parts real."""

import re
import time
from collections.abc import Iterator

import pytest

from agent.simulator import SCENARIOS as NAMES
from tests.stack.expected import SCENARIOS
from tests.stack.scenario_run import DOWN, KILLED, WATCHDOG, ScenarioRun, played
from tests.support.nightly import shortly

pytestmark = pytest.mark.stack

SHORT = ("starved-network", "hang", "gpu-lost", "driver-hang")
"""Each way from a condition to a message once, on small machines: two cores play them all. What
every scenario raises is proven without daemons as well, in tests/alerts/test_scenarios.py."""


@pytest.fixture(scope="module")
def scenario_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScenarioRun]:
    """All of the table at once, or those of the short form."""
    names = SCENARIOS if request.config.getoption("--nightly") else SHORT
    chosen = {name: SCENARIOS[name] for name in names}
    with played(tmp_path_factory.mktemp("play"), chosen) as done:
        yield done


def test_every_scenario_is_played() -> None:
    assert set(SCENARIOS) == set(NAMES) - {"tour"}


@pytest.mark.parametrize("name", shortly(SCENARIOS, SHORT))
def test_exactly_the_alerts_of_the_scenario_arrive(scenario_run: ScenarioRun, name: str) -> None:
    came = [d for d in scenario_run.came(name) if d.name not in SCENARIOS[name].early]
    assert {d.name for d in came} == {alert.name for alert in SCENARIOS[name].alerts}
    for alert in SCENARIOS[name].alerts:
        mine = [d for d in came if d.name == alert.name]
        assert {d.labels["severity"] for d in mine} == {alert.severity}
        if alert.gpus:
            assert {d.labels["gpu"] for d in mine} == alert.gpus
        if alert.devices:
            assert {d.labels["device"] for d in mine} == alert.devices
        if alert.cause:
            assert {d.labels["cause"] for d in mine} == {alert.cause}
        assert [d.text for d in mine if not re.search(alert.text, d.text)] == []


@pytest.mark.parametrize("name", shortly(SCENARIOS, SHORT))
def test_alerts_are_over_when_the_scenario_is(scenario_run: ScenarioRun, name: str) -> None:
    assert scenario_run.left.get(name, set()) == set()
    over = {d.name for d in scenario_run.inbox.of(name) if d.status == "resolved"}
    assert over >= {alert.name for alert in SCENARIOS[name].alerts}


def test_the_watchdog_reaches_its_own_receiver_again_and_again(scenario_run: ScenarioRun) -> None:
    assert len(scenario_run.watchdog) > WATCHDOG
    assert {d.name for d in scenario_run.watchdog} == {"DgxWatchdog"}
    sent = [d.name for d in scenario_run.inbox.deliveries if d.path == "/alerts"]
    assert "DgxWatchdog" not in sent


def test_a_hung_driver_does_not_hang_the_scrape(scenario_run: ScenarioRun) -> None:
    assert 'dgx_agent_source_up{source="nvml"} 0.0' in scenario_run.metrics_while_hung
    assert "\ndgx_disk_read_bytes_total{" in scenario_run.metrics_while_hung


def test_an_agent_that_is_killed_is_reported(scenario_run: ScenarioRun) -> None:
    down = [d for d in scenario_run.inbox.of(KILLED) if d.name == DOWN]
    assert scenario_run.killed_at
    assert down
    assert down[0].at > scenario_run.killed_at
    assert re.search(r"killed: the agent has not responded for 2 min", down[0].text)


def test_a_node_that_is_down_silences_its_other_alerts(scenario_run: ScenarioRun) -> None:
    assert scenario_run.held_back == {"DgxGpuEccUncorrected": DOWN}


def test_an_email_arrives(scenario_run: ScenarioRun) -> None:
    mails = [mail for mail in scenario_run.inbox.mails if "(critical) on gpu-lost" in mail]
    assert mails
    text = mails[0].replace("=\r\n", "")
    assert "To: operator@example.com" in text
    assert "gpu-lost: GPU 2" in text


def test_how_long_it_takes_is_shown(
    scenario_run: ScenarioRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to pass or fail: figures for the reader."""
    with capsys.disabled():
        print()
        for name in scenario_run.ended:
            for alert in SCENARIOS[name].alerts:
                came = (d.at for d in scenario_run.came(name) if d.name == alert.name)
                first = min(came, default=0.0)
                print(f"  {name:22} {alert.name:22} {first - scenario_run.began:6.1f} s")
        print(f"  the play took {time.monotonic() - scenario_run.began:.0f} s")
