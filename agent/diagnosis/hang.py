"""Finds out whether a job on several GPUs hangs, and which processes it waits for.

The evidence comes from NVML and from files in /proc that any user may read.
"""

from collections.abc import Collection, Mapping

from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import SECONDS, FactKind, Found
from agent.diagnosis.state_seconds import LEADER_WINDOW
from agent.diagnosis.tick_context import RankActivity
from agent.jobs.job_sockets import MESSAGES
from agent.model import Fact, Figure, GpuKey
from agent.sources import workload

REMOTE_AFTER = 600.0
"""Seconds after which a waiting job on several hosts counts as hung if it waits for no process on
this host. A rank on another host may be writing a checkpoint. The value is not measured."""


def activity_of(e: Evidence) -> RankActivity:
    """Return whether a GPU's kernels and threads spin, and its processes sleep or are stopped."""
    return RankActivity(
        kernels_spin=e.spins,
        asleep=e.host.rests(2.0) and _moved(e) < MESSAGES,
        stopped=bool(e.stopped),
        thread_spins=(e.host.launching or 0.0) >= e.context.thresholds.busy,
    )


def _moved(e: Evidence) -> float:
    """Return the bytes per second that the GPU's processes read and write. If these are not
    readable, return the bytes per second that their cgroup reads from disks. The cgroup's writes
    are ignored, because the kernel may write old data later."""
    moved = e.host.rate(workload.PROCESS_BYTES)
    return (e.host.rate(workload.CGROUP_READ) if moved is None else moved) or 0.0


def waits_at_rest(e: Evidence, rank: RankActivity) -> bool:
    """Return whether the GPU is inactive, and its processes sleep or a process of the job is
    stopped. If one is stopped, the other processes may spin on CPU cores without progress."""
    return e.is_quiet and (rank.asleep or rank.stopped or any(peer.stopped for peer in e.peers))


def hung(e: Evidence) -> tuple[bool, Found] | None:
    """Return whether a job whose GPUs all wait hangs, and a fact about the wait. False means that
    it may still be waiting for a process on a different host. Return None if any GPU of the job
    works, or if nothing shows that a GPU waits for another GPU."""
    least = LEADER_WINDOW
    if e.history.waits_for < least or not e.peers:  # first, to avoid reading every peer
        return None
    job = [e, *e.peers]
    waited = min(one.history.waits_for for one in job)
    if waited < least or len(job) < len(e.job):
        return None
    ranks = {one.gpu: activity_of(one) for one in job}
    # Otherwise, the job is idle: a server without requests, or a notebook between two cells.
    if not any(rank.kernels_spin or rank.stopped for rank in ranks.values()):
        return None
    hosts = [(one, one.context.samples.value(workload.HOSTS, *one.labels)) for one in job]
    # without readable environment variables, traffic in both directions shows another host
    abroad = any(one.history.sent_abroad if n is None else n > 1 for one, n in hosts)
    if abroad and not late_gpus(ranks):
        least = REMOTE_AFTER
    kind = FactKind.HUNG_SPINNING if e.spins else FactKind.HUNG_AT_REST
    time = Figure("time", e.history.waits_for, least, SECONDS)
    return waited >= least, (Fact(kind, (time,)),)


def late_gpus(ranks: Mapping[GpuKey, RankActivity]) -> Collection[GpuKey]:
    """Return the GPUs whose processes the rest of the job waits for, or none if this is unclear. If
    processes are stopped, return their GPUs. Otherwise, return the GPUs with sleeping processes
    and no spinning kernels, if each other GPU has spinning kernels or threads. Failing that, return
    the GPUs with sleeping processes, if each other GPU has spinning threads."""
    stopped = [gpu for gpu, rank in ranks.items() if rank.stopped]
    if stopped:
        return stopped
    idle = [gpu for gpu, rank in ranks.items() if rank.asleep and not rank.kernels_spin]
    others = [rank for gpu, rank in ranks.items() if gpu not in idle]
    if idle and others and all(rank.kernels_spin or rank.thread_spins for rank in others):
        return idle
    asleep = [gpu for gpu, rank in ranks.items() if rank.asleep]
    others = [rank for rank in ranks.values() if not rank.asleep]
    return asleep if others and all(rank.thread_spins for rank in others) else ()
