"""Memory of one GPU from tick to tick."""

from typing import Any

import pytest

from agent.diagnosis.evidence import Evidence
from agent.diagnosis.gpu_history_tracker import Bursts, GpuHistoryTracker
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import TickContext
from agent.model import Reading, ReadKey, Sample
from agent.series import SampleStore
from agent.sources import activity, process
from agent.sources import workload as work
from tests.agent.diagnosis.test_division import OTHERS, PEER_LABELS, job, links
from tests.support.evidence import GPU, KEY, QUIET, Figures, bandwidth, evidence, threads


def waited(cores: float, *, peer_stopped: bool) -> float:
    """Seconds for which a GPU waits after a minute: both of its job rest, and its own process uses
    so many cores."""
    pids: Figures = {(process.PROCESS, (*GPU, "10")): 1, (process.PROCESS, (*PEER_LABELS, "11")): 1}
    stopped: Figures = {(work.STOPPED, (*PEER_LABELS, "11")): 1} if peer_stopped else {}
    rates = {**threads(GPU, cores), **threads(PEER_LABELS, 0.0)}
    figures: Figures = {**job(QUIET, QUIET, 0.0), **rates, **pids, **stopped}
    rest: dict[str, Any] = {"others": OTHERS, "wires": links(0.0)}
    memory = GpuHistoryTracker()
    for now in (0.0, 60.0):
        memory.update(evidence(figures, **rest), now)
    return memory.seen.waits_for


def test_what_others_moved_before_is_not_theirs() -> None:
    """The readings of a job's first seconds are means that begin before it."""
    memory = GpuHistoryTracker()
    memory.update(evidence({**job({}, {}, 3e9), (process.PROCESSES, GPU): 0}), -1.0)
    seen = []
    for now, sent in ((0.0, 3e9), (1.0, 3e9), (10.0, 0.0), (20.0, 3e9)):
        figures: Figures = {**job({}, {}, sent), (process.PROCESS, (*GPU, "10")): 1}
        memory.update(evidence(figures, links(sent), others=OTHERS), now)
        seen.append(memory.seen.nvlink_seen)
    assert seen == [False, False, False, True]


@pytest.mark.parametrize(
    ("cores", "peer_stopped", "seconds"),
    [
        (0.0, False, 60.0),  # at rest, both of them
        (0.98, False, 0.0),  # it works: no one knows on what
        (0.98, True, 60.0),  # it spins on the host for a rank that a signal has stopped
    ],
)
def test_a_gpu_waits_where_its_process_rests_or_the_other_is_stopped(
    cores: float, peer_stopped: bool, seconds: float
) -> None:
    assert waited(cores, peer_stopped=peer_stopped) == seconds


def test_a_gpu_that_spins_has_waited_since_the_first_reading_that_showed_it() -> None:
    """The means of six seconds still hold work when it begins to spin."""
    spinning = {activity.SM_ACTIVE: 0.18, activity.TENSOR_ACTIVE: 0.0}
    spinning[activity.MEMORY_BANDWIDTH] = 0.0
    pids: Figures = {(process.PROCESS, (*GPU, "10")): 1}
    memory, store = GpuHistoryTracker(), SampleStore()
    wires = bandwidth(links(0.0))
    for second in range(20):
        figures = {**job(spinning if second >= 10 else {}, {}, 0.0), **pids}
        samples = tuple(Sample(*series, value) for series, value in figures.items())
        store.take(second, [Reading(ReadKey("all", "all"), second, 1.0, samples)])
        memory.update(Evidence(KEY, TickContext(store, wires, Thresholds())), second)
        if memory.seen.waits_for:
            break
    assert second > 12, "no sooner than the means show it too"
    assert memory.seen.waits_for == second - 10


@pytest.mark.parametrize(
    ("received", "cores", "served"),
    [(0.0, 0.0, False), (2e3, 0.0, True), (0.0, 0.5, False)],
    ids=["left alone", "is asked", "works"],
)
def test_a_process_that_gets_nothing_for_half_a_minute_serves_no_one(
    monkeypatch: pytest.MonkeyPatch, received: float, cores: float, *, served: bool
) -> None:
    """A notebook and a trainer work in bursts too."""
    monkeypatch.setattr(Bursts, "seen", lambda *_: True)
    memory = GpuHistoryTracker()
    pids: Figures = {(process.PROCESS, (*GPU, "10")): 1, (process.PROCESSES, GPU): 1}
    worked = {**pids, **threads(GPU, 0.5), (activity.ACTIVITY, GPU): 0.5, (work.RECEIVED, GPU): 2e3}
    rests: Figures = {
        **pids,
        (activity.ACTIVITY, GPU): 0.0,
        **threads(GPU, cores),
        (work.RECEIVED, GPU): received,
    }
    seen = []
    for now, figures in ((0.0, worked), (1.0, rests), (29.0, rests), (31.0, rests)):
        memory.update(evidence(figures), now)
        seen.append(memory.seen.bursts)
    assert seen == [True, True, True, served]
