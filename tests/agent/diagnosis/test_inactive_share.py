"""Division of the inactive share of a second, from the states of threads: measured, and
complete."""

from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.advice import Advice, advised
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import COPY_RATE, DATA_RATE, divide_inactive, doubts
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import GpuHistory, TickContext
from agent.model import Absence, Cause, Fact, Reading, Reason, State
from agent.sources import activity, disk, host, nvlink, pcie, process
from agent.sources import workload as work
from agent.status.words import fact_text
from tests.agent.diagnosis.test_division import PEER, PEER_LABELS, job
from tests.support.evidence import GPU, KEY, NOW, Figures, Wires, bandwidth, evidence, store

Doing = tuple[float, ...]
"""Seconds a second of threads: running, queued, blocked, and in the kernel if that is not 0."""

REST: Doing = (0.0, 0.0, 0.0)


def threads(
    active: float,
    launching: Doing,
    working: Doing = REST,
    workers: float = 0,
    busiest: float | None = None,
    *,
    dispatching: Doing = REST,
) -> Figures:
    """A GPU active for this share, and what the threads of its processes do."""
    figures: Figures = {
        (work.THREADS, (*GPU, role, doing)): seconds
        for role, its in zip(work.ROLES, (launching, dispatching, working), strict=True)
        for doing, seconds in zip(work.DOING, (*its, 0.0), strict=False)
    }
    each = sum(working[:3]) / workers if workers else 0.0
    return {
        **figures,
        (process.PROCESSES, GPU): 1,
        (activity.ACTIVITY, GPU): active,
        (activity.SM_ACTIVE, GPU): 0.8 * active,
        (work.WORKERS, GPU): workers,
        (work.BUSIEST, GPU): min(1.0, each) if busiest is None else busiest,
    }


def stalled(share: float) -> Figures:
    """Share of time for which some task of the job's cgroup waits for I/O."""
    return {(work.CGROUP_STALLED, (*GPU, "io")): share}


def blocked(sampled: float, idle_for_disks: float) -> Figures:
    """A GPU that is active for half the time, its launching thread in uninterruptible sleep for
    this share, and cores of the host that are idle while a task of theirs waits for a disk."""
    return {**threads(0.5, (0.5, 0.0, sampled)), (host.IO_WAIT, ()): idle_for_disks}


def copied(sent: float, received: float) -> Figures:
    return {(pcie.TRANSMITTED, GPU): sent, (pcie.RECEIVED, GPU): received}


READS: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 2.48e9, (disk.BUSY, ("nvme0n1",)): 0.99}
QUIET_DISK: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 1e3, (disk.BUSY, ("nvme0n1",)): 0.01}
NFS: Figures = {(host.NETWORK_MOUNTS, ("nfs4",)): 1}
ARRIVES: Figures = {(work.RECEIVED, GPU): 60e6}
LIMIT = 63e9
SLOT: Wires = {("pcie", "gpu0", GPU, "receive"): (0.5, LIMIT)}


class Row(NamedTuple):
    """Figures, the shares by cause, and the first fact of the largest."""

    shares: dict[Cause, float]
    fact: FactKind
    figures: Figures
    wires: Wires = MappingProxyType({})


THREAD, CPU, DISK, NETWORK, PCIE, UNKNOWN = (
    *(Cause.HOST_THREAD, Cause.CPU, Cause.DISK),
    *(Cause.NETWORK, Cause.PCIE, Cause.UNKNOWN),
)
LOADING: Doing = (0.3, 0.0, 0.0)
ROWS: dict[str, Row] = {
    # the launching thread itself
    "launches kernel by kernel": Row(
        {THREAD: 0.8}, FactKind.ONE_THREAD, threads(0.2, (1.0, 0.0, 0.0))
    ),
    "20 ms of Python in each step of 70 ms": Row(
        {THREAD: 0.33, UNKNOWN: 0.02}, FactKind.ONE_THREAD, threads(0.65, (0.98, 0.0, 0.0))
    ),
    "runs less than its GPU is active": Row(
        {UNKNOWN: 0.5}, FactKind.UNEXPLAINED, threads(0.5, (0.2, 0.0, 0.0))
    ),
    "two processes that launch cannot take more than there is": Row(
        {THREAD: 0.7}, FactKind.ONE_THREAD, threads(0.3, (1.9, 0.0, 0.0))
    ),
    "dispatches, and sleeps while its GPU works": Row(
        {THREAD: 0.46, UNKNOWN: 0.11},
        FactKind.ONE_THREAD,
        threads(0.43, REST, dispatching=(0.46, 0.0, 0.0)),
    ),
    # too few cores
    "queues for a core": Row(
        {CPU: 0.4, UNKNOWN: 0.1}, FactKind.THREADS_QUEUED, threads(0.5, (0.5, 0.4, 0.0))
    ),
    "its loaders queue more than they run": Row(
        {CPU: 0.6},
        FactKind.THREADS_QUEUED,
        threads(0.4, (0.4, 0.0, 0.0), (1.0, 3.0, 0.0), workers=4),
    ),
    # loaders
    "loaders decode": Row(
        {CPU: 0.7}, FactKind.WORKERS_RUNNING, threads(0.3, LOADING, (6.0, 0.0, 0.0), workers=6)
    ),
    "loaders decode, and it launches": Row(
        {THREAD: 0.2, CPU: 0.5},
        FactKind.WORKERS_RUNNING,
        threads(0.3, (0.5, 0.0, 0.0), (6.0, 0.0, 0.0), workers=6),
    ),
    "one loader decodes for a part of the wait": Row(
        {CPU: 0.2, UNKNOWN: 0.5},
        FactKind.UNEXPLAINED,
        threads(0.3, LOADING, (0.2, 0.0, 0.0), workers=1),
    ),
    "loaders read": Row(
        {DISK: 0.65, CPU: 0.05},
        FactKind.DISK_READS,
        {**threads(0.3, LOADING, (0.4, 0.0, 5.2), workers=6), **READS},
    ),
    "loaders read and decode as long": Row(
        {DISK: 0.35, CPU: 0.35},
        FactKind.DISK_READS,
        {**threads(0.3, LOADING, (3.0, 0.0, 3.0), workers=6), **READS},
    ),
    "loaders read, and the kernel fills their pages": Row(
        {DISK: 0.65, CPU: 0.05},
        FactKind.DISK_READS,
        {**threads(0.3, LOADING, (1.6, 0.0, 4.0, 1.2), workers=6), **READS},
    ),
    # files that it reads and writes itself
    "reads itself, and the kernel fills its pages for as long at most": Row(
        {DISK: 0.4, THREAD: 0.3, UNKNOWN: 0.1},
        FactKind.DISK_READS,
        {**threads(0.2, (0.7, 0.0, 0.2, 0.4)), **READS},
    ),
    "reads itself, as sampled": Row(
        {DISK: 0.4, UNKNOWN: 0.1}, FactKind.DISK_READS, {**threads(0.5, (0.5, 0.0, 0.4)), **READS}
    ),
    "its cgroup counts what samples missed": Row(
        {DISK: 0.4, UNKNOWN: 0.1},
        FactKind.BLOCKED,
        {**threads(0.5, (0.5, 0.0, 0.1)), **stalled(0.4)},
    ),
    "samples saw more than its cgroup counts": Row(
        {DISK: 0.4, UNKNOWN: 0.1},
        FactKind.BLOCKED,
        {**threads(0.5, (0.5, 0.0, 0.4)), **stalled(0.1)},
    ),
    "its cgroup counts the loaders' waits": Row(
        {DISK: 0.5},
        FactKind.BLOCKED,
        {**threads(0.5, (0.5, 0.0, 0.1), (0.0, 0.0, 2.0), workers=2), **stalled(0.9)},
    ),
    "the host counts what was sampled seldom": Row(
        {DISK: 0.35, UNKNOWN: 0.15}, FactKind.BLOCKED, blocked(0.2, idle_for_disks=0.35)
    ),
    "others on the host wait much longer": Row(
        {DISK: 0.2, UNKNOWN: 0.3}, FactKind.UNEXPLAINED, blocked(0.1, idle_for_disks=5.0)
    ),
    "other work on its core hides a wait from the host": Row(
        {DISK: 0.2, UNKNOWN: 0.3}, FactKind.UNEXPLAINED, blocked(0.4, idle_for_disks=0.01)
    ),
    "waits too short to be sampled": Row(
        {DISK: 0.07, UNKNOWN: 0.43},
        FactKind.UNEXPLAINED,
        {**blocked(0.0, idle_for_disks=0.07), **stalled(0.01)},
    ),
    "others on the host wait": Row(
        {UNKNOWN: 0.5}, FactKind.UNEXPLAINED, blocked(0.0, idle_for_disks=0.5)
    ),
    "writes a checkpoint": Row(
        {DISK: 0.5},
        FactKind.JOB_WRITES,
        {**threads(0.5, (0.5, 0.0, 0.6)), (work.CGROUP_WRITTEN, GPU): 2e9},
    ),
    "reads more than it writes": Row(
        {DISK: 0.5},
        FactKind.JOB_READS,
        {
            **threads(0.5, (0.5, 0.0, 0.6)),
            (work.CGROUP_WRITTEN, GPU): 2e7,
            (work.CGROUP_READ, GPU): 2e9,
        },
    ),
    "a network file system, and local disks are quiet": Row(
        {NETWORK: 0.5},
        FactKind.NETWORK_MOUNTED,
        {**threads(0.5, (0.5, 0.0, 0.6)), **QUIET_DISK, **NFS},
    ),
    "a network file system beside a local disk that works": Row(
        {DISK: 0.5}, FactKind.DISK_READS, {**threads(0.5, (0.5, 0.0, 0.6)), **READS, **NFS}
    ),
    # the network
    "loaders fetch": Row(
        {NETWORK: 0.56, CPU: 0.14},
        FactKind.JOB_RECEIVES,
        {**threads(0.3, LOADING, (0.6, 0.0, 0.0), workers=4, busiest=0.2), **ARRIVES},
    ),
    "loaders fetch, and the busiest decodes all the time": Row(
        {CPU: 0.7},
        FactKind.WORKERS_RUNNING,
        {**threads(0.3, LOADING, (3.0, 0.0, 0.0), workers=4, busiest=1.0), **ARRIVES},
    ),
    "it fetches itself": Row(
        {NETWORK: 0.5}, FactKind.JOB_RECEIVES, {**threads(0.5, (0.5, 0.0, 0.0)), **ARRIVES}
    ),
    "next to nothing arrives": Row(
        {UNKNOWN: 0.5},
        FactKind.UNEXPLAINED,
        {**threads(0.5, (0.5, 0.0, 0.0)), (work.RECEIVED, GPU): 0.99 * DATA_RATE},
    ),
    # copies
    "copies from pinned memory": Row(
        {PCIE: 0.5},
        FactKind.COPIES_TO_GPU,
        {**threads(0.5, (0.9, 0.0, 0.0)), **copied(0.0, 0.5 * COPY_RATE * LIMIT)},
        SLOT,
    ),
    "both directions take their time": Row(
        {PCIE: 0.4, THREAD: 0.1},
        FactKind.COPIES_TO_GPU,
        {
            **threads(0.5, (1.0, 0.0, 0.0)),
            **copied(0.2 * COPY_RATE * LIMIT, 0.2 * COPY_RATE * LIMIT),
        },
        SLOT,
    ),
    "copies from pageable memory": Row(
        {PCIE: 0.8},
        FactKind.COPIES_TO_GPU,
        {**threads(0.2, (1.0, 0.0, 0.0)), **copied(0.2e9, 3.2e9)},
        SLOT,
    ),
    "copies what its loader has pinned": Row(
        {THREAD: 0.8},
        FactKind.ONE_THREAD,
        {**threads(0.2, (1.0, 0.0, 0.0)), **copied(0.2e9, 3.2e9), (work.PINNING, GPU): 1},
        SLOT,
    ),
    "copies to pageable memory": Row(
        {PCIE: 0.97},
        FactKind.COPIES_TO_GPU,
        {**threads(0.03, (1.0, 0.0, 0.0)), **copied(1.35e9, 1e6)},
        SLOT,
    ),
    "the thread prepares what is copied beside work": Row(
        {THREAD: 0.5},
        FactKind.ONE_THREAD,
        {**threads(0.5, (1.0, 0.0, 0.0)), **copied(0.02e9, 0.4e9)},
        SLOT,
    ),
    "little activity beside a compiler that has ended is no poll": Row(
        {CPU: 0.97},
        FactKind.WORKERS_RUNNING,
        {**threads(0.03, (0.03, 0.0, 0.0), (1.0, 0.0, 0.0)), **copied(0.0, 0.0)},
    ),
    # nothing to be explained, or not to be seen
    "a server polls for requests": Row(
        {UNKNOWN: 0.98},
        FactKind.UNEXPLAINED,
        {**threads(0.02, (1.0, 0.0, 0.0)), **copied(0.0, 0.5 * DATA_RATE)},
    ),
    "a checkpoint while the GPU rests": Row(
        {DISK: 0.92, UNKNOWN: 0.08},
        FactKind.JOB_WRITES,
        {
            **threads(0.0, (0.06, 0.0, 0.92)),
            **copied(0.0, 0.0),
            **stalled(0.9),
            (work.CGROUP_WRITTEN, GPU): 2e9,
        },
    ),
    "at little activity with data on its way": Row(
        {THREAD: 0.98},
        FactKind.ONE_THREAD,
        {**threads(0.02, (1.0, 0.0, 0.0)), **copied(0.0, 2 * DATA_RATE)},
    ),
    "at rest, and not held yet": Row({UNKNOWN: 1.0}, FactKind.QUIET, threads(0.0, REST)),
    "processes that cannot be seen": Row(
        {UNKNOWN: 0.5}, FactKind.UNEXPLAINED, {(activity.ACTIVITY, GPU): 0.5, **ARRIVES, **READS}
    ),
    # several causes share a second
    "a little of everything": Row(
        {THREAD: 0.1, CPU: 0.25, DISK: 0.35},
        FactKind.DISK_READS,
        {**threads(0.3, (0.4, 0.1, 0.2), (0.5, 0.0, 0.5), workers=2), **READS, **stalled(0.9)},
    ),
}


def found_in(e: Evidence) -> dict[Cause, float]:
    return {cause: share.seconds for cause, share in divide_inactive(e).items()}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row = ROWS[name]
    e = evidence(row.figures, row.wires)
    shares = divide_inactive(e)
    found = {cause: seconds for cause, seconds in found_in(e).items() if seconds > 1e-9}
    assert found == pytest.approx(row.shares, abs=0.001)
    largest = max(shares.values(), key=lambda share: share.seconds)
    assert largest.facts[0].kind is row.fact
    assert all(fact_text(fact) for share in shares.values() for fact in share.facts)


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [("writes a checkpoint", True), ("reads more than it writes", False), ("loaders read", False)],
)
def test_the_advice_on_disks_is_by_direction(name: str, checkpoint: bool) -> None:
    row, pair = ROWS[name], (State.STARVED, Cause.DISK)
    facts = divide_inactive(evidence(row.figures))[Cause.DISK].facts
    found = advised(pair, facts)
    assert (found is Advice.CHECKPOINT) is checkpoint


def test_a_wait_for_peers_is_not_taken_for_copies() -> None:
    """Kernels that spin read the host's memory over PCIe."""
    figures = {**ROWS["copies from pinned memory"].figures, **job({}, {})}
    figures |= ROWS["copies from pinned memory"].figures
    figures[nvlink.LINKS, PEER_LABELS] = 18
    alone = evidence(figures, SLOT, GpuHistory(nvlink_seen=False), others={PEER: GpuHistory()})
    joined = evidence(figures, SLOT, others={PEER: GpuHistory()})
    assert Cause.PCIE in divide_inactive(alone)
    assert Cause.PCIE not in divide_inactive(joined)


def test_bytes_that_another_job_counts_too_explain_no_wait_for_workers() -> None:
    mine = threads(0.3, (0.3, 0.0, 0.0), (2.0, 0.0, 0.0), workers=4, busiest=0.5)
    other: Figures = {(process.PROCESSES, PEER_LABELS): 1, (work.RECEIVED, PEER_LABELS): 61e6}
    beside = evidence({**mine, **ARRIVES, **other}, others={PEER: GpuHistory()})
    assert found_in(evidence({**mine, **ARRIVES})) == pytest.approx(
        {NETWORK: 0.35, CPU: 0.35}, abs=0.001
    )
    assert {c: s for c, s in found_in(beside).items() if s} == pytest.approx({CPU: 0.7})


def test_hidden_processes_are_unknown_with_a_doubt() -> None:
    kept = store({(activity.ACTIVITY, GPU): 0.5, (activity.SM_ACTIVE, GPU): 0.4})
    hidden = Absence(work.THREADS, GPU, Reason.DENIED, "process 7 cannot be seen")
    kept.take(NOW + 0.1, [Reading(work.KEY, NOW + 0.1, 1.0, (), (hidden,))])
    e = Evidence(KEY, TickContext(kept, bandwidth({}), Thresholds()))
    assert found_in(e) == {Cause.UNKNOWN: pytest.approx(0.5)}
    (doubt,) = doubts(e)
    assert doubt == Fact(FactKind.PROCESSES_HIDDEN, names=("process 7 cannot be seen",))


def test_what_was_seen_leaves_no_doubt_and_what_gpm_would_show_does() -> None:
    seen = threads(0.5, LOADING)
    assert list(doubts(evidence(seen))) == []
    blind = {key: value for key, value in seen.items() if key[0] is not activity.SM_ACTIVE}
    assert [fact.kind for fact in doubts(evidence(blind))] == [FactKind.WITHOUT_GPM]


share = st.floats(0.0, 1.0)
doing = st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 8))


@given(
    active=share, launching=doing, dispatching=doing, working=doing, workers=st.integers(0, 40),
    busiest=share,
    io=st.none() | share, host_io=st.none() | share, received=st.floats(0, 1e9),
    wire=st.tuples(st.floats(0, 6e10), st.floats(0, 6e10)), mounted=st.booleans(),
)  # fmt: skip
def test_shares_of_any_figures_sum_to_the_inactive_share(  # noqa: PLR0917
    active: float, launching: Doing, dispatching: Doing, working: Doing, workers: int,
    busiest: float,
    io: float | None, host_io: float | None, received: float, wire: tuple[float, float],
    mounted: bool,
) -> None:  # fmt: skip
    figures = dict(threads(active, launching, working, workers, busiest, dispatching=dispatching))
    figures |= {**copied(*wire), (work.RECEIVED, GPU): received, **(NFS if mounted else {})}
    figures |= stalled(io) if io is not None else {}
    figures |= {(host.PRESSURE, ("io", "some")): host_io} if host_io is not None else {}
    found = found_in(evidence(figures, SLOT))
    assert sum(found.values()) == pytest.approx(1.0 - active, abs=1e-9)
    assert all(0.0 < seconds <= 1.0 for seconds in found.values())
    assert set(found) <= {THREAD, CPU, DISK, NETWORK, PCIE, UNKNOWN}
