"""Divides the inactive time of a GPU by cause, based on the threads of its processes.

While its GPU is active, a launching thread runs as much as it can, and a dispatching thread sleeps.
Therefore the cause is `host_thread` for the time by which a launching thread runs longer than the
GPU is active, and for the time that a dispatching thread runs. In the rest of the inactive time,
the thread waits: for a core (`cpu`), for a file (`disk`, or `network` if the file system is
remote), or for other threads or GPUs that are active during the wait. Thresholds only determine the
cause of a wait, not its length.
"""

from collections.abc import Iterator
from typing import NamedTuple

from agent.diagnosis.active_share import ALWAYS, LEAST_WAIT, MOSTLY, alike
from agent.diagnosis.copies import copies_by_thread, copies_fill
from agent.diagnosis.evidence import SPINNING_POWER, Evidence
from agent.diagnosis.facts import CORES, COUNT, RATE, SECONDS, FactKind, Found, ratio, traffic
from agent.diagnosis.process_evidence import DATA_RATE, KERNEL_RATE
from agent.jobs.job_sockets import MESSAGES
from agent.model import Cause, Fact, Figure, SignalQuality
from agent.sources import workload


class Share(NamedTuple):
    """The share of time in which a GPU was inactive for one cause, and the facts that show this."""

    seconds: float
    facts: Found


Shares = dict[Cause, Share]


def divide_inactive(e: Evidence) -> Shares:
    """Return the shares of the last 6 s (SPAN) in which the GPU was inactive, by cause."""
    activity, ran = e.second.activity, e.host.launching
    inactive = 1.0 - activity
    if ran is None:
        return {Cause.UNKNOWN: Share(inactive, unexplained(e))}
    copying = copies_fill(e, inactive)
    spins = max(0.0, ran - activity - copying)
    thread = min(inactive - copying, spins + e.host.share("dispatching", "running"))
    blocked = min(inactive - copying - thread, e.blocked)
    waiting = inactive - copying - thread - blocked
    polls, peer = _polls(e), awaited(e)
    longer = _longer(e, peer) - e.by_links.waiting if peer is not None else 0.0
    for_peer = min(waiting, max(0.0, longer))
    queued = min(waiting - for_peer, e.host.own("queued"))
    waiting -= for_peer + queued
    found = {Cause.UNKNOWN: waiting} if polls else _others(e, waiting)
    kernel = max(0.0, e.host.own("system") - e.host.own("fresh"))
    for_files = min(thread, blocked, kernel)
    data = found.get(Cause.NETWORK, 0.0) + found.get(Cause.PEER, 0.0)
    data = min(data, e.host.arriving / KERNEL_RATE)
    for_network = min(thread - for_files, kernel - for_files, data)
    for_ranks = for_network * e.host.exchanged
    left = thread - for_files - for_network
    copied = 0.0 if copying else min(left, copies_by_thread(e, thread, kernel - thread + left))
    parts = (
        (_disk(e), blocked + for_files),
        (Cause.NETWORK, for_network - for_ranks),
        (_exchanging(e), for_ranks),
        (Cause.CPU, queued),
        (Cause.PEER, for_peer),
        (Cause.PCIE, copying + copied),
        (Cause.UNKNOWN if polls else Cause.HOST_THREAD, left - copied),
    )
    for cause, seconds in parts:
        found[cause] = found.get(cause, 0.0) + seconds
    rest, joined = _rest(e, peer, found.get(Cause.UNKNOWN, 0.0), blocked)
    found[rest] = sum(found.pop(one, 0.0) for one in joined)
    return {
        cause: Share(seconds, FACTS[cause](e)) for cause, seconds in found.items() if seconds > 0
    }


def _rest(
    e: Evidence, peer: Evidence | None, left: float, blocked: float
) -> tuple[Cause, set[Cause]]:
    """Return the cause of the time that nothing explains, and the causes whose time it includes.
    `peer` is the GPU that works longest, and `left` and `blocked` are the shares of the time that
    nothing explains, and in which the thread waits for files."""
    in_turns = peer is not None and alike(peer.works, 1.0 - e.works)
    files = 0 < left <= MOSTLY * blocked
    rest = Cause.PEER if in_turns else _disk(e) if files else Cause.UNKNOWN
    rest = Cause.REQUESTS if serves(e) else rest
    # a server of large requests, or a slow link: the kernel needs little time for uneven data
    received, most = e.host.requests, workload.REST_CORES * KERNEL_RATE * e.second.activity
    uneven = received is not None and received < most and e.history.deliveries and _may_serve(e)
    waits = {Cause.NETWORK} if rest is Cause.UNKNOWN and uneven else set()
    return rest, {rest, Cause.UNKNOWN} | waits


def _polls(e: Evidence) -> bool:
    """Return whether the launching thread seems to only poll for requests: the GPU does almost
    nothing and receives little data, and no worker uses much CPU time. A thread that polls does not
    pause, unless it only wakes up at times."""
    _, received = e.pcie_rates
    quiet = received is not None and received < DATA_RATE and _working(e) < MOSTLY
    pauses = MOSTLY < e.ran_longer < ALWAYS
    return quiet and not pauses and e.second.activity < workload.REST_CORES and e.host.workers < 1.0


def _working(e: Evidence) -> float:
    """Return the number of cores that workers use or wait for, or 0 if they only wake up
    occasionally, or spin with the launching thread of a server: none of them runs longer. The CPU
    time of a short-lived child is counted when the child exits."""
    cores = e.host.share("working", "running") + e.host.share("working", "queued")
    spin = e.host.busiest <= e.ran_longer and e.host.answers
    return cores if cores >= workload.REST_CORES and not spin else 0.0


def serves(e: Evidence) -> bool:
    """Return whether the job is a server: it may be one, its sockets have received data if they are
    known, and receive less than MESSAGES bytes per second, except requests that it answers."""
    ways = "opened", "accepted", "exchanged"
    counts = (e.context.samples.value(workload.SOCKETS, *e.labels, way) for way in ways)
    received = e.host.received() if any(counts) or not e.host.sockets else None
    return _may_serve(e) and received is not None and received < MESSAGES


def _may_serve(e: Evidence) -> bool:
    """Return whether the job may be a server: its work comes in bursts, its workers do almost
    nothing, and no thread waits for a file. A trainer that waits for the network differs only in
    that its work does not come in bursts."""
    if not e.history.bursts or e.gpu.uuid in e.context.last.stepping:
        return False
    if any(one.stopped or one.spins for one in (e, *e.peers)):
        return False  # no request ends the wait, or a peer waits for this GPU
    if (e.context.samples.value(workload.HOSTS, *e.labels) or 1) > 1:
        return False  # the job may wait for a rank on another host
    blocked = any(e.host.share(role, "blocked") for role in workload.ROLES)
    messages = (e.host.rate(workload.CGROUP_READ) or 0.0) < MESSAGES
    return e.host.launching is not None and messages and _working(e) < MOSTLY and not blocked


def awaited(e: Evidence) -> Evidence | None:
    """Return the evidence about the GPU of the job that works longest, if it works longer than this
    GPU, or in turns with it. Otherwise, return None."""
    longest = max(e.peers, key=lambda one: one.works, default=None)
    if longest is None or not e.has_ranks:
        return None
    in_turns = alike(longest.works, 1.0 - e.works)  # one works for as long as the other does not
    return longest if in_turns or _longer(e, longest) >= LEAST_WAIT else None


def _longer(e: Evidence, peer: Evidence) -> float:
    """Return the share of time for which a peer works longer than this GPU. If threads of both wait
    for files, none waits for the other meanwhile: samples of such waits differ by chance."""
    both = bool(e.blocked and peer.blocked)
    return peer.works - e.works - both * (peer.blocked - e.blocked)


def no_requests(e: Evidence) -> Found:
    """Return the facts that a server waits for requests and, if so, that its thread polls."""
    bursts = Fact(FactKind.NO_REQUESTS, (ratio("activity", e.mean_activity),))
    ran = e.host.launching or 0.0
    if ran - e.second.activity < MOSTLY:
        return (bursts,)
    return bursts, Fact(FactKind.SERVER_POLLS, (Figure("cores", ran, None, CORES),))


def _others(e: Evidence, waiting: float) -> dict[Cause, float]:
    """Divide the time share `waiting`, in which a launching thread sleeps, by cause. While workers
    run, the cause is the CPU, and while they wait for files, the disk. If data arrives over the
    network, it is the network while the busiest worker sleeps. Otherwise, it is unknown."""
    handling = workload.REST_CORES if serves(e) else 0.0  # requests and answers
    running, blocked = max(0.0, _working(e) - handling), e.host.asleep("working")
    kernel, received = e.host.share("working", "system"), e.host.arriving
    for_files = min(running, blocked, kernel)  # the kernel reads files
    for_network = min(running - for_files, kernel - for_files, received / KERNEL_RATE)
    runs = e.host.busiest
    running, blocked = running - for_files - for_network, blocked + for_files
    others = (one for gpu, one in e.others.items() if gpu not in e.job or awaited(one) is e)
    # jobs in one network namespace, and ranks that wait for this one, report the same bytes
    if not any(alike(one.host.received(), received) for one in others):
        runs *= waiting  # a worker that loads data over the network does so all the time
    arriving = max(0.0, waiting - runs) if received else 0.0
    left, working = waiting - arriving, running + blocked
    scale = left / working if working and (arriving or working > left) else 1.0
    found = {_disk(e): blocked * scale, Cause.CPU: running * scale}
    for_ranks = arriving * e.host.exchanged
    arriving += found.get(Cause.NETWORK, 0.0) - for_ranks
    found |= {Cause.NETWORK: arriving, Cause.UNKNOWN: max(0.0, left - working * scale)}
    found[_exchanging(e)] = found.get(_exchanging(e), 0.0) + for_ranks
    return found


def _exchanging(e: Evidence) -> Cause:
    """Return the cause of waits for data of the job's own processes."""
    return Cause.PEER if e.has_ranks and e.peers else Cause.UNKNOWN


def _disk(e: Evidence) -> Cause:
    """Return the cause of waits for files: the network if a network file system is mounted and the
    local disks are quiet, or else the disk."""
    remote = e.context.network_mounts and e.context.active_disk is None
    return Cause.NETWORK if remote else Cause.DISK


def own_thread(e: Evidence) -> Found:
    """Return a fact about launching threads that run while the GPU is inactive."""
    cores = Figure("cores", e.host.own("running"), None, CORES)
    return (Fact(FactKind.ONE_THREAD, (cores, ratio("activity", e.second.activity))),)


def workers_run(e: Evidence) -> Found:
    """Return a fact about workers that run or wait for a core."""
    queued = e.host.own("queued") + e.host.share("working", "queued")
    running = e.host.share("working", "running")
    if queued > running:
        return (Fact(FactKind.THREADS_QUEUED, (ratio("time", min(1.0, queued)),)),)
    workers = Figure("workers", max(1.0, round(e.host.workers)), None, COUNT)
    return (Fact(FactKind.WORKERS_RUNNING, (workers, Figure("cores", running, None, CORES))),)


def blocked_on_files(e: Evidence) -> Found:
    """Return the facts about threads that wait for files, and about disk traffic at that time."""
    workers = e.host.share("working", "blocked") / max(1.0, e.host.workers)
    asleep = Fact(FactKind.BLOCKED, (ratio("time", min(1.0, max(e.host.own("blocked"), workers))),))
    of_cgroup = workload.CGROUP_READ, workload.CGROUP_WRITTEN
    read, written = (e.host.rate(one) or 0.0 for one in of_cgroup)
    if max(read, written) >= DATA_RATE:
        reads, writes = (e.host.rate(one, seconds=2.0) or 0.0 for one in of_cgroup)
        rate = Figure("rate", written if writes > reads else read, None, RATE)
        # the current direction, because reads and writes may alternate
        kind = FactKind.JOB_WRITES if writes > reads else FactKind.JOB_READS
        return Fact(kind, (rate,)), asleep
    disk = e.context.active_disk
    if disk is None:
        return (asleep,)
    busy = ratio("busy", min(1.0, disk.busy))
    if disk.reads:
        figures = Figure("read", disk.reads, None, RATE), busy
        return Fact(FactKind.DISK_READS, figures, (disk.device,)), asleep
    return Fact(FactKind.DISK_WRITES, (busy,), (disk.device,)), asleep


def comes_over_network(e: Evidence) -> Found:
    """Return the facts about data received over the network, or about a network file system."""
    if _disk(e) is Cause.NETWORK and e.host.own("blocked"):
        return (Fact(FactKind.NETWORK_MOUNTED, names=e.context.network_mounts),)
    received = Figure("rate", e.host.received() or 0.0, None, RATE)
    return (Fact(FactKind.JOB_RECEIVES, (received,)),)


def peer_works(e: Evidence) -> Found:
    """Return a fact about a GPU of the job that works meanwhile, or data that both exchange."""
    peer, rate = awaited(e), e.host.arriving * e.host.exchanged
    if peer is None or rate:
        return (Fact(FactKind.JOB_EXCHANGES, (Figure("rate", rate, None, RATE),)),) if rate else ()
    return (Fact(FactKind.SLOW_PEER, (ratio("peer_activity", peer.mean_activity),), gpu=peer.gpu),)


def unexplained(e: Evidence) -> Found:
    """Return a fact about inactive time of unknown cause: the GPU is quiet, or partly active."""
    if e.is_quiet:
        held_after = Figure("held_after", e.context.thresholds.held_after, None, SECONDS)
        return (Fact(FactKind.QUIET, (held_after,)),)
    return (Fact(FactKind.UNEXPLAINED, (ratio("activity", e.mean_activity),)),)


def copies(e: Evidence) -> Found:
    """Return the facts about the rate of copies between host and GPU."""
    wire = e.fullest("pcie")
    if wire is None:
        return ()
    kind = FactKind.COPIES_FROM_GPU if wire.direction == "transmit" else FactKind.COPIES_TO_GPU
    most = max((one for one in e.pcie_rates if one is not None), default=wire.ratio * wire.limit)
    return (Fact(kind, (traffic("traffic", most / wire.limit, wire.limit),)),)


FACTS = {
    Cause.PCIE: copies,
    Cause.HOST_THREAD: own_thread,
    Cause.CPU: workers_run,
    Cause.PEER: peer_works,
    Cause.DISK: blocked_on_files,
    Cause.NETWORK: comes_over_network,
    Cause.UNKNOWN: unexplained,
    Cause.REQUESTS: no_requests,
}
"""Maps each cause to the function that returns its facts."""


def doubts(e: Evidence) -> Iterator[Fact]:
    """Yield facts about evidence that is missing: processes are hidden, or GPM is not valid."""
    hidden = e.context.samples.absence(workload.THREADS, *e.labels)
    if hidden and hidden.detail:
        yield Fact(FactKind.PROCESSES_HIDDEN, names=(hidden.detail,))
    signal = "GPM"
    if e.quality is SignalQuality.NVML:
        signal = "utilization"
        yield Fact(FactKind.WITHOUT_GPM)
    if not e.activity and e.power is not None and e.power >= SPINNING_POWER:
        yield Fact(FactKind.GPM_AT_ZERO, (ratio("power", e.power, SPINNING_POWER),), (signal,))
