"""Division of the inactive share of a GPU's second, measured by the threads of its processes.

A launching thread runs while its GPU is active as far as it can; a dispatching thread sleeps then.
So the time that a launching thread runs beyond the GPU's activity, and a dispatching thread at all,
holds the GPU up itself (`host_thread`), and for the rest of the inactive time it waits: for a core
(`cpu`), in uninterruptible sleep for a file (`disk`, or `network` if the file system is remote), or
for others, whose own time shows their activity meanwhile. Thresholds decide only the owner of the
wait.
"""

from collections.abc import Iterator
from typing import NamedTuple

from agent.diagnosis.active_share import LEAST_TRANSFER, alike
from agent.diagnosis.evidence import MESSAGES, SPAN, SPINNING_POWER, Evidence
from agent.diagnosis.facts import CORES, COUNT, RATE, SECONDS, FactKind, Found, ratio, traffic
from agent.model import Cause, Fact, Figure, SignalQuality
from agent.series import KEPT
from agent.sources import host, workload

DATA_RATE = 5e6
"""Bytes a second that count as data on its way to the GPU. With MESSAGES here one more of 112 GPUs
is right on the tapes, but the other traffic of a healthy host is taken for data."""

COPY_RATE = 0.87
"""Payload over the limit of PCIe while a copy from pinned memory runs: 55.9 of 63 GB/s (H100). With
1, one fewer of 112 GPUs is right on the tapes."""

PAGEABLE_RATE, FRESH_RATE = 8e9, 1.2e9
"""Bytes a second that a thread copies from or to pageable memory, through a buffer of its own (7 to
12 GB/s on an H100, batches of 1 to 256 MB), and those into fresh memory (1.3): a thread that copies
as many does nothing else in the kernel."""

MOSTLY = 0.5
"""The larger part: of the inactive time that copies explain, at least, and of a core that other
threads and processes of a server use while it waits, at most. Without the first, one fewer of 112
GPUs is right on the tapes, with GPM and without."""


class Share(NamedTuple):
    """Part of a second that the GPU was inactive for a cause, and its evidence."""

    seconds: float
    facts: Found


Shares = dict[Cause, Share]


def divide_inactive(e: Evidence) -> Shares:
    """Shares of the last seconds in which the GPU was inactive, by cause; they sum to the
    inactive share."""
    activity, ran = e.second.activity, e.host.launching
    inactive = 1.0 - activity
    if ran is None:
        return {Cause.UNKNOWN: Share(inactive, unexplained(e))}
    copying = _copying(e, inactive)
    spins = max(0.0, ran - activity - copying)
    thread = min(inactive - copying, spins + e.host.share("dispatching", "running"))
    waiting = inactive - copying - thread
    queued = min(waiting, e.host.own("queued"))
    blocked = min(waiting - queued, _blocked(e))
    waiting -= queued + blocked
    system = e.host.own("system")
    for_files = min(thread, blocked, max(0.0, system - _copied_back(e) / FRESH_RATE))
    by_thread = 0.0 if copying else _by_thread(e, thread, system - for_files)
    by_thread = min(by_thread, thread - for_files)
    thread, copying = thread - for_files - by_thread, copying + by_thread
    blocked += for_files
    if _polls(e):
        found = {Cause.UNKNOWN: waiting + thread}
    else:
        found = {**_others(e, waiting), Cause.HOST_THREAD: thread}
    left = found.pop(Cause.UNKNOWN, 0.0)
    if (peer := awaited(e)) is not None:
        found[Cause.PEER] = min(left, peer.works - e.works)
        left -= found[Cause.PEER]
    found[Cause.REQUESTS if serves(e) else Cause.UNKNOWN] = left
    disk = _disk(e)
    found[disk] = found.get(disk, 0.0) + blocked
    found[Cause.CPU] = found.get(Cause.CPU, 0.0) + queued
    found[Cause.PCIE] = copying
    return {
        cause: Share(seconds, FACTS[cause](e)) for cause, seconds in found.items() if seconds > 0
    }


def _copying(e: Evidence, inactive: float) -> float:
    """Share of time for which copies between host and GPU fill PCIe, as far as they explain most of
    the inactive time: they may as well run beside the GPU's work."""
    if _shares(e):
        return 0.0  # kernels that wait for a peer read the host's memory meanwhile
    wire, rates = e.fullest("pcie"), [rate or 0.0 for rate in e.pcie_rates]
    share = sum(rates) / (COPY_RATE * wire.limit) if wire is not None else 0.0
    return min(inactive, share) if share >= MOSTLY * inactive else 0.0


def _shares(e: Evidence) -> bool:
    """Return whether PCIe may carry the traffic between GPUs of a job."""
    return e.pcie_peer_traffic or bool(e.peers and e.history.nvlink_seen)


def _by_thread(e: Evidence, thread: float, system: float) -> float:
    """Share of the thread's time for copies from and to pageable memory: at the rate of such
    copies, and in the kernel for fresh memory. Pinned memory needs no thread; launches, which the
    GPU fetches, are no data."""
    if _shares(e) or e.context.samples.value(workload.PINNING, *e.labels):
        return 0.0
    sent, received = (rate or 0.0 for rate in e.pcie_rates)
    data = sent + received
    if (launches := launch_rate(e)) is not None:
        data = received - RECEIVED_BY_LAUNCH * launches
    copied = data / PAGEABLE_RATE
    if copied < LEAST_TRANSFER:
        return 0.0
    return min(thread, copied if data < FRESH_RATE * thread else copied + system)


def _copied_back(e: Evidence) -> float:
    """Bytes a second copied from the GPU, for which the kernel may clear fresh memory."""
    sent, received = (rate or 0.0 for rate in e.pcie_rates)
    return max(0.0, sent - received / RECEIVED_BY_COPY) if launch_rate(e) is None else 0.0


def _polls(e: Evidence) -> bool:
    """Return whether its thread may only poll for requests: the GPU does next to nothing and
    receives no data, and no worker or child runs."""
    _, received = e.pcie_rates
    quiet = received is not None and received < DATA_RATE and _working(e) < MOSTLY
    return quiet and e.second.activity < workload.REST_CORES and e.host.workers < 1.0


def _working(e: Evidence) -> float:
    """Cores that workers use or wait for; the time of a child that was never read counts when it
    ends."""
    return e.host.share("working", "running") + e.host.share("working", "queued")


def serves(e: Evidence) -> bool:
    """Return whether it is a server: its work comes in bursts without a rhythm, no worker helps its
    thread, no file is waited for, and only small messages arrive. A trainer that waits for the
    network looks alike in all but the first respect."""
    if not e.history.bursts or e.gpu.uuid in e.context.last.stepping:
        return False
    if any(one.stopped for one in (e, *e.peers)):
        return False
    if (e.context.samples.value(workload.HOSTS, *e.labels) or 1) > 1:
        return False  # it may wait for a rank of another host
    received, read = e.host.rate(workload.RECEIVED), e.host.rate(workload.CGROUP_READ)
    blocked = any(e.host.share(role, "blocked") for role in workload.ROLES)
    messages = received is not None and max(received, read or 0.0) < MESSAGES
    return e.host.launching is not None and messages and _working(e) < MOSTLY and not blocked


def _has_ranks(e: Evidence) -> bool:
    """Return whether its GPUs work for one job: a program may begin several."""
    return e.history.nvlink_seen or e.context.has_ranks(e.job)


def awaited(e: Evidence) -> Evidence | None:
    """Return the GPU of its job that works longest while this GPU's process sleeps."""
    sleeps = (e.host.launching or 0.0) < MOSTLY
    if not _has_ranks(e) or (_polls(e) and not sleeps):
        return None
    longest = max(e.peers, key=lambda peer: peer.works, default=e)
    return None if longest.works <= e.works else longest


def no_requests(e: Evidence) -> Found:
    """A server that waits; a server that polls runs meanwhile."""
    bursts = Fact(FactKind.NO_REQUESTS, (ratio("activity", e.mean_activity),))
    ran = e.host.launching or 0.0
    if ran - e.second.activity < MOSTLY:
        return (bursts,)
    return bursts, Fact(FactKind.SERVER_POLLS, (Figure("cores", ran, None, CORES),))


def _asleep(e: Evidence, *roles: str) -> float:
    """Seconds a second that threads of these roles wait for files. The host counts the time of
    cores that were idle for that, and sampled sleep shows whose threads waited. A core with other
    work hides a wait, and other programs wait too: half to twice the sampled sleep."""
    seen = sum(e.host.share(role, "blocked") for role in roles)
    samples, longer = e.context.samples, 0.0
    counted = samples.rate(host.IO_WAIT, seconds=SPAN)
    if not counted:  # some kernels count nothing
        counts = samples.value(host.IO_WAIT) or e.host.rate(workload.CGROUP_STALLED, "io") == 0.0
        return 0.0 if counts and counted is not None else seen
    if e.context.blocked:
        longer = sum(e.host.share(role, "blocked", seconds=KEPT) for role in roles)
        counted *= longer / e.context.blocked
    return sorted((seen / 2, counted, 2 * longer))[1]


def _blocked(e: Evidence) -> float:
    """Share of time that a launching thread waits for files; at least for as long as its cgroup
    stalled, if no worker or other rank waits."""
    own, stalled = _asleep(e, "launching", "dispatching"), 0.0
    ranks = e.peers if _has_ranks(e) else []
    if not e.host.share("working", "blocked", seconds=KEPT) and not any(
        one.host.own("blocked") for one in ranks
    ):
        stalled = e.host.rate(workload.CGROUP_STALLED, "io") or 0.0
    if stalled and not e.context.blocked:  # too short to be sampled
        counted = e.context.samples.rate(host.IO_WAIT, seconds=SPAN) or 0.0
        own = min(counted, 1.0 / KEPT)
    return max(own, stalled)


def _others(e: Evidence, waiting: float) -> dict[Cause, float]:
    """The causes that a sleeping launching thread waits for: by the time of the workers, which work
    while it sleeps. If data comes over the network, the sleep of the busiest of them counts too;
    else the time that they do not explain is unknown."""
    running, blocked = _working(e), _asleep(e, "working")
    for_files = min(running, blocked, e.host.share("working", "system"))  # the kernel reads them
    running, blocked = running - for_files, blocked + for_files
    received = e.host.rate(workload.RECEIVED) or 0.0
    # At its end a job receives no more, while the mean still does.
    arrives = min(received, e.host.rate(workload.RECEIVED, seconds=2.0) or 0.0) >= DATA_RATE
    arriving = waiting * (1.0 - e.host.mean(workload.BUSIEST)) if arrives else 0.0
    if arriving and _shares_network(e, received):
        arriving = min(arriving, max(0.0, waiting - running - blocked))
    left, working = waiting - arriving, running + blocked
    # A worker that brings data over the network does so all the time, others as long as they run.
    scale = left / working if working and (arriving or working > left) else 1.0
    found = {_disk(e): blocked * scale, Cause.CPU: running * scale}
    found[Cause.NETWORK] = found.get(Cause.NETWORK, 0.0) + arriving
    found[Cause.UNKNOWN] = max(0.0, left - working * scale)
    return found


def _shares_network(e: Evidence, received: float) -> bool:
    """Return whether another job in the same network namespace counts the same bytes as its own."""
    others = (one for gpu, one in e.others.items() if gpu not in e.job and one.processes)
    return any(alike(one.host.rate(workload.RECEIVED), received) for one in others)


def _disk(e: Evidence) -> Cause:
    """Return the cause of uninterruptible sleep: the disk, or a network file system if local disks
    are quiet."""
    remote = e.context.network_mounts and e.context.active_disk is None
    return Cause.NETWORK if remote else Cause.DISK


def own_thread(e: Evidence) -> Found:
    """Return the fact that a launching thread runs while its GPU rests."""
    cores = Figure("cores", e.host.own("running"), None, CORES)
    return (Fact(FactKind.ONE_THREAD, (cores, ratio("activity", e.second.activity))),)


def workers_run(e: Evidence) -> Found:
    """Return the fact that workers run or wait for a core."""
    queued = e.host.own("queued") + e.host.share("working", "queued")
    running = e.host.share("working", "running")
    if queued > running:
        return (Fact(FactKind.THREADS_QUEUED, (ratio("time", min(1.0, queued)),)),)
    figures = (
        Figure("workers", max(1.0, round(e.host.workers)), None, COUNT),
        Figure("cores", running, None, CORES),
    )
    return (Fact(FactKind.WORKERS_RUNNING, figures),)


CGROUP_BYTES = workload.CGROUP_READ, workload.CGROUP_WRITTEN


def blocked_on_files(e: Evidence) -> Found:
    """Return the facts of threads in uninterruptible sleep, and of the traffic meanwhile."""
    own = e.host.own("blocked")
    workers = e.host.share("working", "blocked") / max(1.0, e.host.workers)
    asleep = Fact(FactKind.BLOCKED, (ratio("time", min(1.0, max(own, workers))),))
    read = e.host.rate(workload.CGROUP_READ) or 0.0
    written = e.host.rate(workload.CGROUP_WRITTEN) or 0.0
    if max(read, written) >= DATA_RATE:
        reads, writes = (e.host.rate(one, seconds=2.0) or 0.0 for one in CGROUP_BYTES)
        rate = Figure("rate", written if writes > reads else read, None, RATE)
        kind = (
            FactKind.JOB_WRITES if writes > reads else FactKind.JOB_READS
        )  # now: it may alternate
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
    """Return the facts of bytes from the network, or of a file system behind it."""
    if _disk(e) is Cause.NETWORK and e.host.own("blocked"):
        return (Fact(FactKind.NETWORK_MOUNTED, names=e.context.network_mounts),)
    received = Figure("rate", e.host.rate(workload.RECEIVED) or 0.0, None, RATE)
    return (Fact(FactKind.JOB_RECEIVES, (received,)),)


def peer_works(e: Evidence) -> Found:
    """Return the fact that a peer works while the process of this GPU sleeps."""
    peer = awaited(e)
    if peer is None:
        return ()
    return (Fact(FactKind.SLOW_PEER, (ratio("peer_activity", peer.mean_activity),), gpu=peer.gpu),)


def unexplained(e: Evidence) -> Found:
    """Return the facts of the remainder; a process that has just come to rest is not held yet."""
    if e.is_quiet:
        held_after = Figure("held_after", e.context.thresholds.held_after, None, SECONDS)
        return (Fact(FactKind.QUIET, (held_after,)),)
    return (Fact(FactKind.UNEXPLAINED, (ratio("activity", e.mean_activity),)),)


def copies(e: Evidence) -> Found:
    """Copies between host and GPU."""
    wire = e.fullest("pcie")
    if wire is None:
        return ()
    kind = FactKind.COPIES_FROM_GPU if wire.direction == "transmit" else FactKind.COPIES_TO_GPU
    known = [rate for rate in e.pcie_rates if rate is not None]
    share = max(known) / wire.limit if known else wire.ratio
    return (Fact(kind, (traffic("traffic", share, wire.limit),)),)


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
"""The function that finds the facts of each cause."""


def doubts(e: Evidence) -> Iterator[Fact]:
    """Return the facts that a rule asked for and could not read."""
    hidden = e.context.samples.absence(workload.THREADS, *e.labels)
    if hidden and hidden.detail:
        yield Fact(FactKind.PROCESSES_HIDDEN, names=(hidden.detail,))
    signal = "GPM"
    if e.quality is SignalQuality.NVML:
        signal = "utilization"
        yield Fact(FactKind.WITHOUT_GPM)
    if not e.activity and e.power is not None and e.power >= SPINNING_POWER:
        yield Fact(FactKind.GPM_AT_ZERO, (ratio("power", e.power, SPINNING_POWER),), (signal,))


SENT_BY_LAUNCH, RECEIVED_BY_LAUNCH = 240.0, 1560.0
"""Bytes of PCIe traffic that a GPU sends and receives for one launch, which it fetches from the
host; nothing else takes PCIe at these sizes. On an H200, a kernel launched by itself makes the GPU
send 200 to 270 bytes (measured with seven kinds of kernels and a small training, 23,000 to 243,000
a second; two kinds with long lists of arguments 360 to 440) and receive seven to thirteen times as
many; a node of a CUDA graph 1.3."""

RECEIVED_BY_COPY = 16.0
"""Bytes that it receives for each byte that it sends while data is copied to it (1,122 for 70 MB/s,
1,254 for 78 on H100s)."""

LEAST_RECEIVED = 3.0
"""Least ratio of bytes received to bytes sent; below it, data is copied from the GPU. Jobs of
several GPUs have 3.4 and more, for NCCL's kernels send too."""

ACTIVE_BY_LAUNCH = 1.18e-6
"""Seconds for which a launch counts as active beside its kernel if launches do not queue: 1.05 to
1.32 us on an H200, against a graph."""

MOST_OF_INACTIVE = 0.25
"""Largest share of that in the time for which the GPU has nothing to do: launches that wait in a
queue cost nothing, and most launches on a GPU that is nearly always active wait. With 0.5, one
fewer of 112 GPUs is right on the tapes, with GPM and without."""


def launch_rate(e: Evidence) -> float | None:
    """Kernels launched a second, of the last seconds, beside copies to the GPU; None if PCIe is not
    read or copies from the GPU hide them."""
    sent, received = e.pcie_rates
    if sent is None or received is None or received < LEAST_RECEIVED * sent:
        return None
    by_launch = SENT_BY_LAUNCH - RECEIVED_BY_LAUNCH / RECEIVED_BY_COPY
    by_sent = max(0.0, sent - received / RECEIVED_BY_COPY) / by_launch
    return min(by_sent, received / RECEIVED_BY_LAUNCH)


def launch_overhead(e: Evidence, inactive: float) -> float:
    """Return the share that launching takes of the active part of a second with this inactive
    share."""
    rate = launch_rate(e)
    return 0.0 if rate is None else min(ACTIVE_BY_LAUNCH * rate, MOST_OF_INACTIVE * inactive)
