"""Division of the inactive share of a second, from the states of threads: measured, and
complete."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.advice import advised
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import divide_inactive, doubts
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import GpuHistory, TickContext
from agent.model import Absence, Cause, Fact, Reading, Reason, State
from agent.sources import activity, disk, host, nvlink, pcie, process
from agent.sources import workload as work
from agent.status.words import fact_text
from tests.agent.diagnosis.test_division import PEER, PEER_LABELS, job
from tests.support.evidence import GPU, KEY, NOW, Figures, Wires, bandwidth, evidence, store
from tests.support.machines import simulated

Doing = tuple[float, ...]
"""Seconds a second of threads: running, queued, blocked; in the kernel and for fresh memory if not
0."""

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
        for doing, seconds in zip(work.DOING, (*its, 0.0, 0.0), strict=False)
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


def copied(sent: float, received: float) -> Figures:
    return {(pcie.TRANSMITTED, GPU): sent, (pcie.RECEIVED, GPU): received}


READS: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 2.48e9, (disk.BUSY, ("nvme0n1",)): 0.99}
QUIET_DISK: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 1e3, (disk.BUSY, ("nvme0n1",)): 0.01}
NFS: Figures = {(host.NETWORK_MOUNTS, ("nfs4",)): 1}
ARRIVES: Figures = {(work.RECEIVED, GPU): 60e6}
LIMIT = 63e9
SLOT: Wires = {("pcie", "gpu0", GPU, "receive"): (0.5, LIMIT)}


THREAD, CPU, DISK = Cause.HOST_THREAD, Cause.CPU, Cause.DISK
NETWORK, PCIE, UNKNOWN = Cause.NETWORK, Cause.PCIE, Cause.UNKNOWN
ALSO = {"reads": READS, "quiet_disk": QUIET_DISK, "nfs": NFS, "arrives": ARRIVES}
SERIES = {
    "written": (work.CGROUP_WRITTEN, GPU),
    "read": (work.CGROUP_READ, GPU),
    "received": (work.RECEIVED, GPU),
    "pinning": (work.PINNING, GPU),
    "active": (activity.ACTIVITY, GPU),
    "stalled": (work.CGROUP_STALLED, (*GPU, "io")),
    "io_wait": (host.IO_WAIT, ()),
}
ROWS = tomllib.loads(Path(__file__).with_name("inactive_share.toml").read_text(encoding="utf-8"))


def figures_of(name: str) -> Figures:
    row = ROWS[name]
    words = ("active", "launching", "working", "workers", "busiest", "dispatching")
    given = {word: row[word] for word in words if word in row}
    found = dict(threads(**given) if "launching" in given else {})
    found |= {SERIES[word]: row[word] for word in SERIES.keys() & row.keys()}
    found |= copied(*row["copied"]) if "copied" in row else {}
    return {**found, **{k: v for word in row.get("also", ()) for k, v in ALSO[word].items()}}


def found_in(e: Evidence) -> dict[Cause, float]:
    shares = divide_inactive(e)
    return {cause: one.seconds for cause, one in shares.items() if one.seconds > 1e-12}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row = ROWS[name]
    # rates while copies run, and between them
    moments = tuple((n, n) for n in row.get("moments", ()))
    e = evidence(figures_of(name), SLOT if "slot" in row else {}, GpuHistory(moments=moments))
    shares = divide_inactive(e)
    assert found_in(e) == pytest.approx(row["shares"], abs=0.001)
    largest = max(shares.values(), key=lambda share: share.seconds)
    assert largest.facts[0].kind is FactKind[row["fact"]]
    assert all(fact_text(fact) for share in shares.values() for fact in share.facts)


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [("writes a checkpoint", True), ("reads more than it writes", False), ("loaders read", False)],
)
def test_the_advice_on_disks_is_by_direction(name: str, checkpoint: bool) -> None:
    facts = divide_inactive(evidence(figures_of(name)))[Cause.DISK].facts
    found = advised((State.STARVED, Cause.DISK), facts)
    assert (found == "checkpoint") is checkpoint


def test_a_wait_for_peers_is_not_taken_for_copies() -> None:
    """Kernels that spin read the host's memory over PCIe, and send a ninth to a fifteenth of it."""
    figures = {**job({}, {}), **figures_of("copies from pinned memory")}
    figures[nvlink.LINKS, PEER_LABELS] = 18
    alone = evidence(figures, SLOT, GpuHistory(nvlink_seen=False), others={PEER: GpuHistory()})
    assert Cause.PCIE in divide_inactive(alone)
    for sent, counts in (2e9, False), (2.7e10 / 16.1, True), (2e10, True):
        joined = evidence({**figures, **copied(sent, 2.7e10)}, SLOT, others={PEER: GpuHistory()})
        assert (Cause.PCIE in divide_inactive(joined)) is counts


def test_copies_from_ranks_gpus_count_at_the_rate_of_the_slot() -> None:
    """Gradients go to an optimizer on the host, and weights come back."""
    figures = {**job({}, {}), **threads(0.6, (1.0, 0.0, 0.0)), **copied(2.57e9, 1.25e9)}
    for metric in (activity.ACTIVITY, activity.SM_ACTIVE):
        figures |= {(metric, gpu): 0.6 for gpu in (GPU, PEER_LABELS)}
    found = found_in(evidence(figures, SLOT, others={PEER: GpuHistory()}))
    assert found == pytest.approx({PCIE: 3.82 / 63, THREAD: 0.4 - 3.82 / 63})


def test_a_rank_waits_while_workers_of_its_peer_run_whatever_arrives() -> None:
    figures = {**job({}, {}), **threads(0.4, (0.4, 0.0, 0.0)), **ARRIVES}
    theirs = threads(0.3, (0.3, 0.0, 0.0), (3.0, 0.0, 0.0), workers=8, busiest=0.5)
    figures |= {(one, (*PEER_LABELS, *its[2:])): value for (one, its), value in theirs.items()}
    e = evidence(figures, others={PEER: GpuHistory()})
    assert found_in(e) == pytest.approx({Cause.PEER: 0.4, NETWORK: 0.2})


def test_bytes_that_another_job_counts_too_explain_no_wait_while_a_worker_runs() -> None:
    mine = threads(0.3, (0.3, 0.0, 0.0), (2.0, 0.0, 0.0), workers=4, busiest=0.5)
    other: Figures = {(process.PROCESSES, PEER_LABELS): 1, (work.RECEIVED, PEER_LABELS): 61e6}
    beside = evidence({**mine, **ARRIVES, **other}, others={PEER: GpuHistory()})
    assert found_in(evidence({**mine, **ARRIVES})) == pytest.approx({NETWORK: 0.35, CPU: 0.35})
    assert found_in(beside) == pytest.approx({NETWORK: 0.2, CPU: 0.5})


def test_hidden_processes_are_unknown_with_a_doubt() -> None:
    kept = store({(activity.ACTIVITY, GPU): 0.5, (activity.SM_ACTIVE, GPU): 0.4})
    hidden = Absence(work.THREADS, GPU, Reason.DENIED, "process 7 cannot be seen")
    kept.take(NOW + 0.1, [Reading(work.KEY, NOW + 0.1, 1.0, (), (hidden,))])
    e = Evidence(KEY, TickContext(kept, bandwidth({}), Thresholds()))
    assert found_in(e) == {Cause.UNKNOWN: pytest.approx(0.5)}
    assert [*doubts(e)] == [Fact(FactKind.PROCESSES_HIDDEN, names=("process 7 cannot be seen",))]


def test_what_was_seen_leaves_no_doubt_and_what_gpm_would_show_does() -> None:
    seen = threads(0.5, (0.3, 0.0, 0.0))
    assert list(doubts(evidence(seen))) == []
    blind = {key: value for key, value in seen.items() if key[0] is not activity.SM_ACTIVE}
    assert [fact.kind for fact in doubts(evidence(blind))] == [FactKind.WITHOUT_GPM]


share = st.floats(0.0, 1.0)
doing = st.tuples(*[st.floats(0, 8)] * 5)


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
    figures |= {SERIES["stalled"]: io} if io is not None else {}
    figures |= {(host.PRESSURE, ("io", "some")): host_io} if host_io is not None else {}
    found = found_in(evidence(figures, SLOT))
    assert sum(found.values()) == pytest.approx(1.0 - active, abs=1e-9)
    assert all(0.0 < seconds <= 1.0 for seconds in found.values())
    assert set(found) <= {THREAD, CPU, DISK, NETWORK, PCIE, UNKNOWN}


def test_a_job_that_ended_is_not_starved_by_what_it_received_before() -> None:
    bench = simulated("dgx-h100:training", gpus=2).run(20)
    bench.machine.set_scenario("held")
    for _ in range(15):
        (verdict, *_) = bench.run(1).latest.verdicts.values()
        assert verdict.cause in (Cause.NONE, Cause.UNKNOWN)
        assert verdict.shares.get((State.STARVED, Cause.NETWORK), 0.0) < 0.15
