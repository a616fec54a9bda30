"""Reports of GPU-hours: from a Prometheus, from an agent, and in each form."""

import csv
import json
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.cli.parser import run_command
from agent.cli.report import DISPENSABLE, as_html, overview
from agent.model import Cause, State
from agent.report.gpu_time import GpuTime, Price, Report, as_csv, document, ordered
from exporters.documents import jobs_document
from tests.stack.running import run_to_end
from tests.support.answering import Silent
from tests.support.machines import simulated
from tests.support.web_files import Authority, Pair

BUSY, DISK = (State.BUSY, Cause.NONE), (State.STARVED, Cause.DISK)
IDLE = (State.IDLE, Cause.NONE)
ROWS = (
    GpuTime("good", {BUSY: 7200.0}, 3.6e6),
    GpuTime("=bad<b>", {BUSY: 1800.0, DISK: 5400.0}, None, {"user": "eve", "account": "bio"}),
    GpuTime("idle", {IDLE: 7200.0}),
    GpuTime("nothing", {}),
)
REPORT = Report(
    "job",
    0.0,
    7200.0,
    0.98,
    "Prometheus",
    Price((2.0,), "EUR"),
    tuple(row.at(2.0) for row in ordered(ROWS)),
)
SECONDS = [
    ({"instance": "n1", "state": "busy", "cause": "none"}, 3600.0),
    ({"instance": "n1", "state": "starved", "cause": "disk"}, 1800.0),
    ({"instance": "n2", "state": "busy", "cause": "none"}, 9000.0),
    ({"instance": "n2", "state": "from_the_future", "cause": "none"}, 1.0),
]


class Answering(Silent, BaseHTTPRequestHandler):
    """Answers from `server.answers` by path; notes what was asked."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query).get("query", [""])[0]
        asked: list[tuple[str, str]] = self.server.asked  # type: ignore[attr-defined]
        asked.append((query, self.headers.get("Authorization", "")))
        body = self.server.answer(url.path, query)  # type: ignore[attr-defined]
        self.send_response(200 if body is not None else 500)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if body is not None else b"no\nsuch thing")


@contextmanager
def server(
    answer: Any, pair: Pair | None = None, handler: type[Answering] = Answering
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """An address that answers, with TLS if it has a certificate; and what it was asked."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
    listening.answer, listening.asked = answer, []  # type: ignore[attr-defined]
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.server_port}", listening.asked  # type: ignore[attr-defined]
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def prometheus(path: str, query: str) -> Any:
    """Seconds, the energy of one node, and no price."""
    assert path == "/prom/api/v1/query"
    if "dgx_cost_gpu_hour" in query or "unless" in query:
        return {"data": {"result": []}}
    if "offset" in query:
        return {"data": {"result": [{"metric": {}, "value": [1.0, "0.25"]}]}}
    if "max_over_time" in query:
        return {"data": {"result": [{"metric": {"instance": "n1"}, "value": [1.0, "7200"]}]}}
    found = SECONDS if "state_seconds" in query else [({"instance": "n2"}, 7.2e6)]
    result = [{"metric": labels, "value": [1.0, str(value)]} for labels, value in found]
    return {"data": {"result": result}}


def of_agent(**answers: Any) -> Any:
    """An agent that answers all of this at each address, from hours on."""
    now = time.time()
    known = {"host": {}, "timestamp": now, "hours": [], "running": [], "ended": [], **answers}
    return lambda *_: known


def report(*arguments: str) -> int:
    return run_command(["report", *arguments])


def test_the_worst_comes_first_and_nothing_is_no_row() -> None:
    assert [row.name for row in REPORT.rows] == ["=bad<b>", "idle", "good"]


def test_json_has_hours_prices_and_what_is_not_known_is_null() -> None:
    worst, idle, good = document(REPORT)["rows"]
    assert (worst["gpu_hours"], worst["lost_gpu_hours"], worst["busy_share"]) == (2.0, 1.5, 0.25)
    assert worst["lost_share"] == 0.75
    assert (worst["worst"], worst["kwh"], worst["user"]) == ("starved/disk", None, "eve")
    assert (worst["cost"], worst["cost_lost"]) == (4.0, 3.0)
    assert (idle["idle_gpu_hours"], idle["worst"], idle["advice"]) == (2.0, None, None)
    assert good["kwh"] == 1.0
    free = document(REPORT._replace(price=Price(), rows=ordered(ROWS)))
    assert (free["price_of_gpu_hour"], free["rows"][0]["cost"]) == (None, None)


def test_csv_runs_no_formula() -> None:
    first, *_ = csv.DictReader(as_csv(REPORT).splitlines())
    assert first["name"] == "'=bad<b>"
    assert (first["gpu_hours"], first["user"], first["kwh"]) == ("2.0", "eve", "")
    assert (first["lost_gpu_hours"], first["lost_share"]) == ("1.5", "0.75")


def test_no_form_of_a_report_commands_a_terminal() -> None:
    odd = GpuTime("\x1b]0;a\x07\u202eb\nc", {BUSY: 1.0}, None, {"user": "\u2066eve\x1b[31m"})
    rows = ordered([odd])
    report = REPORT._replace(rows=rows)
    assert rows[0].name == "?]0;a??b?c"
    for form in (as_csv(report), as_html(report), json.dumps(document(report))):
        assert not {"\x1b", "\x07", "\u202e", "\u2066"} & set(form)


def test_the_page_needs_nothing_else_and_runs_no_name() -> None:
    page = as_html(REPORT)
    assert "<b>" not in page
    assert "http" not in page
    assert "<script" not in page
    cells = ("=bad&lt;b&gt; eve bio", "2.00", "2.00", "25 %", "-", "1.50", "75 %", "0.00", "3.00")
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "Cost 12.00 EUR (2.00 EUR per GPU-hour), of which lost 3.00 EUR." in page


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (60, ["job", "GPU-h", "lost", "lost EUR", "largest loss"]),
        (80, ["job", "GPU-h", "at work", "lost", "of all", "held", "lost EUR", "largest loss"]),
        (130, ["job", "GPU-h", *DISPENSABLE, "lost", "lost EUR", "largest loss"]),
    ],
)
def test_a_terminal_shows_whole_names(width: int, columns: list[str]) -> None:
    shown = list(overview(REPORT, width))
    assert max(map(len, shown)) <= width
    head = next(line for line in shown if "GPU-h " in line)
    assert sorted(re.split(r"\s{2,}", head.strip())) == sorted(columns)
    names = [re.split(r"\s{2,}", line.strip())[0] for line in shown]
    assert {"=bad<b> eve bio", "idle", "good"} <= {*names}


def test_prometheus_is_asked_by_node(capsys: pytest.CaptureFixture[str]) -> None:
    with server(prometheus) as (address, asked):
        url = f"http://me:p%40ss@{address}/prom/"
        assert report("--prometheus", url, "--since", "24h", "--json") == 0
        assert report("--prometheus", url) == 0
    shown, _, table = capsys.readouterr().out.partition("\n}\n")
    rows = json.loads(shown + "}")["rows"]
    assert [(row["name"], row["lost_gpu_hours"], row["kwh"]) for row in rows] == [
        ("n1", 0.5, None),
        ("n2", 0.0, 2.0),
    ]
    assert (
        "12 % of all (better than 25 % in the same span before): starved by disk 0.50."
        in " ".join(table.split())
    )
    assert "Counted in part: n1 0.50 of 2.00 GPU-hours." in " ".join(table.split())
    assert re.search(r"n1 +1\.50 +1\.50 +67 % +- +0\.50 +33 %", table)
    assert all("[24h]" in query for query, _ in asked[1:3])
    assert {word for _, word in asked} == {"Basic bWU6cEBzcw=="}


def test_a_job_is_asked_for_by_its_number_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(_: str, query: str) -> Any:
        labels = {"job_id": "1234", "user": "eve", "account": "bio", "partition": "gpu"}
        parts = [("busy", "none", "900"), ("starved", "disk", "2700")]
        result = [
            {"metric": labels | {"state": state, "cause": cause}, "value": [1, value]}
            for state, cause, value in (parts if "state_seconds" in query else [])
        ]
        return {"data": {"result": result}}

    with server(answer) as (address, asked):
        assert report("--prometheus", f"http://{address}", "--job", "1234") == 0
        assert report("--prometheus", f"http://{address}", "--job", '1"} or x') == 2
    said = capsys.readouterr()
    assert "Job 1234 (user eve, partition gpu, account bio)" in said.out
    assert "of these busy 25 %" in said.out
    assert "What to do: " in said.out
    of_jobs = [query for query, _ in asked if "(" in query and "cost" not in query]
    assert all('{job_id="1234"}' in query for query in of_jobs)
    assert "is not a job" in said.err


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "answers 500: no such thing"),
        ([], "does not respond as Prometheus does\n"),
        ({"data": {"result": []}}, "load the rules of dgx-report.yaml, which need 5m of samples"),
    ],
)
def test_what_is_no_answer_is_one_sentence(
    answer: Any, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(lambda *_: answer) as (address, _):
        assert report("--prometheus", f"http://user:secret@{address}") == 2
        said = capsys.readouterr().err
        assert report("--prometheus", f"http://{address}", "--by", "user") == 2
    named = "let agents name jobs (`info = true` below [job])"
    assert (named in capsys.readouterr().err) == ("dgx-report" in expected)
    assert expected in said
    assert "secret" not in said
    assert said.count("\n") == 1


def test_one_agent_reports_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = jobs_document(simulated("gtx-1080:starved-disk").run(30).jobs)
    assert shown["running"]
    one = shown["running"][0]
    names = one["id"], one["title"], one["title"].split()[-1], *map(str, one["pids"])
    page = tmp_path / "report.html"
    with server(of_agent(**shown)) as (address, _):
        url = f"http://{address}"
        for name in names:
            assert report("--agent", url, "--job", name) == 0
        for _ in range(2):  # an earlier report is replaced
            assert report("--agent", url, "--by", "job", "--html", str(page)) == 0
        (tmp_path / "own.txt").write_text("mine")
        assert report("--agent", url, "--by", "job", "--html", f"{tmp_path}/own.txt") == 2
        assert (tmp_path / "own.txt").read_text() == "mine"
        assert report("--agent", url, "--job", "99") == 2
    said = capsys.readouterr()
    assert said.out.count(f"J{one['title'][1:]}\n") == len(names)
    assert "Its receipt: " in said.out
    assert "Energy: < 0.01 kWh" in said.out
    assert "0.00" not in said.out, "little is not nothing"
    assert "starved by disk" in page.read_text()
    assert "nothing is known of job 99" in said.err


def test_two_jobs_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (
        jobs_document(simulated(f"dgx-h100:{name}", gpus=2).run(seconds).jobs)
        for name, seconds in (("starved-disk", 60), ("training", 90))
    )
    jobs = before["running"] + after["running"]
    for number, job in enumerate(jobs):
        job["id"], job["title"], job["pids"] = f"run-{number}", f"job run-{number}", []
    jobs[0]["mean_steps_per_second"], jobs[1]["mean_steps_per_second"] = 2.0, 4.0
    with server(of_agent(running=jobs)) as (address, _):
        asked = "--agent", f"http://{address}", "--compare", "run-0"
        assert report(*asked, "run-1") == 0
        said = capsys.readouterr().out
        assert report(*asked, "run-1", "--json") == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert report(*asked, "run-7") == 2
        assert capsys.readouterr().err == "dgx-telemetry: nothing is known of job run-7\n"
    found = {re.split(r"\s{2,}", line.strip())[0]: line.split() for line in said.splitlines()}
    assert found["steps a second"][-4:-1] == ["2", "4", "+100"]
    assert re.fullmatch(r"-[67]\d", found["starved by disk"][-2])
    assert [row["name"] for row in rows] == ["job run-0", "job run-1"]
    for row, worked, peak in zip(rows, (0.24, 0.99), (0.35, 0.45), strict=True):
        assert row["busy_share"] == pytest.approx(worked, abs=0.06)
        assert row["tensor_throughput"] == pytest.approx(peak, abs=0.2)
        assert re.fullmatch(
            r"of \S+ GPU-hours given, (?:< )?\S+ worked, at \d+ % of the tensor peak",
            row["goodput"],
        )


NO_ADDRESS = ("http://[::1", "http://a:99999", "http://a:b", "http://a b", "http://\u00e9:1")
REFUSED = [
    (("--by", "cluster"), "--by cluster needs --prometheus: an agent knows its own node alone"),
    (("--compare", "1"), "expected 2 arguments"),
    (("--compare", "1", "2", "--job", "1"), "not allowed with argument"),
    (("--prometheus", "http://me:secret@[::1]:1"), "http://[::1]:1 does not answer: "),
    (("--job", ""), "argument --job: '' is empty"),
    *(
        ((flag, url), f"{url!r} is not an address, expected http://HOST:PORT\n")
        for flag in ("--prometheus", "--agent")
        for url in (*NO_ADDRESS, "file:///etc")
    ),
    (("--prometheus", ""), "argument --prometheus: '' is empty, expected http://HOST:PORT"),
    (("--agent", ""), "argument --agent: '' is empty, expected http://HOST:PORT"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_cannot_be_asked_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(*words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "secret" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "localhost"])
def test_an_agent_that_listens_everywhere_is_asked_here(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    with server(of_agent()) as (address, asked):
        config.write_text(f'listen = "{host}:{address.rpartition(":")[2]}"\n')
        assert report("--config", str(config)) == 2
    assert "this agent has watched no job yet" in capsys.readouterr().err
    assert asked


@pytest.mark.parametrize(("host", "asked"), [("[::]", "127.0.0.1"), ("[::1]", "[::1]")])
def test_an_agent_that_listens_on_ipv6_is_asked_here(
    host: str, asked: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'listen = "{host}:1"\n')
    assert report("--config", str(config)) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"dgx-telemetry: http://{asked}:1 does not answer: ")


def test_what_is_no_http_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    class Wordy(Answering):
        def do_GET(self) -> None:
            self.wfile.write(b"\x15\x03\x01 no HTTP\r\n")

    with server(None, handler=Wordy) as (address, _):
        assert report("--agent", f"http://{address}") == 2
    assert capsys.readouterr().err.startswith(f"dgx-telemetry: http://{address} does not answer: ")


def test_no_proxy_is_on_the_way_to_loopback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with server(prometheus) as (address, _):
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{address.rpartition(':')[2]}/prom"
            assert report("--prometheus", url) == 0
    assert "n1" in capsys.readouterr().out


def test_a_proxy_is_asked_for_other_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert report("--prometheus", "http://192.0.2.1:9090") == 2
    shown = capsys.readouterr().err
    assert shown == ("dgx-telemetry: http://192.0.2.1:9090 does not answer: Connection refused\n")
    assert "secret" not in shown


NO_STATUS = "does not respond as an agent of version"  # read over TLS all the same


@pytest.mark.parametrize(
    ("command", "said"),
    [("report", "this agent has watched no job yet"), ("once", NO_STATUS), ("check", NO_STATUS)],
)
def test_a_command_knows_who_signs(tmp_path: Path, command: str, said: str) -> None:
    authority = Authority(tmp_path)
    with server(of_agent(), authority.sign("here")) as (address, _):
        url = f"https://{address}"
        done = run_to_end(
            [sys.executable, "-m", "agent", command, "--agent", url],
            SSL_CERT_FILE=str(authority.pair.cert),
        )
    assert said in done.stderr
