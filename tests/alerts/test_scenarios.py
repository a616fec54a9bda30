"""Scenarios, faults and their combinations raise the alerts of the contract and no others: agent
and rules together, without daemons. Of two faults both arrive, unless one hides the other by
declaration."""

import re
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

from agent import simulator as simulation
from agent.config.settings import Settings
from agent.faults.hiding import OF_ALL
from agent.simulator.scenarios import NAMES, TOUR
from alerts.build import alerts_of, groups
from tests.support.alert_replay import SCALE, firing, record, used
from tests.support.machines import played
from tests.support.nightly import NIGHTLY

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
    seconds = expected.get("seconds", 45)
    series = record(played(f"{system}:{scenario}"), seconds, used())
    wanted = {"DgxWatchdog", *expected.get("alerts", ()), *expected.get("more", {}).get(system, ())}
    scale = 1 / expected["scale"] if "scale" in expected else SCALE
    assert firing(series, seconds - 2, tmp_path, scale) == wanted


SINGLE = {
    "pages-pending": "GpuPagesPending",
    "pages-near": "GpuEccRising",
    "ecc-rising": "GpuEccRising",
    "pcie-replays": "PcieReplays",
    **dict.fromkeys(("disk-dead", "disk-damaged", "disk-smart"), "DiskFailing"),
    **dict.fromkeys(("fan-failed", "supply-failed"), "ChassisFault"),
    **dict.fromkeys(("xid-13", "xid-31", "xid-92", "xid-999"), "GpuXid"),
}
"""Faults of a DGX Station that trains. Replays are read once a minute, and judged over half of one
here: they may be missed."""

FAULTS = tomllib.loads(Path(__file__).with_name("pairs.toml").read_text(encoding="utf-8"))
"""Machine with what is wrong with it, and the alerts that must arrive."""

SECONDS = 110
"""Some counters are read once a minute; the longest `for` is 20 s here."""

ALERTS = alerts_of(groups(Settings()))
HIDES = {(fault.alert, by.alert) for fault in ALERTS for by in fault.hiders}
OF_WHOLE = [re.findall(r"Dgx\w+", rule.source_matchers[0])[0] for rule in OF_ALL]
HIDES |= {(fault.alert, by) for fault in ALERTS for by in OF_WHOLE}
"""What is hidden, and by what."""


def named(alerts: str) -> set[str]:
    return {f"Dgx{alert}" for alert in alerts.split()}


def wrong(found: set[str], wanted: set[str]) -> set[str]:
    """Alerts that are there or not against expectation, and that nothing there hides."""
    return {a for a in found ^ wanted if not any((a, by) in HIDES for by in found)}


def fired(machine: str, folder: Path) -> set[str]:
    series = record(played(machine), SECONDS, used())
    return firing(series, SECONDS - 2, folder) - {"DgxWatchdog"}


@NIGHTLY
@pytest.mark.promtool
@pytest.mark.parametrize("machine", FAULTS)
def test_a_fault_raises_its_own_alerts(machine: str, tmp_path: Path) -> None:
    found, wanted = fired(machine, tmp_path), named(FAULTS[machine])
    assert wanted <= found
    assert wrong(found, wanted) == set()


TOGETHER = [
    ("dgx-a100:training+", ("ecc-rising", "fan-failed", "disk-dead")),
    *(
        pytest.param("dgx-station-v100:training+", pair, marks=NIGHTLY)
        for pair in combinations(sorted(SINGLE.keys() - {"pcie-replays"}), 2)
    ),
]


@pytest.mark.promtool
@pytest.mark.parametrize(("start", "faults"), TOGETHER)
def test_all_arrive(start: str, faults: tuple[str, ...], tmp_path: Path) -> None:
    found = fired(start + "+".join(faults), tmp_path)
    assert wrong(found, {f"Dgx{SINGLE[fault]}" for fault in faults}) == set()
