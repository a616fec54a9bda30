"""The snapshot and `/api/v1/jobs` as JSON, and METRICS.md."""

import asyncio
import gzip
import json
from dataclasses import replace
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from agent import model
from agent.jobs.identity import JobLabels
from agent.jobs.job import Hang, Saving
from agent.model import BUSY as BUSY_PAIR
from agent.model import Absence, Cause, GpuKey, Metric, Pair, Reason, Sample, SignalQuality, State
from agent.status.jobs import cost_text, hours_text, receipt_text, run_before, saving_text
from exporters.documents import document, instant, jobs_document
from exporters.http import AgentPages
from exporters.prometheus import Exposition
from exporters.reference import reference
from tests.support.exposition import (
    CLOCK,
    POWER,
    RICH,
    A,
    power,
    reading,
    snapshot,
)
from tests.support.machines import AgentBench, simulated


def test_the_whole_document() -> None:
    expected = json.loads(Path(__file__).with_name("documents.json").read_text(encoding="utf-8"))
    assert document(RICH, 1.0) == expected


def test_expired_values_are_stalled() -> None:
    (gpu,) = document(snapshot(reading("gpu0", power(A, 1.0))), 3.5)["gpus"]
    assert gpu["values"] == {}
    expired = {"reason": "stalled", "detail": "its data expired"}
    assert gpu["absent"] == {"dgx_gpu_power_watts": expired}


def test_a_gpu_whose_index_shifted_is_still_one() -> None:
    before = reading("before", power(("1", "GPU-a"), 1.0), Sample(CLOCK, ("1", "GPU-a", "sm"), 5.0))
    after = reading("after", power(("0", "GPU-a"), 2.0), at=1.0)
    for order in ((before, after), (after, before)):
        (gpu,) = document(snapshot(*order), 1.0)["gpus"]
        assert (gpu["gpu"], gpu["values"]["dgx_gpu_power_watts"]) == ("0", 2.0)
        assert gpu["values"]["dgx_gpu_clock_hertz"] == [{"clock": "sm", "value": 5.0}]


def test_a_verdict_says_since_when() -> None:
    verdict = model.Verdict(*BUSY_PAIR, SignalQuality.GPM, {BUSY_PAIR: 1.0}, since=-10.0)
    shown = replace(snapshot(reading("gpu0", power(A, 1.0))), verdicts={GpuKey(0, A[1]): verdict})
    (gpu,) = document(shown, 0.0)["gpus"]
    assert gpu["verdict"]["since"] == instant(shown.wall - shown.at - 10.0)


def test_an_absence_without_labels_belongs_to_the_host() -> None:
    lost = replace(reading("x"), absences=(Absence(POWER, (), Reason.NO_DRIVER, "no driver"),))
    content = document(snapshot(lost), 0.0)
    assert content["gpus"] == []
    (absent,) = content["absent"]
    assert (absent["metric"], absent["reason"]) == ("dgx_gpu_power_watts", "no_driver")


def test_a_text_of_the_reference_breaks_no_table() -> None:
    """The page itself is compared with METRICS.md."""
    odd = Metric("dgx_gpu_odd_ratio", "Either |a|\nor <b>.", "x")
    row = "| `dgx_gpu_odd_ratio` | gauge |  | all | Either \\|a\\| or &lt;b>. | x |"
    assert row in reference([odd]).splitlines()


async def asked(bench: AgentBench, coding: str) -> tuple[int, str, bytes]:
    poller = bench.agent.poller
    exposition = Exposition(lambda: poller.latest, bench.clock.monotonic, process=False)
    shown = bench.jobs
    app = AgentPages(exposition, lambda: poller.latest, jobs=lambda: shown).application()
    async with TestClient(TestServer(app), auto_decompress=False) as client:
        headers = {"Accept-Encoding": coding}
        async with client.get("/api/v1/jobs", headers=headers) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.read()


def test_jobs_are_served_with_their_receipts() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(30)
    bench.machine.set_scenario("held")
    status, kind, body = asyncio.run(asked(bench.run(10), "identity"))
    assert (status, kind) == (200, "application/json; charset=utf-8")
    assert gzip.decompress(asyncio.run(asked(bench, "gzip"))[2]) == body
    document = json.loads(body)
    assert document == json.loads(json.dumps(jobs_document(bench.jobs)))
    assert len(document["running"]) + len(document["ended"]) >= 1
    for receipt in document["ended"]:
        assert receipt["receipt"] == receipt_text(bench.jobs.ended[0])


def test_a_run_before_is_of_the_same_name_and_user() -> None:
    found = simulated("gtx-1080:training").run(20).jobs.running[0].receipt
    now = replace(found, id="2-2", name="train", labels=JobLabels(user="ada"), began=200.0)
    before = replace(now, id="1-1", began=100.0, ended=150.0)
    assert run_before(now, [now, before]) == "1-1"
    assert not run_before(before, [now, before]), "what came later is not before"
    assert not run_before(now, [replace(before, labels=JobLabels(user="eve"))])
    assert not run_before(now, [replace(before, name="other")])
    assert not run_before(replace(now, name=""), [replace(before, name="")]), "nameless ones"


def test_the_price_of_a_job_is_not_that_of_its_loss_and_less_is_less_time() -> None:
    shown = simulated("dgx-station-v100:training").run(20).jobs
    (job,) = shown.running
    disk: Pair = (State.STARVED, Cause.DISK)
    cpu: Pair = (State.STARVED, Cause.CPU)
    slowest = GpuKey(2, "GPU-2")
    runs = replace(
        job.receipt, seconds={BUSY_PAIR: 5400.0, disk: 1800.0}, watched=1800.0, cost=8.0, ended=None
    )
    assert cost_text(runs) == "cost 8.00 so far, of which lost 2.00; its GPUs cost 16.00 per hour"
    hours = "GPU-hours: 2.00; lost 0.50 (starved by disk 25 % of all); busy 75 %"
    assert hours_text(runs) == hours, "busy is no loss"
    assert (
        hours_text(replace(runs, seconds={BUSY_PAIR: 36e3}))
        == "GPU-hours: 10.00; lost none; busy 100 %"
    )
    assert cost_text(replace(runs, ended=1.0)) == "cost 8.00, of which lost 2.00"
    assert (
        cost_text(replace(runs, ended=1.0, currency="EUR"))
        == "cost 8.00 EUR, of which lost 2.00 EUR"
    )
    sent = hours_text(replace(runs, seconds={(State.COMMUNICATING, Cause.NVLINK): 3600.0}))
    assert sent.endswith("communicating over NVLink 100 % (not counted as lost)")
    assert cost_text(replace(runs, cost=None)) == ""
    assert cost_text(replace(runs, unobserved=7200.0, cost=16.0)).endswith(
        "; its GPUs cost 16.00 per hour"
    )
    less = "without the time starved by disk, the job would so far have taken up to 25 % less time "
    for gpu, then in ((None, ""), (slowest, "; then GPU 2, starved by the CPU, sets the pace")):
        saving = Saving(disk, 1800.0, 450.0, cpu, gpu)
        assert saving_text(replace(runs, savings=(saving,))) == f"{less}for the same work{then}"
    nearly_all = Saving(disk, 1800.0, 1790.0, cpu, None)
    assert saving_text(replace(runs, savings=(nearly_all,))) == "", "too little work was seen"
    hung, held = (State.HUNG, Cause.NONE), (State.HELD, Cause.NONE)
    for pair, rest in ((hung, disk), (disk, held), (disk, hung)):
        found = replace(runs, savings=(Saving(pair, 1800.0, 450.0, rest, slowest),))
        assert saving_text(found).endswith("for the same work"), "a GPU at rest sets no pace"
    waits = replace(job, receipt=found, hang=Hang(0.0))
    (document,) = jobs_document(shown._replace(running=(waits,)))["running"]
    assert saving_text(waits.receipt, hung=True) == "it does no work until its hang ends"
    assert document["receipt"].endswith("; it does no work until its hang ends")
