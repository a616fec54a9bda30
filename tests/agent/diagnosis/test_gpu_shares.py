"""Shares of jobs on a GPU that several use in turns, and what receipts make of them."""

from dataclasses import replace

import pytest

from agent.config.settings import Settings
from agent.diagnosis.gpu_shares import JOB_JOULES, JOB_SECONDS, JOB_SHARE, JOB_TENSOR, TOO_SHORT
from agent.diagnosis.job_watch import CostConfig
from agent.model import Absence, Reason
from agent.sources import process
from agent.sources.workload import JobConfig
from agent.status.jobs import receipt_text
from exporters.documents import jobs_document
from tests.support.machine_controls import start_process
from tests.support.machines import AgentBench, simulated

SETTINGS = Settings(JobConfig(info=True), CostConfig(gpu_hour=3.6))


def sharing(*turns: float) -> AgentBench:
    """A GPU on which a training shares its time with jobs of so many turns."""
    bench = simulated("dgx-h100:training", SETTINGS, 1).run(5)
    for number in turns:
        start_process(bench.machine, 0)
        on_gpu = bench.machine.gpus[0].processes
        on_gpu[-1] = replace(on_gpu[-1], turns=number)
    return bench


def shares(bench: AgentBench) -> list[float | None]:
    return [part for job in bench.jobs.running for part in job.shares.values()]


def why_not(bench: AgentBench) -> tuple[Reason, str]:
    (identity,) = bench.agent.gpus.inventory.gpus
    absence = bench.samples.absence(JOB_SHARE, *identity.key.labels)
    assert isinstance(absence, Absence)
    assert bench.samples.all(JOB_SHARE) == {}
    return absence.reason, absence.detail


@pytest.mark.parametrize("turns", [(3.0,), (2.0, 1.0), (0.0,)])
def test_jobs_have_their_part_of_all_that_a_shared_gpu_counts(turns: tuple[float, ...]) -> None:
    bench = sharing(*turns).run(75)
    expected = [part / (1.0 + sum(turns)) for part in (1.0, *turns)]
    assert shares(bench) == pytest.approx(expected, abs=0.01)
    assert sum(bench.samples.all(JOB_SHARE).values()) == pytest.approx(1.0)
    exported = sum(bench.samples.all(JOB_SECONDS).values())
    at_peak = sum(bench.samples.all(JOB_TENSOR).values())
    (account,) = bench.agent.diagnosis.accounts.values()
    before, joules = bench.jobs.running, sum(account.booked.energy.spent().values())
    after = bench.run(30).jobs.running

    def grown(name: str) -> list[float]:
        pairs = zip(before, after, strict=True)
        return [getattr(b.receipt, name) - getattr(a.receipt, name) for a, b in pairs]

    spent = sum(account.booked.energy.spent().values()) - joules
    assert sum(grown("joules")) == pytest.approx(spent, rel=1e-3)
    assert sum(grown("gpu_seconds")) == pytest.approx(30)
    counted = sum(bench.samples.all(JOB_SECONDS).values()) - exported
    assert counted == pytest.approx(30)
    assert sum(bench.samples.all(JOB_JOULES).values()) >= spent
    at_peak = sum(bench.samples.all(JOB_TENSOR).values()) - at_peak
    assert at_peak == pytest.approx(sum(grown("tensor")), rel=1e-3)
    assert sum(grown("cost")) == pytest.approx(30 * 3.6 / 3600)
    assert [part / 30 for part in grown("gpu_seconds")] == pytest.approx(expected, abs=0.01)
    assert not any(grown("undivided"))
    assert sum(job.receipt.held for job in after) == pytest.approx(1.0)


def test_less_than_a_minute_together_is_not_divided() -> None:
    bench = sharing(1.0).run(40)
    assert shares(bench) == [None, None]
    assert why_not(bench) == (Reason.NOT_ENOUGH, str(TOO_SHORT))
    first, second = bench.jobs.running
    assert second.receipt.gpu_seconds == 0.0
    assert first.receipt.undivided == pytest.approx(second.receipt.undivided, abs=1.5)
    assert second.receipt.undivided > 30
    assert "GPUs that it shared with others in unknown parts" in receipt_text(first.receipt)
    (gpu,) = jobs_document(bench.jobs)["running"][0]["gpus"]
    assert gpu["share"] is None


def test_clients_of_mps_are_not_divided() -> None:
    bench = sharing(1.0, 1.0)
    server = bench.machine.jobs.processes[bench.machine.gpus[0].processes[-1].pid]
    server.name, server.uid = process.MPS_SERVER, 0
    bench.run(75)
    assert shares(bench) == [None, None]
    assert why_not(bench) == (Reason.UNSUPPORTED, str(process.MPS_CLIENTS))


def test_a_job_alone_has_no_share_and_all_of_its_gpu() -> None:
    bench = simulated("dgx-h100:training", SETTINGS, 1).run(10)
    assert (shares(bench), bench.samples.all(JOB_SHARE)) == ([], {})
    (job,) = bench.jobs.running
    assert (job.receipt.held, job.receipt.undivided) == (1.0, 0.0)
