"""Conditions under which a job that stands still hangs, and the process it waits for."""

import pytest

from agent.diagnosis import accounting, job_watch
from agent.diagnosis.hang import REMOTE_AFTER, hung, late_gpus
from agent.diagnosis.state_seconds import LEADER_WINDOW
from agent.diagnosis.tick_context import GpuHistory, RankActivity
from agent.jobs.job import CulpritState
from agent.model import GpuKey, Metric
from agent.sources import nvlink, pcie, process
from agent.sources import workload as work
from tests.agent.diagnosis.test_division import PEER, PEER_LABELS, SPINS, job, links
from tests.support.evidence import GPU, QUIET, Figures, evidence, threads
from tests.support.machines import AgentBench, simulated

STOPPED: Figures = {(work.STOPPED, (*PEER_LABELS, "11")): 1}
TWO_HOSTS: Figures = {(work.HOSTS, GPU): 2, (work.HOSTS, PEER_LABELS): 2}
LAUNCHES: Figures = {
    **{(nvlink.LINKS, gpu): 18 for gpu in (GPU, PEER_LABELS)},
    **{(pcie.RECEIVED, gpu): 4e7 for gpu in (GPU, PEER_LABELS)},
}
READ: Figures = {(pcie.TRANSMITTED, gpu): 4e7 for gpu in (GPU, PEER_LABELS)}  # by a monitor
ONE_HOST: Figures = {(work.HOSTS, GPU): 1, (work.HOSTS, PEER_LABELS): 1}


def verdict(
    figures: Figures, seconds: float = LEADER_WINDOW, *, abroad: bool = False
) -> bool | None:
    """True for a hang, false for a wait for another host, None for neither."""
    seen = GpuHistory(waits_for=seconds, sent_abroad=abroad)
    e = evidence(figures, links(0.0), history=seen, others={PEER: seen})
    found = hung(e)
    return None if found is None else found[0]


SPINNING: Figures = {**job(SPINS, SPINS, 0.0), **threads(GPU, 1.0), **threads(PEER_LABELS, 1.0)}
WAITING: Figures = {**job(SPINS, QUIET, 0.0), **threads(GPU, 1.0), **threads(PEER_LABELS, 0.0)}
RESTING: Figures = {**job(QUIET, QUIET, 0.0), **threads(GPU, 0.0), **threads(PEER_LABELS, 0.0)}


@pytest.mark.parametrize(
    ("figures", "seconds", "expected"),
    [
        (SPINNING, LEADER_WINDOW, True),
        (SPINNING, LEADER_WINDOW - 1, None),
        (WAITING, LEADER_WINDOW, True),
        ({**RESTING, **STOPPED}, LEADER_WINDOW, True),
        ({**SPINNING, **LAUNCHES}, LEADER_WINDOW, None),  # small kernels
        ({**SPINNING, **LAUNCHES, **READ}, LEADER_WINDOW, True),
        (RESTING, 3600.0, None),  # a server without requests, a notebook
        ({**SPINNING, **ONE_HOST}, LEADER_WINDOW, True),
        ({**SPINNING, **TWO_HOSTS}, LEADER_WINDOW, False),
        ({**SPINNING, **TWO_HOSTS}, REMOTE_AFTER - 1, False),
        ({**SPINNING, **TWO_HOSTS}, REMOTE_AFTER, True),
        ({**WAITING, **TWO_HOSTS}, LEADER_WINDOW, True),  # a process here explains it
        ({**SPINNING, **STOPPED, **TWO_HOSTS}, LEADER_WINDOW, True),
    ],
)
def test_when_it_hangs(figures: Figures, seconds: float, expected: bool | None) -> None:
    assert verdict(figures, seconds) is expected


def test_traffic_of_the_host_stands_for_an_environment_that_is_hidden() -> None:
    assert verdict(SPINNING, abroad=True) is False
    assert verdict({**SPINNING, **ONE_HOST}, abroad=True) is True
    assert verdict(WAITING, abroad=True) is True


A, B, C = (GpuKey(index, f"GPU-{index}") for index in range(3))
STOPS = RankActivity(stopped=True)
SLEEPS = RankActivity(asleep=True)
KERNEL = RankActivity(kernels_spin=True)
POLLING = RankActivity(kernels_spin=True, thread_spins=True)
BLOCKED = RankActivity(kernels_spin=True, asleep=True)


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        ((KERNEL, STOPS), {B}),
        ((SLEEPS, STOPS), {B}),  # the stopped one first
        ((KERNEL, SLEEPS), {B}),
        ((BLOCKED, SLEEPS), {B}),  # waits in its kernel, with a thread that sleeps
        ((POLLING, BLOCKED), {B}),  # both kernels spin, one process sleeps
        ((POLLING, POLLING), set()),
        ((BLOCKED, BLOCKED), set()),
        ((SLEEPS, SLEEPS), set()),
        ((KERNEL, SLEEPS, SLEEPS), {B, C}),
        ((KERNEL, RankActivity(), SLEEPS), set()),  # one may work
    ],
)
def test_whom_it_waits_for(ranks: tuple[RankActivity, ...], late: set[GpuKey]) -> None:
    assert set(late_gpus(dict(zip((A, B, C), ranks, strict=False)))) == late


@pytest.mark.parametrize("counter", [work.PROCESS_BYTES, work.CGROUP_READ], ids=("own", "cgroup"))
@pytest.mark.parametrize(("moved", "asleep"), [(0.0, True), (9e4, True), (1e6, False)])
def test_a_process_that_reads_or_writes_is_not_at_rest(
    counter: Metric, moved: float, asleep: bool
) -> None:
    """What its cgroup reads stands for a count that is hidden."""
    assert waited({**WAITING, (counter, PEER_LABELS): moved}) == (30.0 if asleep else 0.0)


def waited(figures: Figures) -> float:
    """For how long the second GPU has waited after 30 s of this."""
    from agent.diagnosis.gpu_history_tracker import GpuHistoryTracker

    memory = GpuHistoryTracker()
    pids: Figures = {(process.PROCESS, (*PEER_LABELS, "11")): 1}
    for now in (0.0, 30.0):
        e = evidence({**figures, **pids}, links(0.0), others={PEER: GpuHistory()})
        memory.update(e.others[PEER], now)
    return memory.seen.waits_for


def seconds_until_hung(bench: AgentBench) -> float:
    """Seconds until the gauge says hung, and the job with it."""
    for seconds in range(1, 60):
        shown = bench.run(1).samples.where(accounting.STATE, state="hung")
        if shown and all(shown.values()):
            return seconds
    raise AssertionError("never")


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-a100"])
def test_a_rank_that_waits_for_input_is_named_within_20_s(system: str) -> None:
    """Training hangs ten seconds after the machine starts."""
    bench = simulated(f"{system}:hang", gpus=2)
    seconds = seconds_until_hung(bench)
    assert 10 + LEADER_WINDOW <= seconds + 2 <= 10 + 20
    (job,) = bench.jobs.running
    assert job.hang is not None
    (culprit,) = job.hang.culprits
    assert (culprit.rank, culprit.gpu.index, culprit.state) == (1, 1, CulpritState.ASLEEP)
    assert culprit.pid == bench.machine.jobs.trainers[1]
    named = *culprit.gpu.labels, "1", str(culprit.pid), ""
    assert bench.samples.all(job_watch.HUNG) == {named: 1}


def test_a_stopped_rank_is_named_and_goes_on() -> None:
    bench = simulated("dgx-h100:hang", gpus=2)
    bench.run(5)
    trainer = bench.machine.jobs.processes[bench.machine.jobs.trainers[1]]
    trainer.stopped = True
    seconds_until_hung(bench)
    (job,) = bench.jobs.running
    assert job.hang is not None
    (culprit,) = job.hang.culprits
    assert (culprit.pid, culprit.state) == (trainer.pid, CulpritState.STOPPED)
    trainer.stopped = False
    bench.machine.set_scenario("training")
    (job,) = bench.run(10).jobs.running
    assert job.hang is None
