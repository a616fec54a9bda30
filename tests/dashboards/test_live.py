"""Boards against a real Prometheus that scrapes real agents: every query answers on each system."""

import re
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agent.faults.declarations import declared
from agent.faults.thresholds import AlertThresholds, RuleParameters
from dashboards.board import BAD
from tests.support.board_data import agents
from tests.support.boards import EVERYTHING, boards, colour_of, queries, shown, substituted
from tests.support.nightly import shortly
from tests.support.patience import PATIENCE
from tests.support.prometheus import Prometheus

T = TypeVar("T")
pytestmark = pytest.mark.prometheus

SHORT = ("dgx-station-v100", "dgx-h100")
SYSTEMS = ("dgx-1-p100", "dgx-1-v100", *SHORT)
HUNG = "gtx-1080:driver-hang"
"""Simulated minutes wait for no one: only a live agent can have a call that hangs."""

WARM = 25.0
"""Seconds until live agents have read twice what they read every ten, and rates have a window."""

ALERT: dict[str, Any] = {
    "alert": "DgxTest",
    "expr": "dgx_agent_build_info",
    "labels": {"severity": "info"},
}
OF_RACK: dict[str, Any] = {
    "alert": "DgxTestRack",
    "expr": "vector(1)",
    "labels": {"severity": "critical", "rack": "r31"},
}
RECORDS = [
    {"record": str(rule), "expr": rule.expr}
    for group in declared(RuleParameters(AlertThresholds(), 1 / 60)).groups
    for rule in group.records
    if group.name in ("dgx-fleet-records", "dgx-report", "dgx-fleet") and "median" not in str(rule)
]
"""As users have them, over seconds in the place of minutes."""

WINDOWS = {"__rate_interval": "15s", "__range": "20s"}

STEPS, MEMORY = "Length of a step", "Memory, and what the driver asks for"
JOBS = "Jobs, those that lose most first"
EMPTY = {
    (board, row["panel"], query): {*row.get("systems", SYSTEMS)}
    for row in tomllib.loads(Path(__file__).with_name("live.toml").read_text("utf-8"))["empty"]
    for board in row["boards"]
    for query in row["queries"]
}
"""Queries (board, panel, refId) that find nothing on a system by its nature."""

OF_THE_ILL = ("GPUs, most starved first", "Data paths, longest saturated first")
SOMETIMES = {
    # GPUs that lie far from the others
    *(asked.place for asked in queries() if "stddev" in asked.target["expr"]),
    ("dgx-gpu", STEPS, "B"),  # a reference, after a minute
    ("dgx-node", JOBS, "A"),  # that lose nothing
    ("dgx-fleet", "Look here first", "H"),  # communication that nothing hides
    ("dgx-fleet", "Time lost, by node and cause", "A"),  # nothing is lost; nothing fires
    *(("dgx-fleet", panel, "A") for panel in OF_THE_ILL),
}


@pytest.fixture(scope="module")
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    systems = SYSTEMS if request.config.getoption("--nightly") else SHORT
    machines = {system: f"{system}:training" for system in systems}
    with (
        agents({**machines, "hung": HUNG}, folder) as targets,
        Prometheus(folder, targets, [ALERT, OF_RACK, *RECORDS]) as server,
    ):
        time.sleep(WARM)
        yield server


def settled(asked: Callable[[], T], wanted: T) -> T:
    """The answer, asked for again and again while it is not the one wanted."""
    deadline = time.monotonic() + PATIENCE
    while (answer := asked()) != wanted and time.monotonic() < deadline:
        time.sleep(3.0)
    return answer


@pytest.mark.parametrize("system", shortly(SYSTEMS, SHORT))
def test_every_query_answers_on_each_system(live: Prometheus, system: str) -> None:
    wanted = {place for place, systems in EMPTY.items() if system in systems}
    left = [asked for asked in queries() if asked.place not in SOMETIMES]

    def otherwise() -> str:
        """Asked again: only those that were not as they should be."""
        left[:] = [
            one for one in left if bool(shown(live, one, system, WINDOWS)) == (one.place in wanted)
        ]
        return ", ".join(str(one.place) for one in left)

    assert settled(otherwise, "") == ""


def test_a_panel_that_can_be_empty_says_so() -> None:
    said = {
        asked.place[:2]
        for asked in queries()
        if re.search(r"\bEmpty |\b[Nn]o line ", asked.panel["description"])
    }
    off = {("dgx-fleet", panel) for panel in OF_THE_ILL}
    off |= {("dgx-gpu", "Memory of each process"), ("dgx-gpu", "Jobs")}
    off |= {("dgx-gpu", STEPS), ("dgx-gpu", "Video engines")}
    off |= {("dgx-node", title) for title in ("Not measured, and why", JOBS)}
    off |= {("dgx-node", "Steps per second of the jobs")}  # of loads without steps
    off |= {("dgx-node", "NVLink payload")}  # of drivers without the counters
    all_but_columns = {place[:2] for place in EMPTY} - {("dgx-gpu", MEMORY)}
    off |= {(board, "Firing alerts") for board in boards()}
    assert said == all_but_columns | off


@pytest.mark.parametrize("system", shortly(SYSTEMS, SHORT))
def test_variables_have_values_on_each_system(live: Prometheus, system: str) -> None:
    for board in boards().values():
        for variable in board["templating"]["list"][1:]:
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert match
            series = substituted(match[1], **{**EVERYTHING, "instance": system})
            values = live.ask(f"label/{match[2]}/values", **{"match[]": series})
            wanted = {"job": "dgx-telemetry", "instance": system, "gpu": "0"}
            assert {wanted[match[2]]} <= set(values) if match[2] in wanted else values == []


def alerts_of(live: Prometheus, expr: str) -> list[str]:
    return [found.labels["alertname"] for found in live.now(expr)]


def test_firing_alerts_are_marked_and_listed(live: Prometheus) -> None:
    for uid, board in boards().items():
        (annotation,) = board["annotations"]["list"]
        expr = substituted(annotation["expr"], **{**EVERYTHING, "instance": "dgx-h100"})
        firing = ["DgxTest"]
        if uid in {"dgx-fleet", "dgx-agent"}:
            firing.append("DgxTestRack")  # which is no matter of a node elsewhere
        assert settled(partial(alerts_of, live, expr), firing) == firing


def test_a_driver_that_hangs_is_red_on_the_agents_board(live: Prometheus) -> None:
    by_title = {asked.place[:2]: asked for asked in queries()}
    sources = by_title["dgx-agent", "Sources"]

    def is_down() -> bool:
        shown_now = shown(live, sources, "hung", WINDOWS)
        return "nvml" in {s.labels["source"] for s in shown_now if s.value == 0}

    assert settled(is_down, wanted=True)
    assert colour_of(sources, 0) == BAD
