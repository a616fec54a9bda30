"""Culprit of a standing job, by NCCL's answers and this host's processes."""

from agent.jobs.grouping import JobGroup, JobMember
from agent.jobs.job import Culprit, GroupedBy
from agent.jobs.nccl_jobs import HangEvidence, NcclReading, hang_evidence
from agent.model import GpuKey
from tests.support.nccl_service import SimulatedRanks

HERE, THERE = "10.0.0.1", "10.0.0.2"
GPUS = [GpuKey(index, f"GPU-{index}") for index in range(2)]
GROUP = JobGroup(
    tuple(JobMember(gpu, 131 + n, 31 + n, "k") for n, gpu in enumerate(GPUS)), GroupedBy.NCCL
)
"""In a pid namespace of their own the two call themselves 31 and 32."""


def ranks(**fault: float) -> SimulatedRanks:
    return SimulatedRanks((31, 32, 41, 42), (HERE, HERE, THERE, THERE), **fault)  # type: ignore[arg-type]


def readings(job: SimulatedRanks, *times: float) -> list[NcclReading]:
    return [NcclReading(at, job.answer(at)) for at in times]


def test_a_rank_here_is_named_with_its_gpu_and_its_number_on_this_host() -> None:
    stands = hang_evidence(readings(ranks(stuck=1, stuck_at=10.0), 20, 25), GROUP)
    assert stands.still
    assert stands.culprits == (Culprit(1, 132, GPUS[1], HERE),)
    assert stands.behind is not None
    assert stands.behind.others_launched == stands.behind.launched + 1
    assert not stands.elsewhere


def test_a_rank_on_another_host_is_that_hosts_to_judge() -> None:
    stands = hang_evidence(readings(ranks(stuck=2, stuck_at=10.0), 20, 25), GROUP)
    assert stands.still
    assert stands.culprits == (Culprit(2, 41, None, THERE),)
    assert stands.elsewhere


def test_a_process_that_does_not_answer_is_named() -> None:
    job = ranks(stuck=1, stuck_at=10.0, stopped=1, stopped_at=10.0)
    (culprit,) = hang_evidence(readings(job, 20, 25), GROUP).culprits
    assert culprit == Culprit(1, 132, GPUS[1], HERE)


def test_a_healthy_job_does_not_stand() -> None:
    stands = hang_evidence(readings(ranks(), 20, 25), GROUP)
    assert stands.still is False
    assert stands.culprits == ()


def test_one_reading_says_nothing() -> None:
    assert hang_evidence([], GROUP) == HangEvidence()
    assert hang_evidence(readings(ranks(stuck=1, stuck_at=1.0), 20), GROUP) == HangEvidence()
