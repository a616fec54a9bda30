"""Each alert fires when it must and rests when it must, judged by promtool itself."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.catalogue import METRICS
from agent.config.settings import Settings
from alerts.build import alerts_of, groups
from tests.support.alert_cases import Table, tables
from tests.support.alert_input import SCRAPE, SYSTEMS, Case, System, group
from tests.support.alert_replay import judged
from tests.support.nightly import NIGHTLY

TABLES = tables()
ALERTS = alerts_of(groups(Settings()))


@cache
def cases(system: System) -> tuple[Case, ...]:
    return tuple(case for table in TABLES for case in table(system))


def promtool(folder: Path, cases: list[Case], scrapes: int = 2) -> str:
    """Return the faults that promtool finds; empty if there are none. Rules are evaluated each so
    many scrapes."""
    every = scrapes * max(SCRAPE, min(case.every for case in cases))
    tests = (group(case, scrapes) for case in cases)
    return judged(folder, {case.alert for case in cases}, every, tests)


def in_turn() -> list[Any]:
    """Each table on each system; in the short form on one of them, in turn."""
    return [
        pytest.param(
            table,
            system,
            id=f"{table.name}-{system.name}",
            marks=[] if number % len(SYSTEMS) == at else NIGHTLY,
        )
        for number, table in enumerate(TABLES)
        for at, system in enumerate(SYSTEMS)
    ]


@pytest.mark.promtool
@pytest.mark.parametrize(("table", "system"), in_turn())
def test_fires_and_rests(
    table: Table, system: System, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Evaluated as often as the machine is scraped; in the short form each fourth time, or each
    sixth where the cases last for hours."""
    tried = list(table(system))
    seldom = 4 if min(case.every for case in tried) <= SCRAPE else 6
    scrapes = 1 if request.config.getoption("--nightly") else seldom
    assert promtool(tmp_path, tried, scrapes) == ""


@pytest.mark.promtool
@pytest.mark.parametrize("turn", ["fires", "rests"])
def test_promtool_notices_a_wrong_case(turn: str, tmp_path: Path) -> None:
    """The judge is awake: the same case with its expectation turned round fails."""
    found = next(c for c in cases(SYSTEMS[0]) if bool(c.fires) == (turn == "rests"))
    wrong = found._replace(fires=() if found.fires else ({"severity": "warning"},))
    assert "FAILED" in promtool(tmp_path, [wrong])


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_every_alert_has_cases_of_both_kinds_and_there_are_no_others(system: System) -> None:
    fire = {case.alert for case in cases(system) if case.fires}
    rest = {case.alert for case in cases(system) if not case.fires}
    assert fire == rest | {"DgxWatchdog"} == {rule.alert for rule in ALERTS}


def test_cases_have_series_of_metrics_that_exist() -> None:
    named = {series.partition("{")[0] for case in cases(SYSTEMS[0]) for series in case.series}
    assert {name for name in named if name.startswith("dgx_")} <= METRICS.keys()


def test_every_rule_of_an_alert_fires_in_some_case() -> None:
    """An alert of several rules: each of them, distinguished by its own labels."""
    fired = [(case.alert, labels) for case in cases(SYSTEMS[0]) for labels in case.fires]
    silent = [
        (rule.alert, dict(rule.labels))
        for rule in ALERTS
        if not any(
            name == rule.alert
            and {"severity": str(rule.severity), **rule.labels}.items() <= labels.items()
            for name, labels in fired
        )
    ]
    assert silent == []


@pytest.mark.promtool
def test_a_gpu_whose_job_began_before_its_agent_fell_silent_has_one_owner(tmp_path: Path) -> None:
    """Two rows, with and without the job, would fail each rule that joins them, for all nodes."""
    gpu = 'instance="box", job="dgx-telemetry", gpu="0", uuid="GPU-0"'
    series = {
        'up{instance="box", job="dgx-telemetry"}': "1x3 0x3",
        f"dgx_gpu_info{{{gpu}}}": "1x3 stale",
        f'dgx_gpu_job_info{{{gpu}, job_id="7", user="ada"}}': "_x1 1x1 stale",
        'dgx_agent_last_tick_timestamp_seconds{instance="box", job="dgx-telemetry"}': "1x3 stale",
    }
    owners = {"expr": "count(instance_gpu:job_info:owner)", "eval_time": "60s"}
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": value} for name, value in series.items()],
        "promql_expr_test": [{**owners, "exp_samples": [{"labels": "{}", "value": 1}]}],
    }
    assert judged(tmp_path, {"DgxGpuHot"}, SCRAPE, [test]) == ""
