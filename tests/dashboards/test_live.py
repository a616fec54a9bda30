"""Boards against a real Prometheus: every query answers, and the right panels light up."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pytest

from dashboards.colours import BAD, WARNING
from tests.support.board_data import agents, openmetrics, seconds_of
from tests.support.boards import (
    EVERYTHING,
    Asked,
    boards,
    colour_of,
    column_of,
    queries,
    substituted,
    unit_of,
)
from tests.support.lit_panels import LIT, VERDICTS
from tests.support.prometheus import Prometheus, Series

T = TypeVar("T")
pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(600)]

SYSTEMS = ("dgx-1-p100", "dgx-1-v100", "dgx-station-v100", "dgx-h100")
HUNG = "dgx-h100:driver-hang"
"""Simulated minutes wait for nobody: only a live agent can have a call that hangs."""

WARM = 25.0
"""Seconds until live agents have read twice what they read every ten, and rates have a window."""
TIMEOUT = 90.0
"""Seconds more in which a busy machine may catch up."""

ALERT: dict[str, Any] = {
    "alert": "DgxTest",
    "expr": "dgx_agent_build_info",
    "labels": {"severity": "info"},
}
LIVE = {"__rate_interval": "15s", "__range": "20s"}

NO_GPM = {"dgx-1-p100", "dgx-1-v100", "dgx-station-v100"}
NO_INFINIBAND = {"dgx-station-v100"}
NOWHERE = set(SYSTEMS)
"""Simulated machines have no sensors of the chassis, and these here no hung job."""

EMPTY: dict[tuple[str, str, str], set[str]] = {
    ("dgx-gpu", "Multiprocessors and tensor cores", "A"): NO_GPM,
    ("dgx-gpu", "Multiprocessors and tensor cores", "B"): NO_GPM,
    ("dgx-gpu", "Multiprocessors and tensor cores", "C"): NO_GPM,
    ("dgx-gpu", "Remapped rows", "A"): NO_GPM,
    ("dgx-gpu", "Remapped rows", "B"): NO_GPM,
    ("dgx-gpu", "Rows that could not be remapped", "A"): NO_GPM,
    ("dgx-gpu", "Rows that could not be remapped", "B"): NO_GPM,
    ("dgx-gpu", "Retired pages", "A"): {"dgx-h100"},
    ("dgx-gpu", "Retired pages", "B"): {"dgx-h100"},
    ("dgx-gpu", "Memory temperature", "A"): {"dgx-1-p100"},
    ("dgx-gpu", "What the driver asks for", "A"): NO_GPM,
    ("dgx-node", "Power of the whole box", "A"): NOWHERE,
    ("dgx-node", "Whom hung jobs wait for", "A"): NOWHERE,
    ("dgx-node", "Air through the box", "A"): NOWHERE,
    ("dgx-node", "Disks", "C"): {"dgx-station-v100", "dgx-h100"},
    ("dgx-input-pipeline", "Reads", "B"): {"dgx-station-v100", "dgx-h100"},
    ("dgx-input-pipeline", "InfiniBand received", "A"): NO_INFINIBAND,
    ("dgx-input-pipeline", "InfiniBand received", "B"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand", "A"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand", "B"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand", "C"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand saturation", "A"): NO_INFINIBAND,
    ("dgx-links", "NVLinks down by GPU", "A"): NOWHERE,
    ("dgx-agent", "Sources that do not answer", "A"): NOWHERE,
    ("dgx-links", "InfiniBand ports", "A"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand ports", "B"): NO_INFINIBAND,
    ("dgx-links", "InfiniBand congestion", "A"): NO_INFINIBAND,
    ("dgx-links", "NVSwitch fabric", "A"): NO_GPM,
    ("dgx-links", "Each NVLink, sent", "B"): {"dgx-h100"},
    ("dgx-links", "Each NVLink, received", "B"): {"dgx-h100"},
}
"""Queries (board, panel, refId) that find nothing on a system by its nature."""

SOMETIMES = {
    ("dgx-node", "Activity", "D"),  # GPUs that lie far from the others
    ("dgx-input-pipeline", "Activity", "D"),
    ("dgx-fleet", "Nodes, most starved first", "G"),  # alerts
}


class Machine(NamedTuple):
    """A Prometheus that scrapes live agents, and holds simulated minutes of scenarios."""

    prometheus: Prometheus
    ends: Mapping[str, float]  # of scenarios, by SYSTEM:SCENARIO
    ready: float  # when the live agents have been scraped for long enough


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("prometheus")
    live = {system: f"{system}:training" for system in SYSTEMS}
    with agents({**live, "hung": HUNG}, folder) as targets:
        server = Prometheus(folder, targets, [ALERT])
        ends = openmetrics(list(LIT), folder / "scenarios.txt")
        server.backfill(folder / "scenarios.txt")
        with server:
            yield Machine(server, ends, time.monotonic() + WARM)


@pytest.fixture
def live(machine: Machine) -> Machine:
    time.sleep(max(0.0, machine.ready - time.monotonic()))
    return machine


def settled(asked: Callable[[], T], wanted: T) -> T:
    """The answer, asked for again and again while it is not the one wanted."""
    deadline = time.monotonic() + TIMEOUT
    while (answer := asked()) != wanted and time.monotonic() < deadline:
        time.sleep(1.0)
    return answer


def shown(machine: Machine, asked: Asked, instance: str) -> list[Series]:
    """What a panel shows of one node: at the end of its scenario, or live."""
    end = machine.ends.get(instance)
    seconds = {"__rate_interval": "40s", "__range": f"{seconds_of(instance)}s"}
    windows = LIVE if end is None else seconds
    variables = {"job": "dgx-telemetry", "instance": instance, "gpu": ".+"}
    expr = substituted(asked.target["expr"], **variables, **windows)
    if asked.target["instant"]:
        return machine.prometheus.now(expr, end)
    until = end or time.time()
    return machine.prometheus.over(expr, until - 3, until, 3)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_query_answers_on_each_system(live: Machine, system: str) -> None:
    def empty() -> set[tuple[str, str, str]]:
        found = {asked.place for asked in queries() if not shown(live, asked, system)}
        return found - SOMETIMES

    wanted = {place for place, systems in EMPTY.items() if system in systems}
    assert settled(empty, wanted) == wanted


def test_a_panel_that_can_be_empty_says_so() -> None:
    told = {
        asked.place[:2]
        for asked in queries()
        if re.search(r"\bEmpty |\bNo line ", asked.panel["description"])
    }
    off = {("dgx-gpu", "Memory of each process"), ("dgx-gpu", "Jobs")}
    off |= {("dgx-gpu", title) for title in ("Confidence in the step", "Length of a step")}
    off |= {("dgx-gpu", title) for title in ("Steps per second", "Collectives per second")}
    off |= {("dgx-node", "Steps per second of the jobs")}  # of loads without steps
    assert told == {place[:2] for place in EMPTY} | {("dgx-fleet", "Firing alerts")} | off


@pytest.mark.parametrize("system", SYSTEMS)
def test_variables_have_values_on_each_system(live: Machine, system: str) -> None:
    for board in boards().values():
        for variable in board["templating"]["list"][1:]:
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert match
            series = substituted(match[1], **{**EVERYTHING, "instance": system})
            values = live.prometheus.ask(f"label/{match[2]}/values", **{"match[]": series})
            wanted = {"job": "dgx-telemetry", "instance": system, "gpu": "0"}
            assert {wanted[match[2]]} <= set(values) if match[2] in wanted else values == []


def alerts_of(live: Machine, expr: str) -> list[str]:
    return [found.labels["alertname"] for found in live.prometheus.now(expr)]


def test_firing_alerts_are_marked_and_listed(live: Machine) -> None:
    for board in boards().values():
        (annotation,) = board["annotations"]["list"]
        expr = substituted(annotation["expr"], job=".+", instance="dgx-h100")
        names = settled(
            partial(alerts_of, live, expr),
            ["DgxTest"],
        )
        assert names == ["DgxTest"]


RANGES = {
    "percentunit": (0.0, 1.001),
    "celsius": (-20.0, 120.0),
    "watt": (0.0, 16_000.0),
    "bytes": (0.0, 1e13),
    "Bps": (0.0, 1e13),
    "hertz": (1e8, 1e10),
    "s": (0.0, 3600.0),
    "none": (0.0, 1e10),
    "dateTimeFromNow": (0.0, 1e13),
}
"""Between which values each unit makes sense."""


@pytest.mark.parametrize("scenario", LIT)
def test_values_fit_their_units(machine: Machine, scenario: str) -> None:
    for asked in queries():
        least, most = RANGES[unit_of(asked)]
        values = [series.value for series in shown(machine, asked, scenario)]
        assert all(least <= value <= most for value in values), f"{asked}: {values}"


def lit(machine: Machine, scenario: str) -> dict[str, str]:
    """What is yellow or red: the worst colour by `board/panel`, of tables `board/panel: column`."""
    found: dict[str, str] = {}
    for asked in queries():
        colours = {colour_of(asked, series.value) for series in shown(machine, asked, scenario)}
        for name, colour in (("yellow", WARNING), ("red", BAD)):
            if colour in colours:
                column = column_of(asked)
                place = f"{asked.board}/{asked.panel['title']}{f': {column}' if column else ''}"
                found[place] = name
    return found


@pytest.mark.parametrize("scenario", LIT)
def test_the_right_panels_light_up(machine: Machine, scenario: str) -> None:
    assert lit(machine, scenario) == LIT[scenario]


@pytest.mark.parametrize("scenario", VERDICTS)
def test_most_of_the_time_is_what_the_scenario_is(machine: Machine, scenario: str) -> None:
    (asked,) = (q for q in queries() if q.panel["title"] == "Time by state and cause, total")
    shares = {
        f"{s.labels['state']}/{s.labels['cause']}": s.value for s in shown(machine, asked, scenario)
    }
    assert max(shares, key=lambda pair: shares[pair]) == VERDICTS[scenario]


def test_a_driver_that_hangs_is_red_on_the_agents_board(live: Machine) -> None:
    by_title = {asked.place[:2]: asked for asked in queries()}
    sources = by_title["dgx-agent", "Sources"]

    def is_down() -> bool:
        shown_now = shown(live, sources, "hung")
        return "nvml" in {s.labels["source"] for s in shown_now if s.value == 0}

    assert settled(is_down, wanted=True)
    assert colour_of(sources, 0) == BAD
