"""Boards against a real Prometheus that holds simulated scenarios: the right panels light
up, and values fit their units."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

import pytest

from dashboards.board import BAD, WARNING
from tests.support.board_data import openmetrics, seconds_of
from tests.support.boards import Asked, colour_of, column_of, queries, shown, unit_of
from tests.support.nightly import shortly
from tests.support.prometheus import Prometheus, Series

pytestmark = pytest.mark.prometheus

EXPECTED = tomllib.loads(Path(__file__).with_name("lit_panels.toml").read_text(encoding="utf-8"))
"""By SYSTEM:SCENARIO: the panels in each colour, and the state of most of the time."""


@dataclass
class Simulated:
    """A Prometheus with scenarios, when each of them (SYSTEM:SCENARIO) ended, and what the panels
    show at its end, asked for once."""

    prometheus: Prometheus
    ends: Mapping[str, float]
    known: dict[tuple[str, str, bool], list[Series]] = field(default_factory=dict)

    def shown(self, asked: Asked, scenario: str) -> list[Series]:
        key = scenario, asked.target["expr"], asked.target["instant"]
        if key not in self.known:
            windows = {"__rate_interval": "40s", "__range": f"{seconds_of(scenario)}s"}
            end = self.ends[scenario]
            self.known[key] = shown(self.prometheus, asked, scenario, windows, end)
        return self.known[key]


SHORT = {
    *("dgx-1-p100:training", "dgx-h100:held", "dgx-1-v100:starved-disk", "dgx-h100:starved-pcie"),
    *("dgx-h100:nvlink-saturated", "dgx-h100:throttled", "dgx-h100:gpu-hot", "dgx-h100:gpu-lost"),
    *("dgx-h100:nvlink-down", "dgx-h100:xid", "dgx-h100:row-remap"),
}
"""Each row of a board lit once; those left out light the same panels by another cause."""


@pytest.fixture(scope="module")
def simulated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Simulated]:
    folder = tmp_path_factory.mktemp("prometheus")
    server = Prometheus(folder, {}, [])
    names = [name for name in EXPECTED if name in SHORT or request.config.getoption("--nightly")]
    ends = openmetrics(names, folder / "scenarios.txt")
    server.backfill(folder / "scenarios.txt")
    with server:
        yield Simulated(server, ends)


RANGES = tomllib.loads(Path(__file__).with_name("ranges.toml").read_text(encoding="utf-8"))
"""Between which values each unit makes sense."""


@pytest.mark.parametrize("scenario", shortly(EXPECTED, SHORT))
def test_values_fit_their_units(simulated: Simulated, scenario: str) -> None:
    for asked in queries():
        least, most = RANGES[unit_of(asked)]
        values = [series.value for series in simulated.shown(asked, scenario)]
        sound = (isnan(value) or least <= value <= most for value in values)  # NaN says why
        assert all(sound), f"{asked}: {values}"


def lit(simulated: Simulated, scenario: str) -> dict[str, str]:
    """Return the panels that are yellow or red: the worst colour by `board/panel`, of tables
    `board/panel: column`."""
    found: dict[str, str] = {}
    for asked in queries():
        colours = {colour_of(asked, series.value) for series in simulated.shown(asked, scenario)}
        for name, colour in (("yellow", WARNING), ("red", BAD)):
            if colour in colours:
                column = column_of(asked)
                place = f"{asked.board}/{asked.panel['title']}{f': {column}' if column else ''}"
                found[place] = name
    return found


@pytest.mark.parametrize("scenario", shortly(EXPECTED, SHORT))
def test_the_right_panels_light_up(simulated: Simulated, scenario: str) -> None:
    shown: dict[str, str] = {}
    for colour in ("yellow", "red"):
        shown |= dict.fromkeys(EXPECTED[scenario].get(colour, ()), colour)
    assert lit(simulated, scenario) == shown


@pytest.mark.parametrize("scenario", shortly((n for n in EXPECTED if "most" in EXPECTED[n]), SHORT))
def test_most_of_the_time_is_what_the_scenario_is(simulated: Simulated, scenario: str) -> None:
    place = "dgx-gpu", "Time by state and cause, total", "A"
    (asked,) = (q for q in queries() if q.place == place)
    shares = {
        f"{s.labels['state']}/{s.labels['cause']}": s.value
        for s in simulated.shown(asked, scenario)
    }
    assert max(shares, key=lambda pair: shares[pair]) == EXPECTED[scenario]["most"]


@pytest.mark.parametrize("board", ["dgx-fleet", "dgx-node", "dgx-gpu"])
def test_what_became_of_the_hours_adds_up(simulated: Simulated, board: str) -> None:
    asked = [q for q in queries() if q.place[:2] == (board, "GPU-hours and goodput")][:6]
    hours = [simulated.shown(one, "dgx-h100:starved-pcie") for one in asked]
    *parts, whole = [sum(series.value for series in found) for found in hours]
    assert all(hours)
    assert parts[0] > 0
    assert sum(parts) == pytest.approx(whole)
