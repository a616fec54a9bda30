"""What a job receives, divided by its sockets: data, requests, and what its ranks exchange."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import divide_inactive
from agent.diagnosis.process_evidence import ProcessEvidence
from agent.diagnosis.tick_context import GpuHistory
from agent.jobs.job_sockets import WAYS
from agent.model import Cause, Reading, ReadKey, Sample
from agent.series import SampleStore
from agent.sources import activity, workload
from tests.agent.diagnosis.test_division import PEER, PEER_LABELS, job
from tests.support.evidence import GPU, Figures, evidence, threads


def sockets(rates: Mapping[str, float], gpu: tuple[str, ...] = GPU) -> Figures:
    """Bytes per second of the job's sockets by way; it answers all unless said."""
    given = {**dict.fromkeys(WAYS, 0.0), "answered": 900.0, "settled": 0.5, **rates}
    found: dict[Any, float] = {(workload.SOCKETS, (*gpu, way)): rate for way, rate in given.items()}
    return {**found, (workload.TRAINING, gpu): 0.0}


REST = {Cause.REQUESTS: 0.6}
DATA = {Cause.NETWORK: 0.6}
HALF = {Cause.HOST_THREAD: 0.3, Cause.REQUESTS: 0.3}


@pytest.mark.parametrize(
    ("rates", "also", "found"),
    [
        ({"accepted": 34e6}, {}, REST),
        ({"accepted": 34e6, "settled": 0.16}, {}, REST),
        ({"accepted": 34e6, "settled": 0.14}, {}, DATA),  # data comes while the GPU rests
        ({"accepted": 34e6, "settled": 0.08}, threads(GPU, 0.7), HALF),  # or its thread works
        ({"accepted": 34e6, "answered": 0.0}, {}, DATA),
        ({"accepted": 34e6}, {(workload.TRAINING, GPU): 1.0}, DATA),
        ({"accepted": 34e6}, {(workload.THREADS, (*GPU, "dispatching", "running")): 0.0}, REST),
        ({"accepted": 12e6, "answered": 0.0}, {}, {Cause.UNKNOWN: 0.6}),  # as without sockets
        ({"accepted": 34e6, "opened": 6e6}, {}, DATA),
        ({"accepted": 9e3, "opened": 3e5}, {}, {Cause.UNKNOWN: 0.6}),
        ({"accepted": 9e3}, {}, REST),  # all else that arrives is of others
        ({"accepted": 9e3, "answered": 0.0}, {}, REST),
        ({"accepted": 0.0, "answered": 0.0}, {}, {Cause.UNKNOWN: 0.6}),
        ({"accepted": 34e6, "exchanged": 34e6}, {}, {Cause.NETWORK: 0.3, Cause.UNKNOWN: 0.3}),
        ({"accepted": 34e6, "begun": 0.3}, {}, DATA),  # most connections may be missed
    ],
)
def test_a_job_that_answers_all_that_it_is_sent_waits_for_requests(
    rates: Mapping[str, float], also: Figures, found: dict[Cause, float]
) -> None:
    figures: Figures = {**threads(GPU, 0.4), (workload.RECEIVED, GPU): 40e6, **sockets(rates)}
    figures = {**figures, (activity.ACTIVITY, GPU): 0.4, **also}
    e = evidence(figures, history=GpuHistory(bursts=True, deliveries=True))
    left = {cause: one.seconds for cause, one in divide_inactive(e).items() if one.seconds > 1e-6}
    assert left == pytest.approx(found)


@pytest.mark.parametrize(
    ("busiest", "settled", "found"),
    [
        (0.2, 0.5, {Cause.HOST_THREAD: 0.3, Cause.REQUESTS: 0.5}),
        (0.4, 0.5, {Cause.HOST_THREAD: 0.3, Cause.CPU: 0.5}),  # it also runs by itself
        (0.2, 0.1, {Cause.HOST_THREAD: 0.3, Cause.CPU: 0.5}),  # it owes answers meanwhile
    ],
)
def test_threads_that_spin_with_the_thread_of_a_server_prepare_nothing(
    busiest: float, settled: float, found: dict[Cause, float]
) -> None:
    """OpenMP: 31 threads of each operation run as long as the main one does, or less."""
    figures: Figures = {
        **threads(GPU, 0.5),
        (workload.THREADS, (*GPU, "working", "running")): 7.0,
        (workload.BUSIEST, GPU): busiest,
        (activity.ACTIVITY, GPU): 0.2,
        (workload.RECEIVED, GPU): 3e5,
        **sockets({"accepted": 3e5, "settled": settled}),
    }
    e = evidence(figures, history=GpuHistory(bursts=True, deliveries=True))
    left = {cause: one.seconds for cause, one in divide_inactive(e).items() if one.seconds > 1e-6}
    assert left == pytest.approx(found)


@pytest.mark.parametrize(
    ("rates", "ranks", "found"),
    [
        ({"exchanged": 200e6}, True, {Cause.PEER: 0.6}),
        ({"exchanged": 200e6}, False, {Cause.UNKNOWN: 0.6}),
        ({"exchanged": 150e6, "opened": 50e6}, True, {Cause.PEER: 0.45, Cause.NETWORK: 0.15}),
        ({"opened": 1e6}, True, {Cause.UNKNOWN: 0.6}),  # the rest is of others
        ({"opened": 200e6, "begun": 0.5}, True, DATA),
    ],
)
def test_data_that_ranks_exchange_does_not_come_over_the_network(
    rates: Mapping[str, float], ranks: bool, found: dict[Cause, float]
) -> None:
    figures = {**job({}, {}, sent=0.0), **threads(GPU, 0.4), **threads(PEER_LABELS, 0.4)}
    for gpu, rank in ((GPU, "0"), (PEER_LABELS, "1")):
        figures |= {(activity.ACTIVITY, gpu): 0.4, (activity.SM_ACTIVE, gpu): 0.4}
        figures |= {(workload.RECEIVED, gpu): 220e6, **sockets(rates, gpu)}
        if ranks:
            figures[workload.JOB_PROCESS, (*gpu, "7", "root:1", "0", "eve", rank)] = 1
    history = GpuHistory(nvlink_seen=False)
    shares = divide_inactive(evidence(figures, history=history, others={PEER: history}))
    left = {cause: one.seconds for cause, one in shares.items() if one.seconds > 1e-6}
    assert left == pytest.approx(found)
    kinds = {fact.kind for one in shares.values() for fact in one.facts if one.seconds > 1e-6}
    assert (FactKind.JOB_EXCHANGES in kinds) is (Cause.PEER in found)


def test_sockets_are_looked_at_every_other_tick_and_ticks_come_late() -> None:
    kept = SampleStore()
    for tick in range(8):
        at, looked = 1.004 * tick, tick // 2 * 2
        given = {way: 60e6 * looked if way == "opened" else 0.0 for way in WAYS}
        samples = (Sample(workload.SOCKETS, (*GPU, way), seen) for way, seen in given.items())
        kept.take(at, [Reading(ReadKey("process", "all"), at, 1.0, tuple(samples))])
        context = replace(evidence({}).context, samples=kept)
        if tick > 4:
            assert ProcessEvidence(GPU, context).arriving >= 40e6
