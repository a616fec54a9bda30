"""Activity of a host disk while a job waits for it."""

from agent.diagnosis.facts import RATE, FactKind, ratio, traffic
from agent.diagnosis.tick_context import DiskActivity
from agent.model import Fact, Figure


def disk_fact(disk: DiskActivity) -> Fact:
    """Return the fact of how much it reads or writes, and for how much of the time."""
    busy = () if disk.busy is None else (ratio("busy", min(1.0, disk.busy)),)
    if disk.wire is not None:
        read = traffic("read", disk.wire.ratio, disk.wire.limit)
        return Fact(FactKind.DISK_READS, (read,), (disk.device,))
    if not disk.reads:
        return Fact(FactKind.DISK_WRITES, busy, (disk.device,))
    read = Figure("read", disk.reads, None, RATE)
    return Fact(FactKind.DISK_READS, (read, *busy), (disk.device,))
