"""GPUs that several jobs share, from the agent's counters to the rows of a report."""

from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from agent.report.questions import from_prometheus
from tests.agent.report.test_report import server
from tests.support.alert_replay import run_promtool
from tests.support.repository import ROOT

GPU = 'instance="n",job="dgx-telemetry",gpu="0",uuid="G"'
OF_A, OF_B = (
    'job_id="a",user="ada",partition="",account=""',
    'job_id="b",user="bob",partition="",account=""',
)
BUSY = 'state="busy",cause="none"'


@pytest.mark.prometheus
def test_records_count_the_shares_of_jobs_and_the_whole_gpu_for_no_job(tmp_path: Path) -> None:
    copy(ROOT / "deploy/prometheus/dgx-report.yaml", tmp_path)
    series = {
        f"dgx_gpu_state_seconds_total{{{GPU},{BUSY}}}": "0+15x60",
        f"dgx_gpu_energy_joules_total{{{GPU}}}": "0+6000x60",
        f"dgx_gpu_info{{{GPU}}}": "1+0x60",
        f"dgx_gpu_job_info{{{GPU},{OF_A}}}": "1+0x60",
        f"dgx_gpu_job_info{{{GPU},{OF_B}}}": "1+0x60",
        f"dgx_gpu_job_seconds_total{{{GPU},{OF_A},{BUSY}}}": "0+11.25x60",
        f"dgx_gpu_job_seconds_total{{{GPU},{OF_B},{BUSY}}}": "0+3.75x60",
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
            (f"{seconds}{{{node},{OF_A},{BUSY}}}", 225),
            (f"{seconds}{{{node},{OF_B},{BUSY}}}", 75),
        ),
        expected(whole, (f"{whole}{{{node},{BUSY}}}", 300)),
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
        f"{busy}{{{node},{BUSY}}}": "300x60",
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
