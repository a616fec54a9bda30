"""Every scenario raises the alerts of the contract and no others: agent and rules together,
without daemons."""

import tomllib
from pathlib import Path

import pytest

from agent import simulator as simulation
from agent.simulator.scenarios import NAMES, TOUR
from tests.support.alert_replay import SCALE, firing, record, used
from tests.support.machines import played
from tests.support.nightly import NIGHTLY

USUAL_SECONDS = 45
SCENARIOS = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8"))
PLAYED = [(system, name) for name, one in SCENARIOS.items() for system in one["machines"]]
ALSO = [(system, name) for name, one in SCENARIOS.items() for system in one.get("also", ())]


def test_every_scenario_is_played() -> None:
    assert set(SCENARIOS) == set(NAMES) - {TOUR}
    assert all(simulation.parse(f"{system}:{name}") for system, name in PLAYED)


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("system", "scenario"),
    [*PLAYED, *(pytest.param(*case, marks=NIGHTLY) for case in ALSO)],
    ids=lambda x: x,
)
def test_raises_its_alerts_and_no_others(system: str, scenario: str, tmp_path: Path) -> None:
    expected = SCENARIOS[scenario]
    seconds = expected.get("seconds", USUAL_SECONDS)
    series = record(played(f"{system}:{scenario}"), seconds, used())
    wanted = {"DgxWatchdog", *expected.get("alerts", ()), *expected.get("more", {}).get(system, ())}
    scale = 1 / expected["scale"] if "scale" in expected else SCALE
    assert firing(series, seconds - 2, tmp_path, scale) == wanted
