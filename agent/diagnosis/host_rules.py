"""What the host shows of what a GPU lacks: it is not known who did it.

Asked last: a job whose own threads and cgroup tell nothing may still suffer from somebody's load.
"""

from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import NOTHING, RATE, FactKind, Found, ratio, traffic
from agent.diagnosis.tick_context import DiskActivity
from agent.model import Fact, Figure

QUIET_CGROUP = 0.10
"""Share of time with a task that waits, below which the job's own cgroup clears the host's."""


def disk_at_limit(e: Evidence) -> Found:
    """A disk or array at its limit, or tasks that wait for I/O while a disk reads."""
    if not e.host.host_sensitive or _cleared(e, "io"):
        return NOTHING
    full = [
        d
        for d in e.context.disks
        if d.wire is not None and d.wire.ratio >= e.context.saturation("disk")
    ]
    least, waits = e.context.thresholds.io_pressure, e.context.pressure("io")
    if full:
        return (disk_fact(full[0]),)
    active = e.context.active_disk(written=False)
    if waits is None or waits < least or active is None:
        return NOTHING
    return (Fact(FactKind.IO_PRESSURE, (ratio("time", waits, least),)), disk_fact(active))


def network_at_limit(e: Evidence) -> Found:
    return port_facts(e) if e.host.host_sensitive else NOTHING


def cores_of_host_used_up(e: Evidence) -> Found:
    limit, host = e.context.thresholds.cores_busy, e.context.cpu_busy
    if host is None or host < limit or not e.host.host_sensitive or _cleared(e, "cpu"):
        return NOTHING
    return (Fact(FactKind.HOST_CORES, (ratio("busy", host, limit),)),)


def cpu_pressed(e: Evidence) -> Found:
    least, waits = e.context.thresholds.cpu_pressure, e.context.pressure("cpu")
    if waits is None or waits < least or not e.host.host_sensitive or _cleared(e, "cpu"):
        return NOTHING
    return (Fact(FactKind.CPU_PRESSURE, (ratio("time", waits, least),)),)


def disk_fact(disk: DiskActivity) -> Fact:
    busy = () if disk.busy is None else (ratio("busy", min(1.0, disk.busy)),)
    if disk.wire is not None:
        read = traffic("read", disk.wire.ratio, disk.wire.limit)
        return Fact(FactKind.DISK_READS, (read,), (disk.device,))
    if not disk.reads:
        return Fact(FactKind.DISK_WRITES, busy, (disk.device,))
    read = Figure("read", disk.reads, None, RATE)
    return Fact(FactKind.DISK_READS, (read, *busy), (disk.device,))


def port_facts(e: Evidence) -> Found:
    return tuple(
        Fact(FactKind.PORT_RECEIVES, (traffic("traffic", w.ratio, w.limit),), (w.device,))
        for path in ("network", "infiniband")
        for w in e.context.wires(path)
        if w.direction == "receive" and w.ratio >= e.context.saturation(path)
    )


def _cleared(e: Evidence, resource: str) -> bool:
    """Whether the job's own cgroup says that its tasks do not wait for the resource."""
    share = e.host.stalled(resource)
    return share is not None and share < QUIET_CGROUP
