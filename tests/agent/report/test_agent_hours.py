"""A report of one agent: which hours it counts, its price, and by which names a job is found."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.cli.report import counted_from
from agent.report.gpu_time import costs
from agent.report.questions import from_agent, price_of
from tests.agent.report.test_report import report, server

HOUR = 3600


def hours(newest: int) -> dict[str, Any]:
    """Three hours, in each of which one GPU was busy for half an hour and starved for half."""
    seconds = {"busy/none": 1800.0, "starved/disk": 1800.0}
    row = {"job_id": "", "user": "", "seconds": seconds, "joules": None}
    return {"hours": [{"hour": newest - age, "rows": [row]} for age in (2, 1, 0)]}


@pytest.mark.parametrize(("here", "of_agent"), [(None, None), (3.0, 2.0), (None, 3.0)])
def test_whole_hours_and_the_price_are_named(
    here: float | None,
    of_agent: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, config = time.time(), tmp_path / "config.toml"
    config.write_text("" if here is None else f"[cost]\ngpu_hour = {here}\n")
    host = {"dgx_cost_gpu_hour": of_agent} if of_agent else {}
    with server(lambda *_: {**hours(int(now // HOUR)), "host": host}) as (address, _):
        words = ("--config", str(config), "--agent", f"http://{address}", "--since", "60m")
        assert report(*words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"GPU-hours by node, {counted_from('60m', now)}, from one agent's" in said
    assert "last 60m in whole hours, from 20" in said
    recorded = counted_from("7d", now, now - 600)
    assert (
        recorded
        == f"recorded since {datetime.fromtimestamp(now - 600, UTC).astimezone():%Y-%m-%d %H:%M}"
    )
    assert "together 2.00 GPU-hours, 1.00 lost (50 %)" in said
    cost = "Cost 6.00 (3.00 per GPU-hour), of which lost 3.00."
    none = "No cost: no price of a GPU-hour is configured (`gpu_hour` below [cost])."
    assert (cost if of_agent else none) in said


@pytest.mark.parametrize(("prices", "expected"), [([], 0.0), (["2.5"], 2.5), (["2", "3"], None)])
def test_the_price_of_a_fleet_is_that_of_all_its_nodes(
    prices: list[str], expected: float | None
) -> None:
    found = [{"metric": {"price": price}, "value": [1, "4"]} for price in prices]
    with server(lambda *_: {"data": {"result": found}}) as (address, asked):
        assert price_of(f"http://{address}", "", "7d") == expected
    assert asked[0][0] == "count_values('price', last_over_time(dgx_cost_gpu_hour[7d]))"
    assert costs([], None).startswith("No cost: nodes have different prices")


def test_a_job_is_found_by_the_process_in_its_name() -> None:
    job = {
        "id": "1795652412-20001",
        "name": "train.py:20000",
        "job_id": "train.py:20000",
        "title": "train.py:20000",
        "pids": [20001, 20002],
        "receipt": "",
        "joules": None,
        "gpu_seconds": {"busy/none": 1.0},
    }
    with server(lambda *_: {"running": [job], "ended": []}) as (address, _):
        for name in ("train.py:20000", "20000", "20001", "20002", "1795652412-20001"):
            assert from_agent(f"http://{address}", "job", name), name
        assert not from_agent(f"http://{address}", "job", "2000")
