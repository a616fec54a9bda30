"""One second of a GPU divided into shares: every state and cause, and always the whole second."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.division import divide_second
from agent.diagnosis.facts import FactKind
from agent.diagnosis.power_levels import PowerLevels
from agent.diagnosis.state_seconds import LEADER_WINDOW
from agent.diagnosis.tick_context import GpuHistory
from agent.jobs.identity import JobLabels
from agent.model import BUSY, Cause, GpuKey, Metric, Pair, State
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
NO_PROCESS: Figures = {**TRAIN, (process.PROCESSES, GPU): 0}
REST: Figures = {**TRAIN, (ACTIVE, GPU): 0.0, (SM, GPU): 0.0, (TENSOR, GPU): 0.0, (DRAM, GPU): 0.0}
SPINS = {ACTIVE: 1.0, SM: 0.18, TENSOR: 0.0, DRAM: 0.0, WATTS: 125.0}
REDUCES = {ACTIVE: 0.994, SM: 0.173, TENSOR: 0.0, DRAM: 0.27, WATTS: 280.0}
TO_GPU = ("pcie", "gpu0", GPU, "receive")
OUT, IN = ("nvlink", "gpu0", GPU, "transmit"), ("nvlink", "gpu1", PEER_LABELS, "transmit")
IB_OUT, IB_IN = (("infiniband", "mlx5_0:1", (), way) for way in ("transmit", "receive"))
TO_PEER = ("pcie", "gpu1", PEER_LABELS, "receive")
UPLINK: Figures = {(pcie.UPLINK, (*gpu, "0000:04:00.0")): 15.76e9 for gpu in (GPU, PEER_LABELS)}
LONG = GpuHistory(waits_for=LEADER_WINDOW)
SHORT = GpuHistory(waits_for=LEADER_WINDOW - 1)


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
IDLE, HELD, HUNG = ((s, Cause.NONE) for s in (State.IDLE, State.HELD, State.HUNG))


IN_TURNS = GpuHistory(power=PowerLevels(220, 700, 0.36, distinct=True))
SLOW_LINKS = job({SM: 0.62, TENSOR: 0.2}, {SM: 0.62, TENSOR: 0.2}, sent=7e9)
WAITS, UNKNOWN = (STARVED, Cause.PEER), (STARVED, Cause.UNKNOWN)
REDUCING = {"wires": links(328.5e9), "others": OTHERS}
Row = tuple[dict[Pair, float], Figures, dict[str, Any]]
ROWS: dict[str, Row] = {
    "no process": ({IDLE: 1.0}, {**NO_PROCESS, (ACTIVE, GPU): 0.0}, {}),
    "graphics, or another PID namespace": (
        {BUSY: 0.4, IDLE: 0.6},
        {**NO_PROCESS, (ACTIVE, GPU): 0.4},
        {},
    ),
    "held": ({HELD: 1.0}, REST, {"history": GpuHistory(60.0)}),
    "held not yet": ({UNKNOWN: 1.0, BUSY: 0.0}, REST, {"history": GpuHistory(59.0)}),
    "busy": ({BUSY: 1.0}, TRAIN, {}),
    "nearly busy": ({BUSY: 0.81, UNKNOWN: 0.19}, {**TRAIN, (ACTIVE, GPU): 0.81}, {}),
    "hung": (
        {HUNG: 1.0},
        job(SPINS, SPINS, 0.0),
        {"history": LONG, "others": {PEER: LONG}, "wires": links(0.0)},
    ),
    "hung not yet": (
        {WAITS: 1.0, BUSY: 0.0},
        job(SPINS, SPINS, 0.0),
        {"history": LONG, "others": {PEER: SHORT}, "wires": links(0.0)},
    ),
    "gradients over one channel": (
        {(State.COMMUNICATING, Cause.NVLINK): 0.36, BUSY: 0.64},
        SLOW_LINKS,
        {"history": IN_TURNS, "others": {PEER: IN_TURNS}, "wires": links(7e9)},
    ),
    "host copies": (
        {(STARVED, Cause.PCIE): 1.0, BUSY: 0.0},
        REST,
        {"wires": {TO_GPU: (0.80, 63e9)}},
    ),
    "host copies below": ({UNKNOWN: 1.0, BUSY: 0.0}, REST, {"wires": {TO_GPU: (0.79, 63e9)}}),
    "host copies beside work": ({BUSY: 1.0}, TRAIN, {"wires": {TO_GPU: (0.95, 63e9)}}),
    "host copies through a slot stuck at generation 1": (
        {(STARVED, Cause.PCIE): 1.0, BUSY: 0.0},
        {**REST, (pcie.GENERATION, GPU): 1, (pcie.GENERATION_LIMIT, GPU): 5},
        {"wires": {TO_GPU: (0.051, 63e9)}},
    ),
    "host copies, the generation read at rest": (
        {UNKNOWN: 1.0, BUSY: 0.0},
        {**REST, (pcie.GENERATION, GPU): 1, (pcie.GENERATION_LIMIT, GPU): 5},
        {"wires": {TO_GPU: (0.5, 63e9)}},
    ),
    "two GPUs fill the uplink that they share": (
        {(STARVED, Cause.PCIE): 1.0, BUSY: 0.0},
        {**REST, **UPLINK},
        {"wires": {TO_GPU: (0.45, 16e9), TO_PEER: (0.45, 16e9)}},
    ),
    "two GPUs below what their uplink carries": (
        {UNKNOWN: 1.0, BUSY: 0.0},
        {**REST, **UPLINK},
        {"wires": {TO_GPU: (0.45, 16e9), TO_PEER: (0.30, 16e9)}},
    ),
    "one direction each of a shared uplink": (
        {UNKNOWN: 1.0, BUSY: 0.0},
        {**REST, **UPLINK},
        {"wires": {TO_GPU: (0.45, 16e9), (*TO_PEER[:3], "transmit"): (0.45, 16e9)}},
    ),
    "the neighbour alone fills the uplink": (
        {UNKNOWN: 1.0, BUSY: 0.0},
        {**REST, **UPLINK},
        {"wires": {TO_GPU: (0.02, 16e9), TO_PEER: (0.85, 16e9)}},
    ),
    "a thread that holds its GPU up, and waits for loaders": (
        {(STARVED, Cause.HOST_THREAD): 0.2, (STARVED, Cause.CPU): 0.5, BUSY: 0.3},
        {
            **TRAIN,
            **threads(GPU, 0.5),
            (work.THREADS, (*GPU, "working", "running")): 4.0,
            (ACTIVE, GPU): 0.3,
            (SM, GPU): 0.28,
        },
        {},
    ),
    "kernels of sharded training that poll the host's memory while they wait": (
        {(STARVED, Cause.HOST_THREAD): 0.32, BUSY: 0.66, (State.COMMUNICATING, Cause.NVLINK): 0.02},
        {
            **job(
                {ACTIVE: 0.68, SM: 0.55, TENSOR: 0.2, DRAM: 0.32},
                {ACTIVE: 0.97, SM: 0.64, TENSOR: 0.2, DRAM: 0.32},
                sent=5e9,
            ),
            **threads(GPU, 1.0),
            **threads(PEER_LABELS, 1.0),
        },
        {"wires": {**links(5e9), TO_GPU: (0.05, 63e9), TO_PEER: (0.19, 63e9)}, "others": OTHERS},
    ),
    "all-reduce": (
        {(State.COMMUNICATING, Cause.NVLINK): 0.994, UNKNOWN: 0.006, BUSY: 0.0},
        job(REDUCES, REDUCES, 328.5e9),
        REDUCING,
    ),
    "infiniband": (
        {(State.COMMUNICATING, Cause.INFINIBAND): 0.994, UNKNOWN: 0.006, BUSY: 0.0},
        job({**REDUCES, DRAM: 0.01}, {**REDUCES, DRAM: 0.01}, 0.0),
        {"wires": {IB_OUT: (0.5, 50e9), IB_IN: (0.5, 50e9)}, "others": OTHERS},
    ),
    "a late rank": (
        {WAITS: 0.833, BUSY: 0.167},
        job(
            {ACTIVE: 1.0, SM: 0.254, TENSOR: 0.017, DRAM: 0.08},
            {ACTIVE: 0.167, SM: 0.137, TENSOR: 0.017, DRAM: 0.08},
        ),
        {"wires": links(), "others": OTHERS},
    ),
    "an overloaded rank": (
        {WAITS: 1 - 21 / 53, BUSY: 21 / 53},
        job(
            {ACTIVE: 1.0, SM: 0.499, TENSOR: 0.044, DRAM: 0.21},
            {ACTIVE: 1.0, SM: 0.879, TENSOR: 0.11, DRAM: 0.53},
        ),
        {"wires": links(), "others": OTHERS},
    ),
    "two that never talked": (
        {BUSY: 1.0},
        job({ACTIVE: 1.0, SM: 0.5, DRAM: 0.21}, {ACTIVE: 1.0, SM: 0.88, DRAM: 0.53}, 0.0),
        {"others": OTHERS, "history": GpuHistory(nvlink_seen=False)},
    ),
    "hot": ({HEAT: 0.4, BUSY: 0.6}, throttled(0x40, 1188), {}),
    "hot, of half the time": (
        {HEAT: 0.2, BUSY: 0.3, UNKNOWN: 0.5},
        {**throttled(0x20, 1188), (ACTIVE, GPU): 0.5},
        {},
    ),
    "brake": ({(State.THROTTLED, Cause.POWER): 0.4, BUSY: 0.6}, throttled(0x88, 1188), {}),
    "full power": ({BUSY: 1.0}, throttled(0x4, 1302), {}),
    "limit lowered": (
        {(State.THROTTLED, Cause.POWER): 0.4, BUSY: 0.6},
        throttled(0x4, 1188, limit=400),
        {},
    ),
    "voltage": (
        {(State.THROTTLED, Cause.RELIABILITY): 0.4, BUSY: 0.6},
        {**throttled(0, 1188), (clocks.THROTTLE, (*GPU, "reliability")): 0.6},
        {},
    ),
    "clocks that somebody set": ({BUSY: 1.0}, throttled(0x2, 1188), {}),
    "hot, at clocks that somebody set": (
        {HEAT: 0.2, BUSY: 0.8},
        throttled(0x42, 950),
        {"history": GpuHistory(clock=1188e6)},
    ),
    "a clock that it never had": (
        {HEAT: 0.2, BUSY: 0.8},
        throttled(0x40, 1188),
        {"history": GpuHistory(clock=1485e6)},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    expected, figures, rest = ROWS[name]
    division = divide_second(evidence(figures, **rest))
    found = {pair: share for pair, share in division.parts.items() if share > 0.001}
    assert found == pytest.approx({p: s for p, s in expected.items() if s > 0.001}, abs=0.03)
    assert all(division.found[pair] for pair in found), "each share says what decided it"


@pytest.mark.parametrize("name", ["a late rank", "an overloaded rank"])
def test_the_rank_that_others_wait_for_is_named(name: str) -> None:
    _, figures, rest = ROWS[name]
    division = divide_second(evidence(figures, **rest))
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


def test_a_share_has_its_figures() -> None:
    hot = divide_second(evidence(throttled(0x40, 1188)))
    (fact,) = hot.found[HEAT]
    assert fact.kind is FactKind.THERMAL_SLOWDOWN
    assert {f.name: f.value for f in fact.figures} == {"time": 1.0, "sm_clock": pytest.approx(0.6)}


share = st.floats(0.0, 1.0)
seen = st.fixed_dictionaries({}, optional=dict.fromkeys((ACTIVE, SM, TENSOR, DRAM), share))
history = st.builds(
    GpuHistory, st.floats(0, 99), st.floats(0, 99), st.booleans(), clock=st.floats(1e9, 2e9)
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
