"""What the cgroup of a job shows of what its GPU lacks: after its threads, but for memory, and
before the host."""

from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import NOTHING, FactKind, Found, ratio
from agent.model import Fact
from agent.sources import workload

STALLED = 0.30
"""Share of time in which some task of the job's cgroup waits for a resource."""


def cgroup_waits_for_io(e: Evidence) -> Found:
    share = e.host.stalled("io")
    if share is None or share < STALLED:
        return NOTHING
    return (Fact(FactKind.JOB_IO_PRESSURE, (ratio("time", share, STALLED),)),)


def cgroup_waits_for_cores(e: Evidence) -> Found:
    throttled = e.host.job_rate(workload.CGROUP_THROTTLED)
    if throttled is not None and throttled >= STALLED:
        return (Fact(FactKind.QUOTA, (ratio("time", throttled, STALLED),)),)
    share = e.host.stalled("cpu")
    if share is None or share < STALLED:
        return NOTHING
    return (Fact(FactKind.JOB_CPU_PRESSURE, (ratio("time", share, STALLED),)),)


def memory_is_short(e: Evidence) -> Found:
    """Cores search for pages to throw out, or compress them. Whoever else waits in this cgroup
    waits for that: it comes before what threads show."""
    share = e.host.stalled("memory")
    if share is None or share < STALLED:
        return NOTHING
    return (Fact(FactKind.JOB_MEMORY_PRESSURE, (ratio("time", share, STALLED),)),)
