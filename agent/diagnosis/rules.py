"""What the inactive share of a GPU's second lacks: the first rule that finds its evidence wins.

What the job's own threads show comes before what its cgroup shows, and that before what the host
shows: nobody is blamed for another's load. Memory that runs short comes before all of them, for
everything else waits for it. Pure functions.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from agent.diagnosis.bursts import WORKS_AT_ALL, in_bursts, rest_share
from agent.diagnosis.cgroup_rules import (
    STALLED,
    cgroup_waits_for_cores,
    cgroup_waits_for_io,
    memory_is_short,
)
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import (
    CORES,
    COUNT,
    NOTHING,
    RATE,
    SECONDS,
    FactKind,
    Found,
    Grounds,
    ratio,
    traffic,
)
from agent.diagnosis.host_rules import (
    cores_of_host_used_up,
    cpu_pressed,
    disk_at_limit,
    disk_fact,
    network_at_limit,
    port_facts,
)
from agent.diagnosis.launches import launches
from agent.model import Cause, Fact, Figure, SignalQuality
from agent.sources import workload

MANY_THREADS = 1.6
"""Cores of the launching processes above which they do more than launch: they prepare data."""

QUEUED = 0.25
"""Share of their ready time for which threads have no core: there are too few."""

CHAIN = 3
"""Threads up to which one core of them together is a chain of launches: forward pass, backward
pass, and the driver's."""

COPIES = 0.50
"""Cores that copies from pageable memory use at least, over their share of the time."""

PAGEABLE_IN_PAUSES = 5e9
"""The same over the time for which the GPU rests, where it rests and works in turns."""

COMMANDS_SHARE = 0.50
"""Share of the inactive time for which short-lived commands must run to be what it waits for."""

PAGEABLE_RATE = 2.5e9
"""Bytes a second that show copies from memory that is not pinned, made by one thread through a
buffer: 3 GB/s on PCIe 3.0, 6 to 13 GB/s on 5.0 while they go on. Batches of images that are
decoded as they come make 0.2 to 0.5 GB/s, those of a small network in memory up to 2.1 (H100)."""

DATA_RATE = 5e6
"""Bytes a second that count as data on its way to the GPU."""

CHECKPOINT_RATE = 20e6
"""Bytes a second written by a job whose process waits for them: a checkpoint."""

IDLE_LOADER_CORES = 0.50
"""Cores of one loader below which it mostly waits."""

RUNNING_CORES = 0.30
"""Cores from which a process does more than wait."""

COMPILING_CORES = 1.15
"""Cores that a process does not use which only spins: compiling used 1.1 to 1.5 (JAX)."""

COMPILING_AT_FIRST = 180.0
"""Seconds after the processes came for which that is believed: a server without requests may have
several threads that spin."""

LOADER_CORES = 1.0
"""Cores of all loaders together, from which their computing takes time that batches wait for."""

TURN_SHARE = 0.10
"""Share of the time for which GPU and process must each work, at least, to take turns."""

TURNS_TOLERANCE = 0.15
"""They take turns where |cores - inactive share| is at most this share of the inactive share."""

LOADERS_SLEEP_LESS = 0.6
"""Of the threshold of a process that waits for a disk: a loader also decodes what it has read."""


# What the job's own processes and threads show


def waits_for_disk(e: Evidence) -> Found:
    """Loaders, or the process itself, in uninterruptible sleep while a local disk works."""
    if not _blocked(e) or (_runs(e) or 0.0) > (_waits(e) or 0.0):
        return NOTHING
    active = e.context.active_disk(written=not e.host.loaders)
    if active is not None:
        return (disk_fact(active), _asleep(e))
    written = e.host.job_rate(workload.CGROUP_WRITTEN) or 0.0
    read = e.host.job_rate(workload.CGROUP_READ) or 0.0
    if max(written, read) < DATA_RATE or e.context.network_mounts:
        return NOTHING
    moved = Fact(FactKind.JOB_WRITES, (Figure("rate", max(written, read), None, RATE),))
    return (moved, _asleep(e))


def writes_what_it_waits_for(e: Evidence) -> Found:
    """A checkpoint: the process copies and waits in turn while its cgroup writes."""
    written = e.host.job_rate(workload.CGROUP_WRITTEN)
    if written is None or written < CHECKPOINT_RATE or e.host.loaders or not e.host.waiting:
        return NOTHING
    return (Fact(FactKind.JOB_WRITES, (Figure("rate", written, None, RATE),)), _asleep(e))


def waits_for_network(e: Evidence) -> Found:
    """The same sleep with quiet local disks, and file systems of the network mounted."""
    local = e.context.active_disk(written=not e.host.loaders)
    if not _blocked(e) or local or not e.context.network_mounts:
        return NOTHING
    mounted = Fact(FactKind.NETWORK_MOUNTED, names=e.context.network_mounts)
    return (*port_facts(e), _asleep(e), mounted)


def loaders_run(e: Evidence) -> Found:
    least = e.context.thresholds.running
    if not e.host.loaders or e.host.running is None or e.host.running < least:
        return NOTHING
    loaders = Figure("loaders", e.host.loaders, None, COUNT)
    return (Fact(FactKind.LOADERS_RUNNING, (loaders, ratio("time", e.host.running, least))),)


def commands_run(e: Evidence) -> Found:
    """Commands that end after each file (a decoder, a converter): seldom met while they run, but
    their CPU time is counted when they end."""
    cores = e.host.children_cores
    if cores < max(RUNNING_CORES, COMMANDS_SHARE * (1.0 - e.mean_activity)):
        return NOTHING
    return (Fact(FactKind.COMMANDS_RUNNING, (Figure("cores", cores, None, CORES),)),)


def copies_pageable(e: Evidence) -> Found:
    """One thread copies between memory that is not pinned and the GPU: it is busy with PCIe, and
    prepares nothing."""
    return pageable(e, 1.0 - e.mean_activity)


def pageable(e: Evidence, share: float) -> Found:
    """Whether copies that take this share of the time, each by one thread, are not pinned."""
    wire, cores = e.fullest("pcie"), e.host.launcher_cores
    if wire is None or cores is None or e.pcie_peer_traffic:
        return NOTHING
    one = COPIES * share <= cores < MANY_THREADS
    used = e.mean_pcie_ratio
    if not one or used > share or _polls(e):  # more than fits into the pauses
        return NOTHING
    in_pauses = used * wire.limit / share if in_bursts(e) else 0.0
    if used * wire.limit < PAGEABLE_RATE and in_pauses < PAGEABLE_IN_PAUSES:
        return NOTHING
    figures = traffic("traffic", used, wire.limit), Figure("cores", cores, None, CORES)
    return (Fact(FactKind.PAGEABLE_COPIES, figures),)


def _polls(e: Evidence) -> bool:
    """Whether what PCIe carries is no copies: a GPU of the same job that hardly pauses receives
    more than its pauses hold. Kernels of sharded training that wait for a peer read the host's
    memory meanwhile, at up to 13 GB/s (H100 and H200, PyTorch 2.11)."""
    peers = e.peers if e.history.nvlink_seen else []
    return any(peer.mean_pcie_ratio > 1.0 - peer.mean_activity for peer in peers)


def threads_prepare(e: Evidence) -> Found:
    """The launching process uses more cores than launching takes: its threads prepare data."""
    if e.host.launcher_cores is None or e.host.launcher_cores < MANY_THREADS:
        return NOTHING
    threads = Figure("threads", e.host.threads, None, COUNT)
    cores = Figure("cores", e.host.launcher_cores, None, CORES)
    return (Fact(FactKind.THREADS_RUNNING, (threads, cores)),)


def threads_queue(e: Evidence) -> Found:
    if e.host.threads_queued is None or e.host.threads_queued < QUEUED or not e.host.host_sensitive:
        return NOTHING
    return (Fact(FactKind.THREADS_QUEUED, (ratio("time", e.host.threads_queued, QUEUED),)),)


def cores_used_up(e: Evidence) -> Found:
    used, allowed = e.host.cores, e.host.allowed_cores
    if used is None or not allowed or used / allowed < e.context.thresholds.cores_busy:
        return NOTHING
    return (Fact(FactKind.JOB_CORES, (Figure("cores", used, allowed, CORES),)),)


def prepares_itself(e: Evidence) -> Found:
    """One core, and the GPU rests and then works in bursts: the launching process prepares its
    data. A GPU that hardly works at all may as well wait for requests."""
    least, cores = e.context.thresholds.thread_least, e.host.launcher_cores
    if cores is None or not least <= cores <= MANY_THREADS:
        return NOTHING
    if not in_bursts(e) or e.mean_activity < WORKS_AT_ALL:
        return NOTHING
    figures = Figure("cores", cores, None, CORES), ratio("rest", rest_share(e))
    return (Fact(FactKind.PREPARES_ITSELF, figures),)


def receives(e: Evidence) -> Found:
    """Bytes arrive while the loaders, or a pool of threads, mostly sleep and local disks are quiet:
    whoever lacks cores does not sleep."""
    received = e.host.job_rate(workload.RECEIVED)
    each = e.host.loader_cores / e.host.loaders if e.host.loaders else 0.0
    if (
        received is None
        or received < DATA_RATE
        or each >= IDLE_LOADER_CORES
        or not _sleep_mostly(e)
    ):
        return NOTHING
    if not e.host.host_sensitive:
        return NOTHING
    if e.context.active_disk(written=False) is not None:
        return NOTHING
    return (Fact(FactKind.JOB_RECEIVES, (Figure("rate", received, None, RATE),)),)


def _sleep_mostly(e: Evidence) -> bool:
    """Whether the threads of the launching process do, beyond what launching takes: next to nothing
    while the GPU does nothing."""
    host, launching = e.host, e.context.thresholds.thread_least
    used = host.launcher_cores or 0.0
    if used < (launching if e.mean_activity >= WORKS_AT_ALL else IDLE_LOADER_CORES):
        return True
    busiest = 1.0 if host.busiest_thread is None else host.busiest_thread
    pool = host.threads > CHAIN and used / host.threads < IDLE_LOADER_CORES
    return pool and busiest < launching


def one_compiles(e: Evidence) -> Found:
    """Processes at a core or more below the launching one, or more than a core of a new one, and a
    GPU that does nothing: they build or compile its work."""
    cores = e.host.cores or 0.0
    below = e.host.loaders and e.host.loader_cores >= RUNNING_CORES and cores >= 2 * RUNNING_CORES
    age = e.context.samples.last(workload.LIVES, *e.labels)
    new = age is not None and age < COMPILING_AT_FIRST
    if not (below or (new and cores >= COMPILING_CORES)) or e.mean_activity >= WORKS_AT_ALL:
        return NOTHING
    return (Fact(FactKind.COMPILING, (Figure("cores", cores, None, CORES),)),)


def loaders_compute(e: Evidence) -> Found:
    """Loaders that compute in part: where batches are handed over in order, all wait for the one
    that takes longest."""
    if not e.host.loaders or e.host.loader_cores < LOADER_CORES:
        return NOTHING
    loaders = Figure("loaders", e.host.loaders, None, COUNT)
    cores = Figure("cores", e.host.loader_cores, LOADER_CORES, CORES)
    return (Fact(FactKind.LOADERS_COMPUTE, (loaders, cores)),)


def alternates(e: Evidence) -> Found:
    """The launching process runs for as long as the GPU rests, and sleeps while it works: it
    prepares the next step itself."""
    inactive, cores = 1.0 - e.second.activity, e.host.launcher_cores
    if cores is None or not TURN_SHARE <= inactive <= 1.0 - TURN_SHARE or not in_bursts(e):
        return NOTHING
    now = 1.0 - (e.activity or 0.0)
    if max(abs(cores - inactive), abs(cores - now)) > TURNS_TOLERANCE * inactive:
        return NOTHING
    figures = Figure("cores", cores, None, CORES), ratio("rest", inactive)
    return (Fact(FactKind.PREPARES_ITSELF, figures),)


def loaders_take_turns(e: Evidence) -> Found:
    """The launching process runs for longer than the GPU works, and while it sleeps at least one
    process below it runs: one after the other, they prepare what the GPU waits for."""
    cores = e.host.launcher_cores
    if cores is None or not e.host.loaders or cores <= e.second.activity or not in_bursts(e):
        return NOTHING
    asleep = 1.0 - cores
    if asleep < TURN_SHARE or e.host.loader_cores < asleep:
        return NOTHING
    figures = Figure("loaders", e.host.loaders, None, COUNT), ratio("asleep", asleep)
    return (Fact(FactKind.LOADERS_TAKE_TURNS, figures),)


# What the job's cgroup shows


def memory_is_read_again(e: Evidence) -> Found:
    """What was thrown out of memory for want of it is read from the disk again."""
    found = memory_is_short(e)
    waits = found and (_blocked(e) or (e.host.stalled("io") or 0.0) >= STALLED)
    return found if waits else NOTHING


# What is left


def nothing_explains(e: Evidence) -> Found:
    """What is left; a process that has just come to rest is not held yet."""
    if e.is_quiet:
        held_after = Figure("held_after", e.context.thresholds.held_after, None, SECONDS)
        return (Fact(FactKind.QUIET, (held_after,)),)
    return (Fact(FactKind.UNEXPLAINED, (ratio("activity", e.mean_activity),)),)


class Rule(NamedTuple):
    """A cause, and what must be found for it."""

    cause: Cause
    find: Callable[[Evidence], Found]


RULES = (
    Rule(Cause.DISK, memory_is_read_again),
    Rule(Cause.CPU, memory_is_short),
    Rule(Cause.DISK, waits_for_disk),
    Rule(Cause.DISK, writes_what_it_waits_for),
    Rule(Cause.NETWORK, waits_for_network),
    Rule(Cause.CPU, loaders_run),
    Rule(Cause.PCIE, copies_pageable),
    Rule(Cause.CPU, commands_run),
    Rule(Cause.CPU, cores_used_up),
    Rule(Cause.CPU, threads_queue),
    Rule(Cause.NETWORK, receives),
    Rule(Cause.CPU, threads_prepare),
    Rule(Cause.CPU, one_compiles),
    Rule(Cause.CPU, prepares_itself),
    Rule(Cause.HOST_THREAD, launches),
    Rule(Cause.CPU, loaders_compute),
    Rule(Cause.CPU, alternates),
    Rule(Cause.CPU, loaders_take_turns),
    Rule(Cause.DISK, cgroup_waits_for_io),
    Rule(Cause.CPU, cgroup_waits_for_cores),
    Rule(Cause.CPU, cores_of_host_used_up),
    Rule(Cause.DISK, disk_at_limit),
    Rule(Cause.NETWORK, network_at_limit),
    Rule(Cause.CPU, cpu_pressed),
    Rule(Cause.UNKNOWN, nothing_explains),
)


def cause_of(e: Evidence) -> tuple[Cause, Grounds]:
    """What the inactive share of this GPU's second lacks, and what shows it."""
    return next(
        (rule.cause, Grounds(rule.find, found)) for rule in RULES if (found := rule.find(e))
    )


GPM_SILENT = 0.4
"""Share of the power limit that no GPU draws without working: GPM that reads 0 then is silent."""


def doubts(e: Evidence) -> Iterator[Fact]:
    """What was asked for and could not be seen."""
    if e.host.hidden:
        yield Fact(FactKind.PROCESSES_HIDDEN, names=(e.host.hidden,))
    if e.quality is SignalQuality.NVML:
        yield Fact(FactKind.WITHOUT_GPM)
    elif not e.activity and e.power is not None and e.power >= GPM_SILENT:
        yield Fact(FactKind.GPM_AT_ZERO, (ratio("power", e.power, GPM_SILENT),))


# Facts that several rules find


def _waits(e: Evidence) -> float | None:
    """The longest share of time that loaders, the process or its threads sleep uninterruptibly."""
    known = [share for share in (e.host.waiting, e.host.threads_waiting) if share is not None]
    return max(known, default=None)


def _runs(e: Evidence) -> float | None:
    return e.host.running if e.host.loaders else None


def _blocked(e: Evidence) -> bool:
    """Loaders that read and then decode have two shares; the larger tells."""
    waits = _waits(e)
    return waits is not None and waits >= _least_asleep(e)


def _least_asleep(e: Evidence) -> float:
    least = e.context.thresholds.waiting
    return LOADERS_SLEEP_LESS * least if e.host.loaders else least


def _asleep(e: Evidence) -> Fact:
    time = ratio("time", _waits(e) or 0.0, _least_asleep(e))
    if not e.host.loaders:
        return Fact(FactKind.PROCESS_ASLEEP, (time,))
    return Fact(FactKind.LOADERS_ASLEEP, (Figure("loaders", e.host.loaders, None, COUNT), time))
