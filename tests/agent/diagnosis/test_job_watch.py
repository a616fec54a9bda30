"""Jobs of whole simulated machines: who belongs together, how they get on, what they cost."""

import json

import pytest
from msgspec.structs import replace

from agent.config.settings import Settings
from agent.diagnosis import accounting, job_watch
from agent.diagnosis.job_watch import CostConfig
from agent.jobs.job import GroupedBy, Job
from agent.model import Cause, Reason, State
from agent.sources.workload import JobConfig
from agent.status.jobs import receipt_text, sentence
from exporters.documents import jobs_document
from tests.support.machine_controls import start_process, stop_process
from tests.support.machines import AgentBench, played, simulated
from tests.support.nightly import shortly

SMALL = "dgx-station-v100"


def only(bench: AgentBench) -> Job:
    (job,) = bench.jobs.running
    return job


def test_a_training_is_one_job_of_all_gpus() -> None:
    moment = played("dgx-h100:training").at(75)
    (job,) = moment.jobs.running
    assert job.grouped_by is GroupedBy.ANCESTOR
    assert [gpu.index for gpu in job.receipt.gpus] == [0, 1]
    assert job.step == pytest.approx(0.23, rel=0.01)
    assert job.reference == pytest.approx(0.23, rel=0.01)
    assert job.receipt.steps > 45 / 0.23
    assert (job.hang, job.slower, job.never_waits) == (None, None, None)
    assert (job.receipt.name, job.receipt.labels.user) == ("", ""), "not unless it is asked for"
    assert set(moment.samples.all(job_watch.REFERENCE).values()) == {job.reference}


def test_ranks_that_share_no_ancestor_are_joined_by_what_they_do() -> None:
    bench = simulated("dgx-h100:late-rank", gpus=2)
    with bench.machine.lock:
        bench.machine.advance()
        for team in bench.machine.jobs.teams:  # as in a container each
            team.trainer.parent = 1
    shown = bench.run(20).jobs.running
    assert [job.grouped_by for job in shown] == [GroupedBy.ALONE] * 2
    job = only(bench.run(150))
    assert job.grouped_by is GroupedBy.LOCK_STEP
    assert job.receipt.id.endswith(f"-{min(job.pids)}"), "not that of any of them"
    waits = bench.samples.all(accounting.WAITS_FOR)
    assert {labels[-1] for labels in waits} == {job.receipt.gpus[1].uuid}


def test_servers_are_jobs_of_their_own() -> None:
    jobs = played("dgx-h100:no-demand").at(20).jobs.running
    assert len(jobs) == 2
    assert {job.grouped_by for job in jobs} == {GroupedBy.ALONE}


def test_names_are_reported_where_the_configuration_says_so() -> None:
    job = only(simulated(f"{SMALL}:training", Settings(JobConfig(info=True))).run(5))
    assert job.receipt.name.startswith("train.py:")
    assert job.receipt.labels.user == "researcher"


def test_the_gpu_that_never_waits_is_named() -> None:
    (job,) = played("dgx-h100:late-rank").at(60).jobs.running
    assert job.never_waits is not None
    assert job.never_waits.index == 1


@pytest.mark.parametrize(
    "name",
    shortly(
        [
            *("dgx-a100:checkpoint", f"{SMALL}:training", "dgx-h100:late-rank", "dgx-h100:held"),
            *("dgx-h100:starved-peer", f"{SMALL}:starved-disk", "dgx-h100:no-demand"),
        ],
        {"dgx-a100:checkpoint", "dgx-h100:held", "dgx-h100:late-rank", "dgx-h100:no-demand"},
    ),
)
def test_what_works_or_waits_for_work_does_not_hang(name: str) -> None:
    moments = played(name).until(75)
    assert all(job.hang is None for moment in moments for job in moment.jobs.running)
    assert moments[-1].samples.all(job_watch.HUNG) == {}


def test_a_job_that_ends_leaves_a_receipt() -> None:
    bench = simulated("dgx-h100:starved-disk", Settings(CostConfig(gpu_hour=3.6)), gpus=2).run(100)
    bench.machine.set_scenario("idle")
    shown = bench.run(10).jobs
    assert shown.running == ()
    (receipt,) = shown.ended
    assert receipt.ended is not None
    assert receipt.watched == pytest.approx(104, abs=8)
    assert receipt.gpu_seconds + receipt.unobserved == pytest.approx(2 * receipt.watched, rel=0.01)
    disk = receipt.seconds[State.STARVED, Cause.DISK]
    assert disk / receipt.gpu_seconds == pytest.approx(0.65, abs=0.03)  # it decodes too
    assert receipt.cost == pytest.approx(receipt.gpu_seconds / 1000, abs=0.001)
    assert receipt.savings[0].pair == (State.STARVED, Cause.DISK)
    assert receipt.savings[0].saved == pytest.approx(disk / 2, rel=0.05)
    assert receipt.mean_rate is None  # of eight loaders it is not known how many make a period
    assert receipt.joules is not None
    assert 2 * 100 * 100 < receipt.joules < 2 * 110 * 700


def test_a_gpu_that_a_job_comes_back_to_is_counted_on() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(30)
    gpu = bench.machine.gpus[1]
    processes, gpu.processes = gpu.processes, []
    away = 0
    while len(only(bench.run(1)).pids) == 2 or not away:  # until the next read of processes
        away += 1
    gpu.processes = processes
    bench.run(60)
    receipt = only(bench).receipt
    counted = receipt.gpu_seconds + receipt.unobserved
    assert counted == pytest.approx(2 * receipt.watched, abs=4)


def test_what_was_not_observed_is_reported_and_draws_nothing() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(60)
    before = only(bench).receipt
    bench.clock.advance(600)
    receipt = only(bench.run(2)).receipt
    assert receipt.unobserved == pytest.approx(2 * 600, rel=0.02)
    assert before.joules is not None
    assert receipt.joules == pytest.approx(before.joules, rel=0.1)
    assert "0.33 that were not observed" in receipt_text(receipt)


def test_receipts_are_bounded_and_tests_of_a_moment_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_watch, "JOBS_KEPT", 2)
    bench = simulated("gtx-1080:idle")
    for _ in range(3):
        pid = start_process(bench.machine, 0)
        stop_process(bench.run(16).machine, 0, pid)
        bench.run(6)
    assert len(bench.jobs.ended) == 2
    newest = bench.jobs.ended[0]
    pid = start_process(bench.machine, 0)
    stop_process(bench.run(3).machine, 0, pid)
    assert bench.run(6).jobs.ended[0] == newest


def test_a_job_that_becomes_slower_is_reported_within_a_minute_with_the_time() -> None:
    bench = simulated("dgx-a100:training", gpus=2).run(100)
    bench.machine.advance()
    at = bench.clock.time()
    for gpu in bench.machine.gpus:
        gpu.take(bench.machine.now, replace(gpu.work, step=gpu.work.step * 1.06))
    for _ in range(60):
        if only(bench.run(1)).slower:
            break
    slower = only(bench).slower
    assert slower is not None
    assert slower.since == pytest.approx(at, abs=10)
    slower = only(bench.run(30)).slower
    assert slower is not None
    assert slower.ratio == pytest.approx(0.06, abs=0.01), "now that each of its GPUs shows it"
    assert slower.since == pytest.approx(at, abs=10)


@pytest.mark.parametrize("name", ["dgx-h100:late-rank", "dgx-h100:hang", "titan-x-pascal:held"])
def test_the_document_is_json_and_says_what_the_page_says(name: str) -> None:
    jobs = played(name).at(45).jobs
    (job,) = json.loads(json.dumps(jobs_document(jobs), allow_nan=False))["running"]
    assert job["sentence"] == sentence(jobs.running[0])
    assert job["sentence"]
    assert (job["steps_per_second"] is None) == (job["why_no_steps"] is not None)


def test_a_job_without_a_rhythm_says_why() -> None:
    (job,) = played("titan-x-pascal:held").at(60).jobs.running
    assert job.why_not in (Reason.FLAT, Reason.IRREGULAR)
