"""A report of one agent: which hours it counts, its price, by which names a job is found, and its
sentences; answers of servers that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.cli.table import local
from agent.model import Cause, State
from agent.report import questions
from agent.report.gpu_time import (
    GpuTime,
    Price,
    cost_line,
    ordered,
    summary,
    together,
)
from agent.report.questions import MANY_CURRENCIES, NoAnswer, fetched, from_agent, price_of
from tests.agent.report.test_report import BUSY, DISK, IDLE, REPORT, ROWS, of_agent, report, server
from tests.support.answering import answering

HOUR = 3600


def hours(newest: int) -> dict[str, Any]:
    """Three hours, in each of which one GPU was busy for half an hour and starved for half."""
    seconds = {"busy/none": 1800.0, "starved/disk": 1800.0}
    row = {"job_id": "", "user": "", "seconds": seconds, "joules": None}
    gpus = {"GPU-1": seconds}
    rows = [row, row | {"job_id": "ai/train-0"}]
    return {
        "hours": [
            {"hour": newest - age, "rows": rows[: 1 + age % 2], "gpus": gpus} for age in (2, 1, 0)
        ]
    }


@pytest.mark.parametrize(("here", "there"), [(None, None), (3.0, 2.0), (None, 3.0)])
def test_the_period_its_coverage_and_the_price_are_named(
    here: float | None, there: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end, config = 500_000 * HOUR + 1800.0, tmp_path / "config.toml"
    config.write_text("" if here is None else f'[cost]\ngpu_hour = {here}\ncurrency = "EUR"\n')
    host: dict[str, Any] = {"dgx_cost_info": [{"currency": "EUR", "value": 1.0}]}
    host |= {"dgx_cost_gpu_hour": there} if there else {}
    answer = of_agent(**hours(500_000), host=host, timestamp=end)
    with server(answer) as (address, _):
        words = ("--config", str(config), "--agent", f"http://{address}")
        assert report(*words, "--since", "60m") == 0
        short = " ".join(capsys.readouterr().out.split())
        assert report(*words, "--by", "namespace", "--json") == 0
        named = json.loads(capsys.readouterr().out)
    begin, until = (f"{local(at):%Y-%m-%d %H:%M %Z}" for at in (end - 5400, end))
    assert (
        f"{begin} to {until}, 100 % of the GPUs' time counted, from one agent's hourly sums 3.00 of"
        in short
    )
    assert (
        "3.00 of 3.00 GPU-hours were given to jobs; in 1.50 of these (50 %) the GPUs worked."
        in short
    )
    cost = "Cost 9.00 EUR (3.00 EUR per GPU-hour), of which lost 4.50 EUR."
    none = "No cost: no price of a GPU-hour is configured (`gpu_hour` below [cost])."
    assert (cost if there else none) in short
    assert [(row["name"], row["gpu_hours"]) for row in named["rows"]] == [("ai", 1.0)]
    assert named["begin"] == end - 9000, "the hours begin later than was asked"
    assert named["source"] == "one agent's hourly sums, which begin then"
    assert named["summary"][1].startswith("Lost: 0.50 GPU-hours")


@pytest.mark.parametrize(
    ("prices", "currencies", "expected"),
    [
        ([], [], Price()),
        ([2.5, 2.5], ["EUR"], Price((2.5,), "EUR")),
        ([3, 2], [], Price((2, 3))),
        ([2, 2], ["EUR", "USD"], Price(unknown=MANY_CURRENCIES)),
    ],
)
def test_the_prices_of_a_fleet_have_one_currency(
    prices: list[float], currencies: list[str], expected: Price
) -> None:
    def answer(_: str, query: str) -> Any:
        found: list[dict[str, Any]] = [{"metric": {}, "value": [1, str(p)]} for p in prices]
        if "group" in query:
            found = [{"metric": {"currency": each}, "value": [1, "1"]} for each in currencies]
        return {"data": {"result": found}}

    with server(answer) as (address, _):
        assert price_of(f"http://{address}", "7d") == expected
    assert cost_line([GpuTime("n", {})], expected) == expected.unknown


def test_a_job_is_found_by_the_process_in_its_name_with_its_first_step() -> None:
    job = {
        "id": "1795652412-20001",
        "name": "train.py:20000",
        "job_id": "train.py:20000",
        "title": "train.py:20000",
        "began": "2026-11-27T10:00:00+00:00",
        "pids": [20001, 20002],
        "receipt": "",
        "joules": None,
        "gpu_seconds": {"busy/none": 1.0, "starved/peer": 1.0},
        "savings": [{"cause": "starved/peer", "advice": "For GPU 1: rest."}],
    }
    with server(lambda *_: {"running": [job], "ended": []}) as (address, _):
        for name in ("train.py:20000", "20000", "20001", "20002", "1795652412-20001"):
            (row,) = from_agent(f"http://{address}", 2e9, "job", name).rows
            assert row.advice == "For GPU 1: rest.", name
        assert not from_agent(f"http://{address}", 2e9, "job", "2000").rows


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    ("status", "content", "times"),
    [
        (200, DEEP, 1),
        (200, b"[1,2,3," * 10_000, 10**9),
        (200, b"\xff\xfe\xfd", 1),
        (200, b"", 1),
        (503, DEEP, 99),
    ],
    ids=["deep", "endless", "no text", "empty", "an error without an end"],
)
def test_whatever_a_server_answers_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, status: int, content: bytes, times: int
) -> None:
    monkeypatch.setattr(questions, "MOST_BYTES", 4 << 20)
    with answering(content, status, times) as place, pytest.raises(NoAnswer):
        fetched(f"http://{place}/")


def test_a_program_without_the_path_is_another() -> None:
    """Of `--agent` at an exporter of something else `once` said no more than 404."""
    with answering(b"404 page not found", 404) as place, pytest.raises(NoAnswer) as caught:
        fetched(f"http://{place}/api/v1/stream")
    assert str(caught.value) == f"http://{place} is another program: it has no /api/v1/stream"


@pytest.mark.parametrize(("answer", "lacks"), [({}, ": it has no 'host'"), ([], "")])
def test_foreign_json_is_not_an_agent(
    answer: Any, lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(lambda *_: answer) as (address, _):
        assert report("--agent", f"http://{address}") == 2
        sentence = f"http://{address} does not respond as an agent does{lacks}"
    assert capsys.readouterr().err == f"dgx-telemetry: {sentence}\n"


def test_a_silent_address_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []

    def opened(_: str, timeout: float) -> None:
        waited.append(timeout)
        raise questions.NoAnswer("timed out")

    monkeypatch.setattr(questions, "opened", opened)
    for flag in ("--agent", "--prometheus"):
        assert report(flag, "http://x") == 2
    assert waited == [10.0, 10.0]


@pytest.mark.parametrize("zone", ["AAA-200", "UTC+25", "ZZZ-24:59:59", ":/etc/passwd", "?", ""])
def test_an_odd_time_zone_is_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    import time

    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert local(0.0).timestamp() == 0.0
    time.tzset()


def test_a_report_begins_with_what_matters() -> None:
    held = GpuTime("n2", {(State.HELD, Cause.NONE): 3600.0, IDLE: 3600.0}, unassigned=True)
    report = REPORT._replace(
        by="node", rows=tuple(row.at(2.0) for row in ordered((*ROWS[:2], held)))
    )
    given, lost, first, kept = summary(report)
    assert given == (
        "5.00 of 6.00 GPU-hours were given to jobs; in 2.50 of these (50 %) the GPUs worked; "
        "1.00 GPU-hours (2.00 EUR) had no job."
    )
    assert lost == (
        "Lost: 2.50 GPU-hours (5.00 EUR), 42 % of all: starved by disk 1.50 (3.00 EUR), occupied "
        "by an idle process 1.00 (2.00 EUR)."
    )
    assert kept == (
        "Next to reclaim: 1.00 GPU-hours (2.00 EUR) of the lost, held without work; most by node "
        "n2: 1.00."
    )
    hung = GpuTime("n3", {(State.HUNG, Cause.NONE): 1800.0})
    *_, most = summary(report._replace(rows=ordered((*report.rows, hung))))
    assert most == "Largest share: node n3 lost 0.50 of its 0.50 GPU-hours."
    assert first.startswith(
        "First to look at: node =bad<b>, which lost most: starved by disk for 1.50 GPU-hours "
    )
    assert list(summary(REPORT._replace(rows=ordered(ROWS[:1]))))[1:] == ["No time was lost."]


@pytest.mark.parametrize(
    ("before", "told"),
    [(0.248, "as"), (0.252, "as"), (0.2, "worse than 20 %"), (0.3, "better than 30 %")],
)
def test_the_span_before_is_compared_as_it_is_printed(before: float, told: str) -> None:
    """ROWS lose a quarter."""
    assert f"25 % of all ({told} in the same span before)" in " ".join(
        summary(REPORT._replace(before=before))
    )


@pytest.mark.parametrize(
    ("unassigned", "text"),
    [
        (True, "of 2.00 GPU-hours given, 1.00 worked, at 50 % of the tensor peak"),
        (False, "of 4.00 GPU-hours given, 1.00 worked, at 50 % of the tensor peak"),
    ],
)
def test_a_node_gave_the_hours_with_a_process(unassigned: bool, text: str) -> None:
    seconds = {BUSY: 3600.0, DISK: 3600.0, IDLE: 7200.0}
    row = GpuTime("n1", seconds, tensor=1800.0, unassigned=unassigned)
    assert str(row.goodput) == text
    assert str(row._replace(tensor=None).goodput) == text.partition(", at")[0]
    assert str(together([row, row])).startswith("of 4" if unassigned else "of 8")
    unknown = row._replace(tensor=None)
    assert together([row, unknown, unknown]).of_peak == 0.5, "of the work with a known throughput"
