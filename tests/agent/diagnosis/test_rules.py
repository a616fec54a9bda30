"""What the inactive share lacks: each rule fires with its evidence and rests at its edge."""

from types import MappingProxyType
from typing import NamedTuple

import pytest

from agent.diagnosis.facts import FactKind
from agent.diagnosis.power_levels import PowerLevels
from agent.diagnosis.rules import RULES, cause_of, doubts, nothing_explains
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import GpuHistory
from agent.model import Cause
from agent.sources import activity, cpu, disk, filesystem, power, pressure, process
from agent.sources import workload as work
from exporters.words import fact_text
from tests.support.evidence import GPU, Figures, Wires, evidence

ACTIVE = activity.ACTIVITY
INPUT_BOUND: Figures = {
    (process.PROCESSES, GPU): 1,
    (ACTIVE, GPU): 0.245,
    (activity.SM_ACTIVE, GPU): 0.19,
    (power.POWER, GPU): 209,
    (power.POWER_LIMIT, GPU): 700,
}
WAITING: Figures = {
    **INPUT_BOUND,
    (work.LAUNCHER_CORES, GPU): 0.30,
    (work.LAUNCHER_WAITING, GPU): 0.0,
    (work.LOADERS, GPU): 6,
    (work.LOADERS_WAITING, GPU): 0.94,
    (work.LOADERS_RUNNING, GPU): 0.07,
    (work.LOADERS_CORES, GPU): 0.41,
    (work.ALLOWED_CORES, GPU): 16,
}
RUNNING: Figures = {
    **WAITING,
    (work.LOADERS_WAITING, GPU): 0.0,
    (work.LOADERS_RUNNING, GPU): 1.0,
    (work.LOADERS_CORES, GPU): 6.0,
}
IN_ORDER: Figures = {**RUNNING, (work.LOADERS_RUNNING, GPU): 0.7, (work.LOADERS_CORES, GPU): 1.0}
IN_TURN: Figures = {**IN_ORDER, (work.LOADERS_CORES, GPU): 0.6, (work.LAUNCHER_CORES, GPU): 0.88}
ALONE: Figures = {
    **INPUT_BOUND,
    (work.LAUNCHER_CORES, GPU): 0.98,
    (work.LAUNCHER_WAITING, GPU): 0.0,
    (work.LOADERS, GPU): 0,
    (work.LOADERS_CORES, GPU): 0.0,
    (work.ALLOWED_CORES, GPU): 16,
}
LITTLE: Figures = {**ALONE, (ACTIVE, GPU): 0.17}
SERVER: Figures = {**ALONE, (work.LAUNCHER_CORES, GPU): 0.1}
"""Nothing that the host could hold up."""

NEW: Figures = {**ALONE, (ACTIVE, GPU): 0.01, (work.LAUNCHER_CORES, GPU): 1.3}
SOME: Figures = {**ALONE, (work.LAUNCHER_CORES, GPU): 0.5}
"""A process that does something, and shows nothing of what it lacks."""
READS: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 2.48e9, (disk.BUSY, ("nvme0n1",)): 0.99}
WRITTEN: Figures = {(disk.READ_BYTES, ("md1",)): 0.0, (disk.BUSY, ("md1",)): 1.0}
QUIET_DISK: Figures = {(disk.READ_BYTES, ("nvme0n1",)): 1e3, (disk.BUSY, ("nvme0n1",)): 0.01}
POOL: Figures = {
    **ALONE,
    (work.LAUNCHER_CORES, GPU): 3.9,
    (work.THREADS, GPU): 8,
    (work.BUSIEST_THREAD, GPU): 0.6,
    (work.RECEIVED, GPU): 60e6,
}
"""Threads that each fetch an object over HTTP, sleep until it is there, and decode it."""

DOWNLOADING: Figures = {
    **WAITING,
    (work.LOADERS_WAITING, GPU): 0.0,
    (work.LOADERS_RUNNING, GPU): 0.48,
    (work.LOADERS_CORES, GPU): 2.9,
    (work.RECEIVED, GPU): 60e6,
}
FETCHES: Figures = {(work.RECEIVED, GPU): 90e6}
COPIES: Wires = {("pcie", "gpu0", GPU, "receive"): (0.11, 63e9)}
FEWER: Wires = {("pcie", "gpu0", GPU, "receive"): (0.039, 63e9)}
NFS: Figures = {(filesystem.NETWORK_MOUNTS, ("nfs4",)): 1}
IO: Figures = {(pressure.PRESSURE, ("io", "some")): 0.30}
NIC: Wires = {("network", "eth0", (), "receive"): (0.95, 1.25e9)}
ARRAY: Wires = {("disk", "md0", (), "read"): (0.97, 2e9)}
MD0: Figures = {(disk.READ_BYTES, ("md0",)): 1.94e9}
BURSTS = GpuHistory(power=PowerLevels(126, 500, 0.38, distinct=True))
TURNS = GpuHistory(power=PowerLevels(126, 500, 0.75, distinct=True))
LESS = GpuHistory(power=PowerLevels(126, 500, 0.37, distinct=True))
"""Rests of half of the inactive time, and of less."""

LATE = GpuHistory(power=PowerLevels(126, 600, 0.11, distinct=True))
SPINS = GpuHistory(power=PowerLevels(126, 600, 0.60, distinct=True))


class Row(NamedTuple):
    """Figures, what must be found in them, and by which fact first."""

    cause: Cause
    fact: FactKind
    figures: Figures
    wires: Wires = MappingProxyType({})
    history: GpuHistory = GpuHistory()


def stalled(resource: str, share: float) -> Figures:
    """Share of time that some task of the job's own cgroup waits."""
    return {(work.CGROUP_STALLED, (*GPU, resource)): share}


UNKNOWN, UNEXPLAINED = Cause.UNKNOWN, FactKind.UNEXPLAINED
ROWS: dict[str, Row] = {
    # own threads
    "loaders read": Row(Cause.DISK, FactKind.DISK_READS, {**WAITING, **READS}),
    "asleep for 0.6 of a half": Row(
        Cause.DISK, FactKind.DISK_READS, {**WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.30}
    ),
    "asleep for less": Row(
        UNKNOWN, UNEXPLAINED, {**WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.29}
    ),
    "read, then decode for longer": Row(
        Cause.CPU,
        FactKind.LOADERS_RUNNING,
        {**WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.4, (work.LOADERS_RUNNING, GPU): 0.8},
    ),
    "reads itself": Row(
        Cause.DISK, FactKind.DISK_READS, {**SOME, **READS, (work.LAUNCHER_WAITING, GPU): 0.5}
    ),
    "reads itself, for less": Row(
        UNKNOWN, UNEXPLAINED, {**SOME, **READS, (work.LAUNCHER_WAITING, GPU): 0.49}
    ),
    "its threads read": Row(
        Cause.DISK, FactKind.DISK_READS, {**SOME, **READS, (work.THREADS_WAITING, GPU): 0.5}
    ),
    "the disk is quiet, and its cgroup reads": Row(
        Cause.DISK,
        FactKind.JOB_WRITES,
        {**WAITING, **QUIET_DISK, (work.CGROUP_READ, GPU): 5e6},
    ),
    "asleep, but for what": Row(UNKNOWN, UNEXPLAINED, {**WAITING, **QUIET_DISK}),
    "asleep, cgroup reads less": Row(
        UNKNOWN, UNEXPLAINED, {**WAITING, **QUIET_DISK, (work.CGROUP_READ, GPU): 4.9e6}
    ),
    "writes a checkpoint": Row(
        Cause.DISK, FactKind.DISK_WRITES, {**SOME, **WRITTEN, (work.LAUNCHER_WAITING, GPU): 0.9}
    ),
    "copies and writes in turn": Row(
        Cause.DISK,
        FactKind.JOB_WRITES,
        {**SOME, (work.LAUNCHER_WAITING, GPU): 0.1, (work.CGROUP_WRITTEN, GPU): 20e6},
    ),
    "writes a log": Row(
        UNKNOWN,
        UNEXPLAINED,
        {**SOME, (work.LAUNCHER_WAITING, GPU): 0.1, (work.CGROUP_WRITTEN, GPU): 19e6},
    ),
    "writes, waits for nothing": Row(
        UNKNOWN, UNEXPLAINED, {**SOME, (work.CGROUP_WRITTEN, GPU): 90e6}
    ),
    "network file system": Row(
        Cause.NETWORK, FactKind.LOADERS_ASLEEP, {**WAITING, **QUIET_DISK, **NFS}
    ),
    "its own disk works beside NFS": Row(
        Cause.DISK, FactKind.DISK_READS, {**WAITING, **READS, **NFS}
    ),
    "pageable copies": Row(Cause.PCIE, FactKind.PAGEABLE_COPIES, LITTLE, COPIES),
    "pageable copies, in bursts": Row(Cause.PCIE, FactKind.PAGEABLE_COPIES, LITTLE, COPIES, BURSTS),
    "fewer bytes than pageable copies": Row(Cause.HOST_THREAD, FactKind.ONE_THREAD, LITTLE, FEWER),
    "as few, all of them while the GPU rests": Row(
        Cause.PCIE, FactKind.PAGEABLE_COPIES, {**ALONE, (ACTIVE, GPU): 0.69}, FEWER, BURSTS
    ),
    "bytes that nobody copies": Row(
        UNKNOWN, UNEXPLAINED, {**SOME, (work.LAUNCHER_CORES, GPU): 0.3}, COPIES
    ),
    "loaders decode for pinned copies": Row(
        Cause.CPU, FactKind.LOADERS_RUNNING, {**RUNNING, (work.LAUNCHER_CORES, GPU): 1.0}, COPIES
    ),
    "threads decode for pinned copies": Row(
        Cause.CPU, FactKind.THREADS_RUNNING, {**ALONE, (work.LAUNCHER_CORES, GPU): 4.0}, COPIES
    ),
    "decoder commands": Row(
        Cause.CPU, FactKind.COMMANDS_RUNNING, {**SOME, (work.CHILDREN_CORES, GPU): 0.38}
    ),
    "fewer commands": Row(UNKNOWN, UNEXPLAINED, {**SOME, (work.CHILDREN_CORES, GPU): 0.37}),
    "a pool of threads downloads": Row(Cause.NETWORK, FactKind.JOB_RECEIVES, POOL),
    "a pool of threads decodes what it downloads": Row(
        Cause.CPU, FactKind.THREADS_RUNNING, {**POOL, (work.LAUNCHER_CORES, GPU): 4.0}
    ),
    "a pool of threads, and nothing arrives": Row(
        Cause.CPU, FactKind.THREADS_RUNNING, {**POOL, (work.RECEIVED, GPU): 4.9e6}
    ),
    "one thread of the pool is the limit": Row(
        Cause.CPU, FactKind.THREADS_RUNNING, {**POOL, (work.BUSIEST_THREAD, GPU): 0.92}
    ),
    "loaders download, and decode for less than half of the time": Row(
        Cause.NETWORK, FactKind.JOB_RECEIVES, DOWNLOADING
    ),
    "loaders download, and decode for half of the time": Row(
        Cause.CPU, FactKind.LOADERS_COMPUTE, {**DOWNLOADING, (work.LOADERS_CORES, GPU): 3.0}
    ),
    "loaders decode": Row(Cause.CPU, FactKind.LOADERS_RUNNING, RUNNING),
    "loaders run at the edge": Row(
        Cause.CPU, FactKind.LOADERS_RUNNING, {**RUNNING, (work.LOADERS_RUNNING, GPU): 0.80}
    ),
    "all wait for one loader": Row(Cause.CPU, FactKind.LOADERS_COMPUTE, IN_ORDER),
    "loaders run less": Row(UNKNOWN, UNEXPLAINED, {**IN_ORDER, (work.LOADERS_CORES, GPU): 0.99}),
    "threads decode": Row(
        Cause.CPU, FactKind.THREADS_RUNNING, {**ALONE, (work.LAUNCHER_CORES, GPU): 1.6}
    ),
    "neither one thread nor many": Row(
        UNKNOWN, UNEXPLAINED, {**ALONE, (work.LAUNCHER_CORES, GPU): 1.59}
    ),
    "threads queue": Row(
        Cause.CPU, FactKind.THREADS_QUEUED, {**SOME, (work.THREADS_QUEUED, GPU): 0.25}
    ),
    "threads queue less": Row(UNKNOWN, UNEXPLAINED, {**SOME, (work.THREADS_QUEUED, GPU): 0.24}),
    "all allowed cores": Row(
        Cause.CPU, FactKind.JOB_CORES, {**ALONE, (work.ALLOWED_CORES, GPU): 1}
    ),
    "not all allowed cores": Row(UNKNOWN, UNEXPLAINED, {**SOME, (work.ALLOWED_CORES, GPU): 0.56}),
    "one compiles": Row(
        Cause.CPU,
        FactKind.COMPILING,
        {**RUNNING, (ACTIVE, GPU): 0.04, (work.LOADERS_RUNNING, GPU): 0.5},
    ),
    "compiles in its own threads": Row(
        Cause.CPU,
        FactKind.COMPILING,
        {**NEW, (work.LIVES, GPU): 179},
    ),
    "several threads that spin": Row(UNKNOWN, UNEXPLAINED, {**NEW, (work.LIVES, GPU): 180}),
    "prepares itself": Row(Cause.CPU, FactKind.PREPARES_ITSELF, ALONE, history=BURSTS),
    "takes turns with the GPU": Row(
        Cause.CPU,
        FactKind.PREPARES_ITSELF,
        {**SOME, (work.LAUNCHER_CORES, GPU): 0.7},
        history=TURNS,
    ),
    "turns of loaders": Row(Cause.CPU, FactKind.LOADERS_TAKE_TURNS, IN_TURN, history=TURNS),
    "takes no turns": Row(UNKNOWN, UNEXPLAINED, SOME, history=TURNS),
    "rests a little less": Row(Cause.HOST_THREAD, FactKind.ONE_THREAD, ALONE, history=LESS),
    "late by rests of a tenth": Row(
        Cause.CPU, FactKind.PREPARES_ITSELF, {**ALONE, (ACTIVE, GPU): 0.89}, history=LATE
    ),
    "late by rests, asleep": Row(UNKNOWN, UNEXPLAINED, {**SOME, (ACTIVE, GPU): 0.89}, history=LATE),
    "at low power, and active": Row(
        Cause.HOST_THREAD,
        FactKind.ONE_THREAD,
        {**ALONE, (work.LAUNCHER_CORES, GPU): 1.0, (ACTIVE, GPU): 0.98},
        history=SPINS,
    ),
    "one level of power": Row(
        Cause.HOST_THREAD,
        FactKind.ONE_THREAD,
        ALONE,
        history=GpuHistory(power=PowerLevels(150, 170, 0.9, distinct=False)),
    ),
    "launches": Row(Cause.HOST_THREAD, FactKind.ONE_THREAD, ALONE),
    "launches at the least": Row(
        Cause.HOST_THREAD, FactKind.ONE_THREAD, {**ALONE, (work.LAUNCHER_CORES, GPU): 0.92}
    ),
    "launches less": Row(UNKNOWN, UNEXPLAINED, {**ALONE, (work.LAUNCHER_CORES, GPU): 0.91}),
    "launches at the most": Row(
        Cause.HOST_THREAD, FactKind.ONE_THREAD, {**ALONE, (work.LAUNCHER_CORES, GPU): 1.30}
    ),
    "a server that spins": Row(UNKNOWN, UNEXPLAINED, {**ALONE, (ACTIVE, GPU): 0.049}),
    "a server that spins, in bursts": Row(
        UNKNOWN, UNEXPLAINED, {**ALONE, (ACTIVE, GPU): 0.049}, history=BURSTS
    ),
    "receives": Row(Cause.NETWORK, FactKind.JOB_RECEIVES, {**SOME, (work.RECEIVED, GPU): 5e6}),
    "receives less": Row(UNKNOWN, UNEXPLAINED, {**SOME, (work.RECEIVED, GPU): 4.9e6}),
    "receives, and reads": Row(UNKNOWN, UNEXPLAINED, {**SOME, **READS, **FETCHES}),
    "receives, while another compiles": Row(  # in the same network namespace
        Cause.CPU,
        FactKind.COMPILING,
        {**IN_TURN, (ACTIVE, GPU): 0.01, (work.LAUNCHER_CORES, GPU): 0.83, **FETCHES},
    ),
    "receives, and launches": Row(Cause.HOST_THREAD, FactKind.ONE_THREAD, {**ALONE, **FETCHES}),
    # its cgroup
    "cgroup waits for io": Row(
        Cause.DISK, FactKind.JOB_IO_PRESSURE, {**SOME, **stalled("io", 0.30)}
    ),
    "cgroup waits less for io": Row(UNKNOWN, UNEXPLAINED, {**SOME, **stalled("io", 0.29)}),
    "cgroup waits for cores": Row(
        Cause.CPU, FactKind.JOB_CPU_PRESSURE, {**SOME, **stalled("cpu", 0.30)}
    ),
    "its quota": Row(Cause.CPU, FactKind.QUOTA, {**SOME, (work.CGROUP_THROTTLED, GPU): 0.30}),
    "memory is short": Row(
        Cause.CPU, FactKind.JOB_MEMORY_PRESSURE, {**SOME, **stalled("memory", 0.30)}
    ),
    "memory is short, a little": Row(UNKNOWN, UNEXPLAINED, {**SOME, **stalled("memory", 0.29)}),
    "memory is short, and its pages are read again": Row(
        Cause.DISK,
        FactKind.JOB_MEMORY_PRESSURE,
        {**SOME, **stalled("memory", 0.30), **stalled("io", 0.30)},
    ),
    "loaders wait for pages that were thrown out": Row(
        Cause.DISK, FactKind.JOB_MEMORY_PRESSURE, {**WAITING, **READS, **stalled("memory", 0.5)}
    ),
    # the host
    "all cores of the host": Row(Cause.CPU, FactKind.HOST_CORES, {**SOME, (cpu.BUSY, ()): 0.90}),
    "not all of them": Row(UNKNOWN, UNEXPLAINED, {**SOME, (cpu.BUSY, ()): 0.89}),
    "array at its limit": Row(Cause.DISK, FactKind.DISK_READS, {**SOME, **MD0}, ARRAY),
    "io pressure": Row(Cause.DISK, FactKind.IO_PRESSURE, {**SOME, **READS, **IO}),
    "io pressure, quiet disks": Row(UNKNOWN, UNEXPLAINED, {**SOME, **QUIET_DISK, **IO}),
    "port at its limit": Row(Cause.NETWORK, FactKind.PORT_RECEIVES, SOME, NIC),
    "port below": Row(
        UNKNOWN, UNEXPLAINED, SOME, {("network", "eth0", (), "receive"): (0.89, 1.25e9)}
    ),
    "cpu pressure": Row(
        Cause.CPU, FactKind.CPU_PRESSURE, {**SOME, (pressure.PRESSURE, ("cpu", "some")): 0.30}
    ),
    "cpu pressure below": Row(
        UNKNOWN, UNEXPLAINED, {**SOME, (pressure.PRESSURE, ("cpu", "some")): 0.29}
    ),
    "at rest, not held yet": Row(UNKNOWN, FactKind.QUIET, {**SERVER, (ACTIVE, GPU): 0.0}),
}

HOST_LOADS: dict[str, tuple[Figures, Wires]] = {
    "cores": ({(cpu.BUSY, ()): 0.99}, {}),
    "scan": (MD0, ARRAY),
    "backup": ({**READS, **IO}, {}),
    "download": ({}, NIC),
    "pressure": ({(pressure.PRESSURE, ("cpu", "some")): 0.9}, {}),
}
"""What somebody else may do to the host."""


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row = ROWS[name]
    cause, (rule, found) = cause_of(evidence(row.figures, row.wires, row.history))
    assert (cause, found[0].kind) == (row.cause, row.fact)
    assert all(map(fact_text, found)), "each fact has the figures that its sentence asks for"
    assert (cause, rule) in RULES


def test_every_rule_is_found_by_a_row() -> None:
    found = set()
    for row in ROWS.values():
        e = evidence(row.figures, row.wires, row.history)
        found.add(next(rule.find for rule in RULES if rule.find(e)))
    assert {rule.find for rule in RULES} - found == set()
    assert RULES[-1].find is nothing_explains


@pytest.mark.parametrize("load", HOST_LOADS)
@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.cause is not UNKNOWN])
def test_what_the_job_shows_comes_before_what_the_host_shows(name: str, load: str) -> None:
    """The rows of the host itself come after its own order, and are left out."""
    row, (figures, wires) = ROWS[name], HOST_LOADS[load]
    kind = cause_of(evidence(row.figures, row.wires, row.history))[1].facts[0].kind
    if kind in HOST_FACTS or (row.wires or MD0.items() <= row.figures.items()):
        pytest.skip("a row of the host")
    e = evidence({**figures, **row.figures}, wires, row.history)
    if kind is FactKind.JOB_RECEIVES and load == "backup":
        return  # a local disk that works speaks against the network: nobody can tell
    assert cause_of(e)[0] is row.cause


HOST_FACTS = {
    *(FactKind.HOST_CORES, FactKind.IO_PRESSURE),
    *(FactKind.PORT_RECEIVES, FactKind.CPU_PRESSURE),
}


def test_own_threads_come_before_the_cgroup_and_that_before_the_host() -> None:
    host: Figures = {(cpu.BUSY, ()): 0.99}
    assert cause_of(evidence({**SOME, **host}))[0] is Cause.CPU
    assert cause_of(evidence({**SOME, **host, **stalled("io", 0.5)}))[0] is Cause.DISK
    own = {**SOME, **host, **stalled("io", 0.5), (work.RECEIVED, GPU): 50e6}
    assert cause_of(evidence(own))[0] is Cause.NETWORK


def test_what_was_found_has_its_figures_as_values() -> None:
    cause, grounds = cause_of(evidence({**WAITING, **READS}))
    reads, asleep = grounds.facts
    assert cause is Cause.DISK
    assert grounds.place == "rules.py:waits_for_disk"
    assert (reads.kind, reads.names) == (FactKind.DISK_READS, ("nvme0n1",))
    assert [f.name for f in reads.figures] == ["read", "busy"]
    assert [f.value for f in reads.figures] == pytest.approx([2.48e9, 0.99])
    assert asleep.kind is FactKind.LOADERS_ASLEEP
    assert asleep.figures[0].value == 6
    assert asleep.figures[1][1:] == (0.94, 0.6 * Thresholds().waiting, "ratio")
    slept = {**WAITING, **READS, (work.LOADERS_WAITING, GPU): 0.1, (work.THREADS_WAITING, GPU): 0.8}
    assert cause_of(evidence(slept))[1].facts[1].figures[1][1] == 0.8, "the longest decided"


def test_thresholds_are_configuration() -> None:
    figures = {**IN_ORDER, (work.LOADERS_RUNNING, GPU): 0.5, (work.LOADERS_CORES, GPU): 0.9}
    assert cause_of(evidence(figures))[0] is UNKNOWN
    assert cause_of(evidence(figures, thresholds=Thresholds(running=0.5)))[0] is Cause.CPU


def test_doubts_say_what_was_not_seen() -> None:
    assert list(doubts(evidence(INPUT_BOUND))) == []
    blind = {key: value for key, value in INPUT_BOUND.items() if key[0] is not activity.SM_ACTIVE}
    assert [fact.kind for fact in doubts(evidence(blind))] == [FactKind.WITHOUT_GPM]
