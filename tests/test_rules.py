"""The table of verdicts, row by row and at its edges."""

from collections.abc import Mapping
from typing import Any

import pytest

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.diagnosis.rules import RULES, judge
from agent.diagnosis.scene import Past
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.verdict import PAIRS, Grade
from agent.model import Metric
from agent.sources import activity, clocks, cpu, disk, filesystem, nvlink, power, pressure, process
from agent.sources import workload as work
from tests.evidence import GPU, Figures, evidence

MATE = ("1", "GPU-1")
SM, ACTIVE, WATTS = activity.SM_ACTIVE, activity.ACTIVITY, power.POWER
TRAIN: dict[tuple[Metric, tuple[str, ...]], float] = {
    (process.PROCESSES, GPU): 1,
    (activity.ACTIVITY, GPU): 0.97,
    (activity.SM_ACTIVE, GPU): 0.90,
    (power.POWER, GPU): 637,
    (power.POWER_LIMIT, GPU): 700,
    (clocks.CLOCK, (*GPU, "sm")): 1.98e9,
    (clocks.CLOCK_LIMIT, (*GPU, "sm")): 1.98e9,
    (clocks.REASONS, GPU): 0,
    (nvlink.LINKS, GPU): 18,
}
HUNGRY = {**TRAIN, (activity.ACTIVITY, GPU): 0.245, (activity.SM_ACTIVE, GPU): 0.19}
WAITING = {
    (work.LAUNCHER_CORES, GPU): 0.30,
    (work.LAUNCHER_WAITING, GPU): 0.0,
    (work.LOADERS, GPU): 6,
    (work.LOADERS_WAITING, GPU): 0.94,
    (work.LOADERS_RUNNING, GPU): 0.07,
    (work.LOADERS_CORES, GPU): 0.41,
    (work.ALLOWED_CORES, GPU): 16,
}
RUNNING = {**WAITING, (work.LOADERS_WAITING, GPU): 0.0, (work.LOADERS_RUNNING, GPU): 1.0}
ALONE = {**WAITING, (work.LOADERS, GPU): 0, (work.LAUNCHER_CORES, GPU): 0.98}
QUIET_SERVER = {
    **HUNGRY,
    (ACTIVE, GPU): 0.1,
    **ALONE,
    (work.LAUNCHER_CORES, GPU): 0.1,
    (work.LOADERS_CORES, GPU): 0.0,
    (work.LOADERS_WAITING, GPU): 0.0,
}
READS = {(disk.READ_BYTES, ("nvme0n1",)): 2.48e9, (disk.BUSY, ("nvme0n1",)): 0.99}
QUIET_DISK = {(disk.READ_BYTES, ("nvme0n1",)): 1e3, (disk.BUSY, ("nvme0n1",)): 0.01}
NFS = {(filesystem.NETWORK_MOUNTS, ("nfs4",)): 1}


def without(figures: Figures, *metrics: Metric) -> Figures:
    return {key: value for key, value in figures.items() if key[0] not in metrics}


def job(mine: Mapping[Metric, float], theirs: Mapping[Metric, float]) -> Figures:
    """Two GPUs of one job that differ in these figures."""
    both = dict(TRAIN)
    for (metric, labels), value in TRAIN.items():
        both[metric, (*MATE, *labels[2:])] = value
    for gpu, its in ((GPU, mine), (MATE, theirs)):
        both[work.JOB, (*gpu, "train.py:1", "eve", "process", "root:1")] = 1
        for metric, value in its.items():
            both[metric, gpu] = value
    return both


TO_GPU = ("pcie", "gpu0", GPU, "receive")
OVER_NVLINK = ("nvlink", "gpu0", GPU, "transmit")
SPINS = {ACTIVE: 1.0, SM: 0.25, WATTS: 234}
IB_OUT, IB_IN = (("infiniband", "mlx5_0:1", (), way) for way in ("transmit", "receive"))
NIC = ("network", "eth0", (), "receive")
ARRAY = ("disk", "md0", (), "read")

CAPPED = {
    **TRAIN,
    (clocks.REASONS, GPU): 0x4,
    (clocks.CLOCK, (*GPU, "sm")): 1.302e9,
    (power.DEFAULT_LIMIT, GPU): 700,
}
COPIES = {**TRAIN, (ACTIVE, GPU): 0.0, (SM, GPU): 0.0}
REDUCES = {**TRAIN, (SM, GPU): 0.178}
ROWS: dict[str, tuple[str, Figures, dict[str, Any]]] = {
    "nobody": ("idle/none", {**HUNGRY, (process.PROCESSES, GPU): 0}, {}),
    "held": ("held/none", {**TRAIN, (ACTIVE, GPU): 0.0}, {"past": Past(60.0)}),
    "held not yet": ("starved/unknown", {**TRAIN, (ACTIVE, GPU): 0.0}, {"past": Past(59.0)}),
    "hot": ("throttled/thermal", {**TRAIN, (clocks.REASONS, GPU): 0x40}, {}),
    "brake": ("throttled/power", {**TRAIN, (clocks.REASONS, GPU): 0x88}, {}),
    "power cap at full clocks": ("busy/none", {**TRAIN, (clocks.REASONS, GPU): 0x4}, {}),
    "power cap at full power": (
        "busy/none",
        {**CAPPED, (WATTS, GPU): 699, (power.POWER_LIMIT, GPU): 700},
        {},
    ),
    "limit lowered": (
        "throttled/power",
        {**CAPPED, (WATTS, GPU): 400, (power.POWER_LIMIT, GPU): 400},
        {},
    ),
    "limit lowered a little": (
        "busy/none",
        {**CAPPED, (WATTS, GPU): 640, (power.POWER_LIMIT, GPU): 640},
        {},
    ),
    "voltage": (
        "throttled/reliability",
        {**TRAIN, (clocks.THROTTLE, (*GPU, "reliability")): 0.6},
        {},
    ),
    "copies": ("starved/pcie", COPIES, {"wires": {TO_GPU: (0.87, 63e9)}}),
    "copies at threshold": ("starved/pcie", COPIES, {"wires": {TO_GPU: (0.80, 63e9)}}),
    "copies below": ("starved/unknown", COPIES, {"wires": {TO_GPU: (0.79, 63e9)}}),
    "copies beside work": ("busy/none", TRAIN, {"wires": {TO_GPU: (0.95, 63e9)}}),
    "all-reduce": ("communicating/nvlink", REDUCES, {"wires": {OVER_NVLINK: (0.92, 450e9)}}),
    "nvlink in use": ("communicating/nvlink", REDUCES, {"wires": {OVER_NVLINK: (0.10, 450e9)}}),
    "nvlink beside work": ("busy/none", TRAIN, {"wires": {OVER_NVLINK: (0.92, 450e9)}}),
    "infiniband": (
        "communicating/infiniband",
        REDUCES,
        {"wires": {IB_OUT: (0.5, 50e9), IB_IN: (0.5, 50e9)}},
    ),
    "reads over infiniband": (
        "busy/none",
        REDUCES,
        {"wires": {IB_OUT: (0.01, 50e9), IB_IN: (0.5, 50e9)}},
    ),
    "storage over infiniband": (
        "starved/network",
        HUNGRY,
        {"wires": {IB_OUT: (0.01, 50e9), IB_IN: (0.95, 50e9)}},
    ),
    "peer does more": ("starved/peer", job({ACTIVE: 1.0, SM: 0.50}, {SM: 0.88}), {}),
    "peer does a little more": ("busy/none", job({ACTIVE: 1.0, SM: 0.60}, {SM: 0.88}), {}),
    "peer is slow": ("starved/peer", job(SPINS, {ACTIVE: 0.16, SM: 0.14}), {}),
    "the slow one": (
        "starved/unknown",
        job({ACTIVE: 0.16, SM: 0.14}, SPINS),
        {},
    ),
    "slow, fed by a disk": (
        "starved/disk",
        {**job({ACTIVE: 0.16, SM: 0.14}, SPINS), **WAITING, **READS},
        {},
    ),
    "never talked": (
        "busy/none",
        job({ACTIVE: 1.0, SM: 0.50}, {SM: 0.88}),
        {"past": Past(0.0, talked=False)},
    ),
    "waits without spinning": (
        "starved/peer",
        job({ACTIVE: 0.4, SM: 0.3}, {ACTIVE: 0.98, SM: 0.88}),
        {},
    ),
    "busy": ("busy/none", {**TRAIN, (ACTIVE, GPU): 0.80}, {}),
    "not quite busy": ("starved/unknown", {**TRAIN, (ACTIVE, GPU): 0.79}, {}),
    "disk": ("starved/disk", {**HUNGRY, **WAITING, **READS}, {}),
    "loaders half asleep": (
        "starved/disk",
        {**HUNGRY, **WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.50},
        {},
    ),
    "loaders less asleep": (
        "starved/unknown",
        {**HUNGRY, **WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.49},
        {},
    ),
    "network": ("starved/network", {**HUNGRY, **WAITING, **QUIET_DISK, **NFS}, {}),
    "asleep, but for what": ("starved/unknown", {**HUNGRY, **WAITING, **QUIET_DISK}, {}),
    "cpu": ("starved/cpu", {**HUNGRY, **RUNNING}, {}),
    "cpu beside somebody's disk": (
        "starved/cpu",
        {**HUNGRY, **RUNNING, **READS, (pressure.PRESSURE, ("io", "some")): 0.9},
        {},
    ),
    "own reads": (
        "starved/disk",
        {**HUNGRY, **ALONE, **READS, (work.LAUNCHER_WAITING, GPU): 0.9},
        {},
    ),
    "io pressure": (
        "starved/disk",
        {**HUNGRY, **READS, (pressure.PRESSURE, ("io", "some")): 0.30},
        {},
    ),
    "array at its limit": ("starved/disk", HUNGRY, {"wires": {ARRAY: (0.97, 2e9)}}),
    "nic at its limit": ("starved/network", HUNGRY, {"wires": {NIC: (0.95, 1.25e9)}}),
    "all cores": ("starved/cpu", {**HUNGRY, (cpu.BUSY, ()): 0.93}, {}),
    "quiet beside a backup": (
        "starved/unknown",
        {**QUIET_SERVER, **READS, (pressure.PRESSURE, ("io", "some")): 0.9},
        {},
    ),
    "quiet beside somebody's cores": (
        "starved/unknown",
        {**QUIET_SERVER, (cpu.BUSY, ()): 0.95, (pressure.PRESSURE, ("cpu", "some")): 0.5},
        {},
    ),
    "quiet beside somebody's download": (
        "starved/unknown",
        QUIET_SERVER,
        {"wires": {NIC: (0.95, 1.25e9)}},
    ),
    "quiet beside somebody's scan": ("starved/unknown", QUIET_SERVER, {"wires": {ARRAY: (1, 2e9)}}),
    "writes a checkpoint": (
        "starved/disk",
        {
            **HUNGRY,
            **ALONE,
            **NFS,
            (work.LAUNCHER_WAITING, GPU): 0.9,
            (disk.READ_BYTES, ("md1",)): 0.0,
            (disk.BUSY, ("md1",)): 1.0,
        },
        {},
    ),
    "a sweep beside a larger model": (
        "starved/host_thread",
        {**job({ACTIVE: 0.5, SM: 0.3}, {ACTIVE: 0.98, SM: 0.90}), **ALONE},
        {"past": Past(0.0, talked=False)},
    ),
    "beside an idle context": (
        "busy/none",
        job(SPINS, {ACTIVE: 0.0, SM: 0.0}),
        {"pasts": {MATE: Past(600.0)}},
    ),
    "a stale counter": (
        "starved/disk",
        {**HUNGRY, **WAITING, **READS, (activity.NVLINK_RATE, (*GPU, "transmit")): 0.0},
        {"wires": {OVER_NVLINK: (0.12, 450e9)}},
    ),
    "all allowed cores": (
        "starved/cpu",
        {**HUNGRY, **ALONE, (work.ALLOWED_CORES, GPU): 1},
        {},
    ),
    "cpu pressure": ("starved/cpu", {**HUNGRY, (pressure.PRESSURE, ("cpu", "some")): 0.31}, {}),
    "one thread": ("starved/host_thread", {**HUNGRY, **ALONE}, {}),
    "many threads": (
        "starved/unknown",
        {**HUNGRY, **ALONE, (work.LAUNCHER_CORES, GPU): 1.31},
        {},
    ),
    "sleeps": ("starved/unknown", {**HUNGRY, **ALONE, (work.LAUNCHER_CORES, GPU): 0.2}, {}),
}


def arranged(name: str) -> tuple[str, Figures, dict[str, Any]]:
    """A row; the array of "array at its limit" must be known as a disk too."""
    expected, figures, rest = ROWS[name]
    if ARRAY in rest.get("wires", {}):
        figures = {**figures, (disk.READ_BYTES, ("md0",)): 1.94e9}
    return expected, figures, rest


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    expected, figures, rest = arranged(name)
    verdict = judge(evidence(figures, **rest))
    assert "/".join(verdict.pair) == expected, verdict.evidence
    assert verdict.evidence


def test_every_pair_that_can_be_is_found_by_a_row() -> None:
    found = {tuple(ROWS[name][0].split("/")) for name in ROWS}
    pcie_between_gpus = {("communicating", "pcie")}  # below
    assert found | pcie_between_gpus == {(s.value, c.value) for s, c in PAIRS}
    assert {(rule.state, rule.cause) for rule in RULES} == set(PAIRS)


def test_without_nvlink_gpus_talk_over_pcie() -> None:
    figures = without(job({ACTIVE: 1.0, SM: 0.1}, {ACTIVE: 1.0, SM: 0.1}), nvlink.LINKS)
    wires = {
        ("pcie", "gpu0", GPU, "transmit"): (0.85, 16e9),
        ("pcie", "gpu1", MATE, "receive"): (0.85, 16e9),
    }
    assert "/".join(judge(evidence(figures, wires)).pair) == "communicating/pcie"
    alone = {key: ratio for key, ratio in wires.items() if key[1] == "gpu0"}
    assert "/".join(judge(evidence(figures, alone)).pair) == "starved/pcie"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("copies", "starved/pcie"),
        ("all-reduce", "communicating/nvlink"),
        ("peer does more", "starved/peer"),
        ("peer is slow", "starved/peer"),
        ("disk", "starved/disk"),
        ("busy", "busy/none"),
    ],
)
def test_without_gpm_power_stands_for_the_multiprocessors(name: str, expected: str) -> None:
    _, figures, rest = arranged(name)
    drawn = {"copies": 130.0, "all-reduce": 280.0, "peer does more": 350.0, "peer is slow": 234.0}
    figures = {**without(figures, SM), (WATTS, GPU): drawn.get(name, 630.0)}
    if name == "copies":
        figures[ACTIVE, GPU] = 0.99  # utilisation counts copies
    verdict = judge(evidence(figures, **rest))
    assert "/".join(verdict.pair) == expected
    assert verdict.grade is Grade.NVML
    if name == "copies":
        assert verdict.lost == 1.0


def test_what_is_lost_is_the_inactive_share() -> None:
    assert judge(evidence({**HUNGRY, **WAITING, **READS})).lost == pytest.approx(0.755)
    assert judge(evidence(TRAIN)).lost == 1.0
    waiter = judge(evidence(job({ACTIVE: 1.0, SM: 0.50}, {SM: 0.88})))
    assert waiter.lost == pytest.approx(1 - 0.50 / 0.88)
    behind_a_sleeper = judge(evidence(job(SPINS, {ACTIVE: 0.16, SM: 0.14})))
    assert behind_a_sleeper.lost == pytest.approx(1 - 0.25)


def test_a_verdict_says_its_figures() -> None:
    words = judge(evidence({**HUNGRY, **WAITING, **READS})).evidence
    assert words == (
        "nvme0n1 reads 2.48 GB/s, busy 99 % of the time",
        "6 loader processes in uninterruptible sleep 94 % of the time",
    )


def test_thresholds_are_configuration() -> None:
    lenient = Thresholds(busy=0.20)
    assert "/".join(judge(evidence(HUNGRY, thresholds=lenient)).pair) == "busy/none"


def test_every_pair_has_a_summary_and_every_loss_an_advice() -> None:
    assert set(SUMMARIES) == set(PAIRS)
    assert set(PAIRS) - set(ADVICE) == {p for p in PAIRS if p[0] in ("idle", "busy")}
