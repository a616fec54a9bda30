"""One second of a GPU divided into shares: every state and cause, and always the whole second."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.active_share import WorkLevel
from agent.diagnosis.division import divide_second
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import FactKind
from agent.diagnosis.inactive_share import divide_inactive
from agent.diagnosis.power_levels import PowerLevels
from agent.diagnosis.tick_context import GpuHistory, RankActivity
from agent.jobs.identity import JobLabels
from agent.model import BUSY, Cause, GpuKey, Metric, State
from agent.sources import activity, clocks, nvlink, pcie, power, process
from agent.sources import workload as work
from tests.support.evidence import GPU, Figures, evidence, threads

PEER = GpuKey(1, "GPU-1")
PEER_LABELS = PEER.labels
ACTIVE, SM, WATTS = activity.ACTIVITY, activity.SM_ACTIVE, power.POWER
TENSOR, DRAM = activity.TENSOR_ACTIVE, activity.MEMORY_BANDWIDTH
TRAIN: Figures = {
    (process.PROCESSES, GPU): 1,
    (ACTIVE, GPU): 1.0,
    (SM, GPU): 0.90,
    (TENSOR, GPU): 0.30,
    (DRAM, GPU): 0.40,
    (WATTS, GPU): 637,
    (power.POWER_LIMIT, GPU): 700,
    (power.DEFAULT_LIMIT, GPU): 700,
    (clocks.CLOCK, (*GPU, "sm")): 1.98e9,
    (clocks.CLOCK_LIMIT, (*GPU, "sm")): 1.98e9,
    (clocks.REASONS, GPU): 0,
    (nvlink.LINKS, GPU): 18,
}
REST: Figures = {**TRAIN, (ACTIVE, GPU): 0.0, (SM, GPU): 0.0, (TENSOR, GPU): 0.0, (DRAM, GPU): 0.0}
SPINS = {ACTIVE: 1.0, SM: 0.18, TENSOR: 0.0, DRAM: 0.0, WATTS: 125.0}
REDUCES = {ACTIVE: 0.994, SM: 0.173, TENSOR: 0.0, DRAM: 0.27, WATTS: 280.0}
TO_GPU = ("pcie", "gpu0", GPU, "receive")
OUT, IN = ("nvlink", "gpu0", GPU, "transmit"), ("nvlink", "gpu1", PEER_LABELS, "transmit")
IB_OUT, IB_IN = (("infiniband", "mlx5_0:1", (), way) for way in ("transmit", "receive"))
TO_PEER = ("pcie", "gpu1", PEER_LABELS, "receive")
UPLINK: Figures = {(pcie.UPLINK, (*gpu, "0000:04:00.0")): 15.76e9 for gpu in (GPU, PEER_LABELS)}


def job(
    mine: Mapping[Metric, float], theirs: Mapping[Metric, float], sent: float = 0.7e9
) -> Figures:
    """Two GPUs of one job that differ in these figures; each sends so many bytes a second."""
    both = dict(TRAIN)
    for (metric, labels), value in TRAIN.items():
        both[metric, (*PEER_LABELS, *labels[2:])] = value
    for gpu, its in ((GPU, mine), (PEER_LABELS, theirs)):
        both[work.JOB_PIDS, (*gpu, "train.py:1", *JobLabels("1", "eve", "process"), "root:1")] = 1
        both[activity.NVLINK_RATE, (*gpu, "transmit")] = sent
        for metric, value in its.items():
            both[metric, gpu] = value
    return both


def links(sent: float = 0.7e9) -> dict[Any, tuple[float, float]]:
    return {OUT: (sent / 450e9, 450e9), IN: (sent / 450e9, 450e9)}


def throttled(reasons: int, clock: float, limit: float = 700.0) -> Figures:
    """Held down by these reasons to so many MHz."""
    return {
        **TRAIN,
        (clocks.REASONS, GPU): reasons,
        (clocks.CLOCK, (*GPU, "sm")): clock * 1e6,
        (power.POWER_LIMIT, GPU): limit,
    }


OTHERS = {PEER: GpuHistory()}
STARVED, HEAT = State.STARVED, (State.THROTTLED, Cause.THERMAL)
HUNG = (State.HUNG, Cause.NONE)
IN_TURNS = GpuHistory(power=PowerLevels(220, 700, 0.36, distinct=True))
WAITS = (STARVED, Cause.PEER)
BASES = {"train": TRAIN, "rest": REST, "no_process": {**TRAIN, (process.PROCESSES, GPU): 0}}
OF_GPU = {
    "active": (ACTIVE, GPU),
    "sm": (SM, GPU),
    "tensor": (TENSOR, GPU),
    "dram": (DRAM, GPU),
    "watts": (WATTS, GPU),
    "working": (work.THREADS, (*GPU, "working", "running")),
    "generation": (pcie.GENERATION, GPU),
    "generation_limit": (pcie.GENERATION_LIMIT, GPU),
    "throttle": (clocks.THROTTLE, (*GPU, "reliability")),
}
WIRES: dict[str, tuple[Any, ...]] = {
    "to_gpu": TO_GPU,
    "to_peer": TO_PEER,
    "from_peer": (*TO_PEER[:3], "transmit"),
}
WIRES |= {"ib_out": IB_OUT, "ib_in": IB_IN}
ROWS = tomllib.loads(Path(__file__).with_name("division.toml").read_text(encoding="utf-8"))


def history_of(*, in_turns: bool = False, **words: Any) -> GpuHistory:
    return GpuHistory(**words, power=IN_TURNS.power if in_turns else None)


def evidence_of(name: str) -> Evidence:
    row = ROWS[name]
    figures = dict(BASES[row.get("base", "train")])
    if "mine" in row:
        mine, theirs = (
            {OF_GPU[word][0]: value for word, value in row[whose].items()}
            for whose in ("mine", "theirs")
        )
        figures |= job(mine, theirs, row.get("sent", 0.7e9))
    if "reasons" in row:
        figures |= throttled(row["reasons"], row["clock"], row.get("limit", 700.0))
    figures |= UPLINK if "uplink" in row else {}
    figures |= threads(GPU, row["threads"]) if "threads" in row else {}
    figures |= threads(PEER_LABELS, row["peer_threads"]) if "peer_threads" in row else {}
    figures |= {OF_GPU[word]: value for word, value in row.get("gpu", {}).items()}
    unread = {OF_GPU[word][0] for word in row.get("unread", ())}
    figures = {key: value for key, value in figures.items() if key[0] not in unread}
    wires: dict[Any, tuple[float, float]] = {}
    for word, found in row.get("wires", {}).items():
        wires |= links(found) if word == "links" else {WIRES[word]: tuple(found)}
    others = {PEER: history_of(**row["peer"])} if "peer" in row else {}
    return evidence(figures, wires, history_of(**row.get("history", {})), others=others)


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    division = divide_second(evidence_of(name))
    found = {pair: share for pair, share in division.parts.items() if share > 0.001}
    expected = {pair: share for pair, share in ROWS[name]["parts"].items() if share > 0.001}
    shares = {"/".join(pair): share for pair, share in found.items()}
    assert shares == pytest.approx(expected, abs=0.03)
    assert all(division.found[pair] for pair in found), "each share says what decided it"


@pytest.mark.parametrize("name", ["a late rank", "an overloaded rank"])
def test_the_rank_that_others_wait_for_is_named(name: str) -> None:
    division = divide_second(evidence_of(name))
    assert division.waits_for == PEER
    assert division.parts[WAITS] > 0.0


def test_a_gpu_alone_cannot_hang() -> None:
    figures: Figures = {**TRAIN, **{(metric, GPU): value for metric, value in SPINS.items()}}
    assert HUNG not in divide_second(evidence(figures, history=GpuHistory(waits_for=900.0))).parts


def test_two_gpus_that_nothing_joins_rest_and_do_not_hang() -> None:
    quiet = {ACTIVE: 0.0, SM: 0.0, TENSOR: 0.0, DRAM: 0.0}
    alone = GpuHistory(waits_for=900.0, nvlink_seen=False)
    rest: dict[str, Any] = {"history": alone, "others": {PEER: alone}}
    assert HUNG not in divide_second(evidence(job(quiet, quiet, 0.0), **rest)).parts


def test_without_nvlink_gpus_talk_over_pcie() -> None:
    figures = job({**REDUCES, DRAM: 0.01}, {**REDUCES, DRAM: 0.01}, 0.0)
    figures = {k: v for k, v in figures.items() if k[0] is not nvlink.LINKS}
    wires: dict[Any, tuple[float, float]] = {
        ("pcie", "gpu0", GPU, "transmit"): (0.85, 16e9),
        ("pcie", "gpu1", PEER_LABELS, "receive"): (0.85, 16e9),
    }
    both = divide_second(evidence(figures, wires, others=OTHERS)).parts
    assert both[State.COMMUNICATING, Cause.PCIE] == pytest.approx(0.994)
    alone = {key: ratio for key, ratio in wires.items() if key[1] == "gpu0"}
    assert (STARVED, Cause.PCIE) in divide_second(evidence(figures, alone, others=OTHERS)).parts


@pytest.mark.parametrize(
    ("watts", "lower", "share"),
    [(250, 0.0, 0.4), (600, 0.0, 0.0), (500, 0.3, 0.3), (500, 0.6, 0.4)],
)
def test_without_gpm_utilization_counts_copies_and_power_tells_those_beside_work(
    watts: float, lower: float, share: float
) -> None:
    """They take as long as their bytes, and no longer than the lower of two levels of power."""
    figures = {key: value for key, value in TRAIN.items() if key[0] not in (SM, TENSOR, DRAM)}
    figures |= {(WATTS, GPU): watts, (pcie.TRANSMITTED, GPU): 0.0, (pcie.RECEIVED, GPU): 25.2e9}
    past = GpuHistory(power=PowerLevels(220, 700, lower, distinct=lower > 0))
    parts = divide_second(evidence(figures, {TO_GPU: (0.4, 63e9)}, past)).parts
    assert (parts.get((STARVED, Cause.PCIE), 0.0), parts[BUSY]) == pytest.approx((share, 1 - share))


def test_a_share_has_its_figures() -> None:
    hot = divide_second(evidence(throttled(0x40, 1188)))
    (fact,) = hot.found[HEAT]
    assert fact.kind is FactKind.THERMAL_SLOWDOWN
    assert {f.name: f.value for f in fact.figures} == {"time": 1.0, "sm_clock": pytest.approx(0.6)}


share = st.floats(0.0, 1.0)
seen = st.fixed_dictionaries({}, optional=dict.fromkeys((ACTIVE, SM, TENSOR, DRAM), share))
ranks = st.builds(RankActivity, *[st.booleans()] * 4)
history = st.builds(
    GpuHistory, st.floats(0, 99), st.floats(0, 99), ranks, clock=st.floats(1e9, 2e9)
)


@given(
    mine=seen, theirs=seen, sent=st.floats(0, 450e9), past=history, its=history,
    wire=share, ib=share, reasons=st.integers(0, 0x1FF), clock=st.floats(2e8, 1.98e9),
    watts=st.floats(0, 700), gpm=st.booleans(), processes=st.sampled_from([0, 1, 2]),
)  # fmt: skip
def test_shares_of_any_evidence_sum_to_one(  # noqa: PLR0917
    mine: dict[Metric, float], theirs: dict[Metric, float], sent: float, past: GpuHistory,
    its: GpuHistory, wire: float, ib: float, reasons: int, clock: float, watts: float,
    gpm: bool, processes: int,
) -> None:  # fmt: skip
    figures = dict(job(mine, theirs, sent))
    figures[clocks.REASONS, GPU], figures[clocks.CLOCK, (*GPU, "sm")] = reasons, clock
    figures[WATTS, GPU], figures[process.PROCESSES, GPU] = watts, processes
    if not gpm:
        figures = {k: v for k, v in figures.items() if k[0] not in (SM, TENSOR, DRAM)}
    wires = {**links(sent), TO_GPU: (wire, 63e9), IB_OUT: (ib, 50e9), IB_IN: (ib, 50e9)}
    division = divide_second(evidence(figures, wires, past, others={PEER: its}))
    assert sum(division.parts.values()) == pytest.approx(1.0)
    assert min(division.parts.values()) >= -1e-9
    assert {pair for pair, part in division.parts.items() if part} <= division.found.keys() | {BUSY}
    assert (division.waits_for is None) or division.parts[WAITS] > 0.0


@pytest.mark.parametrize(
    ("also", "found"),
    [
        ({(work.BUSIEST, GPU): 0.2, (work.THREADS, (*GPU, "working", "running")): 0.2}, Cause.CPU),
        ({(work.THREADS, (*GPU, "launching", "queued")): 0.2}, Cause.PEER),  # it waits anyway
    ],
)
def test_a_rank_waits_for_its_peer_no_longer_than_that_works(also: Figures, found: Cause) -> None:
    """It spins for half of the time, and rests for 0.2; its peer works all the time."""
    mine = {activity.ACTIVITY: 0.8, activity.SM_ACTIVE: 0.3, activity.MEMORY_BANDWIDTH: 0.12}
    theirs = {activity.ACTIVITY: 0.3, activity.SM_ACTIVE: 0.27, activity.MEMORY_BANDWIDTH: 0.12}
    figures = {**job(mine, theirs), **threads(GPU, 0.8), **threads(PEER_LABELS, 1.0), **also}
    history = GpuHistory(nvlink_seen=True)
    e = evidence(figures, links(), history, others={PEER: history})
    assert e.by_links.waiting == pytest.approx(0.5)
    left = {cause: one.seconds for cause, one in divide_inactive(e).items() if one.seconds > 1e-6}
    assert left == pytest.approx({found: 0.2})


@pytest.mark.parametrize(("ran", "worker", "waits"), [(1.0, 0.0, 0.175), (0.6, 1.0, 0.35)])
def test_of_what_all_ranks_wait_launches_are_late_unless_data_is(
    ran: float, worker: float, waits: float
) -> None:
    spins = {ACTIVE: 0.6, SM: 0.25, TENSOR: 0.1, DRAM: 0.1}
    data = (work.THREADS, (*GPU, "working", "running")), (work.BUSIEST, GPU)
    figures = {**job(spins, spins), **threads(GPU, ran), **dict.fromkeys(data, worker)}
    history = GpuHistory(level=WorkLevel(0.9, 0.4))
    found = divide_second(evidence(figures, links(), history, others={PEER: history})).parts
    assert found[WAITS] == pytest.approx(waits)
    cause = Cause.CPU if worker else Cause.HOST_THREAD
    assert found[STARVED, cause] == pytest.approx(0.75 - waits)
