"""Reports from a real Prometheus: of two clusters of four nodes against what was simulated, money
of nodes with several prices, and GPUs that several jobs share, from the counters to the rows."""

import itertools
import json
import math
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

import pytest

from agent.cli.parser import run_command
from agent.report.questions import HARDWARE, from_prometheus
from tests.agent.report.test_report import server
from tests.support.alert_replay import run_promtool
from tests.support.nightly import NIGHTLY
from tests.support.prometheus import Prometheus
from tests.support.repository import ROOT

HOUR, SCRAPE = 3600.0, 15.0
NODES = 8
IDLE, BUSY, STARVED = "idle/none", "busy/none", "starved/disk"
POWER = {IDLE: 60.0, BUSY: 600.0, STARVED: 200.0}  # W
LONG = 8 * HOUR
"""Seconds of a job from which two scrapes, at its begin and its end, are less than that."""

SECONDS, JOULES = "dgx_gpu_state_seconds_total", "dgx_gpu_energy_joules_total"
JOB, INFO = "dgx_gpu_job_info", "dgx_gpu_info"
RULES = ROOT / "deploy/prometheus/dgx-report.yaml"


class Spell(NamedTuple):
    """State of a node's one GPU for some seconds; the job is 0 if there is none."""

    start: float
    end: float
    job: int
    user: str
    shares: dict[str, float]


def spells(dice: random.Random, span: float, numbers: Iterator[int]) -> Iterator[Spell]:
    """Jobs of a sixth to two thirds of a day with rests in between."""
    at = 0.0
    while at < span:
        rest = min(span, at + dice.uniform(0.1, 1.0) * HOUR)
        yield Spell(at, rest, 0, "", {IDLE: 1.0})
        at = min(span, rest + dice.uniform(4, 16) * HOUR)
        if at > rest:
            starved = dice.uniform(0.05, 0.6)
            shares = {BUSY: 1 - starved, STARVED: starved}
            yield Spell(rest, at, next(numbers), dice.choice(("ada", "bob", "eve")), shares)


class Booked:
    """The counters of a GPU, which are brought up to a time spell by spell."""

    def __init__(self, done: list[Spell]) -> None:
        self.seconds = dict.fromkeys(POWER, 0.0)
        self.joules, self._reached, self._left = 1e9, 0.0, list(reversed(done))

    def advance(self, at: float) -> None:
        while self._left and self._reached < at:
            spell = self._left[-1]
            until = min(at, spell.end)
            for pair, share in spell.shares.items():
                self.seconds[pair] += share * (until - self._reached)
                self.joules += POWER[pair] * share * (until - self._reached)
            self._reached = until
            if until == spell.end:
                self._left.pop()

    def job(self, at: float) -> Spell | None:
        now = self._left[-1] if self._left else None
        return now if now is not None and now.job and now.start <= at else None


def samples(name: str, done: list[Spell], began: float, phase: float) -> Iterator[tuple[str, str]]:
    """Metric and line of each scrape, beginning before the first spell."""
    node, cluster = name.split()
    labels = f'cluster="{cluster}",instance="{node}",job="dgx-telemetry",gpu="0",uuid="GPU-{name}"'
    booked, at = Booked(done), phase - 2 * SCRAPE
    while at < done[-1].end + 2 * SCRAPE:
        booked.advance(at)
        now = f"{began + at:.3f}"
        for pair, value in booked.seconds.items():
            state, cause = pair.split("/")
            shown = f'{{{labels},state="{state}",cause="{cause}"}} {value:.3f} {now}'
            yield SECONDS, f"{SECONDS}{shown}"
        yield INFO, f"{INFO}{{{labels}}} 1 {now}"
        yield JOULES, f"{JOULES}{{{labels}}} {booked.joules:.3f} {now}"
        job = booked.job(at)
        if job is not None:
            more = f'job_id="{job.job}",user="{job.user}",partition="long",account="bio"'
            yield JOB, f"{JOB}{{{labels},{more}}} 1 {now}"
        at += SCRAPE


def filled(folder: Path, machines: Mapping[str, list[Spell]], began: float) -> Prometheus:
    """A Prometheus that has scraped all of it, and evaluated the rules."""
    lines: dict[str, list[str]] = {
        metric: [f"# TYPE {metric.removesuffix('_total')} {kind}"]
        for metric, kind in (
            *((SECONDS, "counter"), (JOULES, "counter")),
            *((JOB, "gauge"), (INFO, "gauge")),
        )
    }
    for number, (node, done) in enumerate(machines.items()):
        for metric, line in samples(node, done, began, number * SCRAPE / NODES):
            lines[metric].append(line)
    whole = folder / "samples"
    whole.write_text("\n".join(line for some in lines.values() for line in some) + "\n# EOF\n")
    # What is imported does not say when a series ends; what is scraped does.
    database = Prometheus(folder / "prometheus", {}, [], lookback=f"{SCRAPE + 1:.0f}s")
    database.backfill(whole)
    end = began + max(done[-1].end for done in machines.values()) + 300
    with database:
        # promtool stops at the first block of two hours in which no evaluation is due.
        start = began - began % (2 * HOUR)
        words = [f"--start={start:.0f}", f"--end={end:.0f}", "--eval-interval=5m"]
        words += [f"--url={database.address}", f"--output-dir={database.data}", str(RULES)]
        command = ["promtool", "tsdb", "create-blocks-from", "rules", *words]
        subprocess.run(command, check=True, capture_output=True)
    return database


def truth(machines: Mapping[str, list[Spell]], by: str) -> dict[str, dict[str, float]]:
    """Seconds by pair, and joules."""
    true: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for node, done in machines.items():
        for spell in done:
            names = {"node": node, "user": spell.user, "job": str(spell.job), "account": "bio"}
            names["cluster"] = node.split()[1]
            for pair, share in spell.shares.items() if spell.job or by in HARDWARE else ():
                seconds = share * (spell.end - spell.start)
                true[names[by]][pair] += seconds
                true[names[by]]["joules"] += POWER[pair] * seconds
    return true


def report(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> list[dict[str, Any]]:
    assert run_command(["report", "--prometheus", address, *words, "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


@pytest.mark.prometheus
@pytest.mark.parametrize("days", [0.5, pytest.param(7, marks=NIGHTLY)])
def test_what_is_reported_is_what_was(
    days: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To 0.1 % by cluster, node, user and account, and of each long job; both clusters use the same
    names for their nodes."""
    dice, span = random.Random(7), days * 24 * HOUR
    numbers = itertools.count(1000)
    machines = {
        f"node{n // 2} {'east' if n % 2 else 'west'}": list(spells(dice, span, numbers))
        for n in range(NODES)
    }
    off: dict[str, float] = {}
    with filled(tmp_path, machines, math.floor(time.time() - span - 600)) as database:
        since = f"--since={math.ceil(span / 60) + 30}m"
        for by in ("cluster", "node", "user", "account", "job"):
            found = report(capsys, database.address, since, "--by", by)
            rows = {f"{r['name']} {r['cluster']}" if by == "node" else r["name"]: r for r in found}
            shares = []
            for name, parts in truth(machines, by).items():
                joules = parts.pop("joules")
                total = sum(parts.values())
                if total >= LONG:
                    shown = rows[name]["gpu_hours_by_state"]
                    shares += [abs(shown[pair] * HOUR - parts[pair]) / total for pair in parts]
                    shares.append(abs(rows[name]["kwh"] * 3.6e6 / joules - 1))
            assert shares
            off[by] = max(shares)
    print("at most off:", {by: f"{share:.4%}" for by, share in off.items()})
    assert max(off.values()) < 1e-3


OF_STATE = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
WEST, EAST, FREE = (
    f'instance="{node}",cluster="{cluster}",job="dgx-telemetry"'
    for node, cluster in (("n1", "west"), ("n1", "east"), ("n2", "west"))
)
PRICES = ((WEST, 4, 1200), (f'{WEST},rack="r1"', 2, 600), (EAST, 3, 600))
"""With their age (s): the last node has none. The first has a rack since its price fell, and the
higher one counts."""
PARTS = "cost", "cost_lost", "unpriced_gpu_hours"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that has seen an hour of each node."""
    now, lines = time.time(), [f"# TYPE {OF_STATE} gauge"]
    for labels in (
        f'{WEST},user="ada",state="busy",cause="none"',
        f'{EAST},user="eve",state="starved",cause="disk"',
        f'{FREE},user="ada",state="starved",cause="disk"',
    ):
        named = f'{OF_STATE}{{{labels},job_id="1"}}'
        lines += [f"{named} 300 {now - age:.0f}" for age in range(3600, 0, -300)]
    lines.append("# TYPE dgx_cost_gpu_hour gauge")
    lines += [f"dgx_cost_gpu_hour{{{node}}} {each} {now - age:.0f}" for node, each, age in PRICES]
    (tmp_path / "samples").write_text("\n".join([*lines, "# EOF\n"]))
    database = Prometheus(tmp_path / "prometheus", {}, [])
    database.backfill(tmp_path / "samples")
    with database:
        yield database.address


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("by", "expected", "line"),
    [
        (
            "node",
            {"n1west": [4, 0, 0], "n1east": [3, 3, 0], "n2west": [None, None, 1]},
            "n2 west 50 % 1.00 0 % 1.00 100 % 0.00 - starved by disk",
        ),
        (
            "user",
            {"ada": [4, 0, 1], "eve": [3, 3, 0]},
            "ada 2.00 2.00 50 % 1.00 50 % 0.00 >= 0.00 starved by disk",
        ),
    ],
)
def test_each_node_costs_its_own_price(
    by: str, expected: Any, line: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["report", "--prometheus", address, "--since", "2h", "--by", by]
    assert run_command([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {row["name"] + row.get("cluster", ""): [row[part] for part in PARTS] for row in rows}
    assert found == expected
    assert run_command(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    cost = "3.00 to 4.00 per GPU-hour; 1.00 GPU-hours on nodes without a price"
    assert f"Cost >= 7.00 ({cost}), of which lost >= 3.00." in text
    assert "Lost: 2.00 GPU-hours (>= 3.00), 67 % of all: starved by disk 2.00 (>= 3.00)." in text
    assert line in text


GPU = 'instance="n",job="dgx-telemetry",gpu="0",uuid="G"'
OF_A, OF_B = (
    'job_id="a",user="ada",partition="",account=""',
    'job_id="b",user="bob",partition="",account=""',
)
AT_WORK = 'state="busy",cause="none"'


@pytest.mark.prometheus
def test_records_count_the_shares_of_jobs_and_the_whole_gpu_for_no_job(tmp_path: Path) -> None:
    copy(ROOT / "deploy/prometheus/dgx-report.yaml", tmp_path)
    series = {
        f"dgx_gpu_state_seconds_total{{{GPU},{AT_WORK}}}": "0+15x60",
        f"dgx_gpu_energy_joules_total{{{GPU}}}": "0+6000x60",
        f"dgx_gpu_info{{{GPU}}}": "1+0x60",
        f"dgx_gpu_job_info{{{GPU},{OF_A}}}": "1+0x60",
        f"dgx_gpu_job_info{{{GPU},{OF_B}}}": "1+0x60",
        f"dgx_gpu_job_seconds_total{{{GPU},{OF_A},{AT_WORK}}}": "0+11.25x60",
        f"dgx_gpu_job_seconds_total{{{GPU},{OF_B},{AT_WORK}}}": "0+3.75x60",
        f"dgx_gpu_job_joules_total{{{GPU},{OF_A}}}": "0+4500x60",
        f"dgx_gpu_job_tensor_throughput_seconds_total{{{GPU},{OF_B}}}": "0+1.5x60",
    }

    def expected(expr: str, *samples: tuple[str, float]) -> dict[str, Any]:
        found = [{"labels": labels, "value": value} for labels, value in samples]
        return {"expr": expr, "eval_time": "10m", "exp_samples": found}

    seconds = "instance_job_id_state_cause:dgx_gpu_job_seconds:increase5m"
    whole = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
    joules = "instance_job_id:dgx_gpu_job_joules:increase5m"
    tensor = "instance_job_id:dgx_gpu_job_tensor_throughput_seconds:increase5m"
    node = 'instance="n",job="dgx-telemetry"'
    asked = [
        expected(
            seconds,
            (f"{seconds}{{{node},{OF_A},{AT_WORK}}}", 225),
            (f"{seconds}{{{node},{OF_B},{AT_WORK}}}", 75),
        ),
        expected(whole, (f"{whole}{{{node},{AT_WORK}}}", 300)),
        expected(joules, (f"{joules}{{{node},{OF_A}}}", 90_000)),
        expected(tensor, (f"{tensor}{{{node},{OF_B}}}", 30)),
    ]
    test = {
        "rule_files": ["dgx-report.yaml"],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": asked,
            }
        ],
    }
    assert run_promtool(tmp_path, test) == ""


@pytest.mark.parametrize(("by", "hours"), [("user", 2.0), ("node", 1.0)])
def test_a_report_adds_the_time_of_a_job_alone_and_its_part_of_shared_gpus(
    by: str, hours: float
) -> None:
    labels = {"instance": "n", "user": "ada", "state": "busy", "cause": "none"}

    def answer(_: str, query: str) -> dict[str, Any]:
        found = [{"metric": labels, "value": [0, "900" if "tensor" in query else "3600"]}]
        return {"data": {"result": found if "seconds" in query and "unless" not in query else []}}

    with server(answer) as (address, _):
        (row,) = from_prometheus(f"http://{address}", "1d", by, "")
    assert row.total == hours * 3600
    assert row.goodput.of_peak == 0.25


@pytest.mark.prometheus
@pytest.mark.parametrize("by", ["user", "node"])
def test_throughput_is_that_of_the_work_for_which_it_is_known(by: str, tmp_path: Path) -> None:
    """The counter begins half-way in the window of four hours, and once does not grow."""
    node = f'instance="n",job="dgx-telemetry",{OF_A}'
    busy = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
    tensor = "instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m"
    series = {
        f"{busy}{{{node},{AT_WORK}}}": "300x60",
        f'{busy}{{{node},state="idle",cause="none"}}': "300x60",
        f"{tensor}{{{node}}}": "_x36 120x6 stale 120x17",
    }
    labels = {"instance": "n", "user": "ada", "state": "busy", "cause": "none"}
    values = {busy: "14400", tensor: "2760", "unless": "7200"}

    def answer(_: str, query: str) -> dict[str, Any]:
        value = next((v for k, v in reversed(values.items()) if k in query), None)
        known = value and "dgx_gpu_job_" not in query and "energy" not in query
        return {"data": {"result": [{"metric": labels, "value": [0, value]}] if known else []}}

    with server(answer) as (address, asked):
        (row,) = from_prometheus(f"http://{address}", "4h", by, "")
    assert row.goodput.of_peak == pytest.approx(2760 / 7200)
    (query,) = (one for one, _ in asked if "unless" in one and "dgx_gpu_job_" not in one)
    name = 'user="ada"' if by == "user" else 'instance="n"'
    expected = [{"labels": f'{{{name},state="{s}"}}', "value": 7200} for s in ("busy", "idle")]
    tests = {"expr": query, "eval_time": "5h", "exp_samples": expected}
    one = {
        "interval": "5m",
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "promql_expr_test": [tests],
    }
    assert run_promtool(tmp_path, {"tests": [one]}) == ""
