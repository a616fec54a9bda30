"""`/api/v1/jobs`: running jobs and receipts, as JSON, plain and gzip alike."""

import asyncio
import gzip
import json
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from agent.jobs.identity import JobLabels
from agent.jobs.job import Hang, Saving
from agent.model import BUSY, Cause, GpuKey, Pair, State
from agent.status.jobs import cost_text, hours_text, receipt_text, run_before, saving_text
from exporters.http import AgentPages
from exporters.jobs_json import jobs_document
from exporters.prometheus import Exposition
from tests.support.machines import AgentBench, simulated


async def asked(bench: AgentBench, coding: str) -> tuple[int, str, bytes]:
    poller = bench.agent.poller
    exposition = Exposition(lambda: poller.latest, bench.clock.monotonic, process=False)
    shown = bench.agent.jobs.current
    app = AgentPages(exposition, lambda: poller.latest, jobs=lambda: shown).application()
    async with TestClient(TestServer(app), auto_decompress=False) as client:
        headers = {"Accept-Encoding": coding}
        async with client.get("/api/v1/jobs", headers=headers) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.read()


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_jobs_are_served_with_their_receipts(coding: str) -> None:
    bench = simulated("dgx-station-v100:training").run(30)
    bench.machine.set_scenario("held")
    bench.run(10)
    status, kind, body = asyncio.run(asked(bench, coding))
    document = json.loads(gzip.decompress(body) if coding == "gzip" else body)
    assert (status, kind) == (200, "application/json; charset=utf-8")
    assert document == json.loads(json.dumps(jobs_document(bench.agent.jobs.current)))
    assert len(document["running"]) + len(document["ended"]) >= 1
    for receipt in document["ended"]:
        assert receipt["receipt"] == receipt_text(bench.agent.jobs.current.ended[0])


def test_a_run_before_is_of_the_same_name_and_user() -> None:
    found = simulated("gtx-1080:training").run(20).agent.jobs.current.running[0].receipt
    now = replace(found, id="2-2", name="train", labels=JobLabels(user="ada"), began=200.0)
    before = replace(now, id="1-1", began=100.0, ended=150.0)
    assert run_before(now, [now, before]) == "1-1"
    assert not run_before(before, [now, before]), "what came later is not before"
    assert not run_before(now, [replace(before, labels=JobLabels(user="eve"))])
    assert not run_before(now, [replace(before, name="other")])
    assert not run_before(replace(now, name=""), [replace(before, name="")]), "nameless ones"


def test_the_price_of_a_job_is_not_that_of_its_loss_and_less_is_less_time() -> None:
    shown = simulated("dgx-station-v100:training").run(20).agent.jobs.current
    (job,) = shown.running
    disk: Pair = (State.STARVED, Cause.DISK)
    cpu: Pair = (State.STARVED, Cause.CPU)
    slowest = GpuKey(2, "GPU-2")
    runs = replace(
        job.receipt, seconds={BUSY: 5400.0, disk: 1800.0}, watched=1800.0, cost=8.0, ended=None
    )
    assert cost_text(runs) == "cost 8.00 so far, of which lost 2.00; its GPUs cost 16.00 per hour"
    hours = "GPU-hours: 2.00; lost 0.50 (starved by disk 25 % of all); busy 75 %"
    assert hours_text(runs) == hours, "busy is no loss"
    assert (
        hours_text(replace(runs, seconds={BUSY: 36e3})) == "GPU-hours: 10.00; lost none; busy 100 %"
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
