"""Kernels that one thread launches one by one: how many a second, and what that costs.

The GPU fetches each launch from the host over PCIe, which nothing else does at these sizes. On an
H200 (`python -m tests.hardware.launches`) a kernel launched by itself makes it send 200 to 270
bytes (seven kinds of kernels and a small training, 23,000 to 243,000 a second; two kinds with long
lists of arguments 360 to 440) and receive seven to thirteen times as many, a node of a CUDA graph
1.3. And where launches do not queue each counts as active for 1.05 to 1.32 us longer than its
kernel takes in a graph.
"""

from agent.diagnosis.bursts import WORKS_AT_ALL, in_bursts
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import A_SECOND, CORES, NOTHING, FactKind, Found
from agent.model import Fact, Figure

SENT_BY_LAUNCH = 240.0
"""Bytes of PCIe traffic that a GPU sends for one launch."""

RECEIVED_OVER_SENT = 5.0, 14.0
"""What it receives over what it sends, where launches are most of its traffic; copies to the GPU
are above, copies from it below."""

ACTIVE_BY_LAUNCH = 1.18e-6
"""Seconds for which a launch counts as active beside its kernel."""

MOST_OF_INACTIVE = 0.25
"""That over the time for which the GPU has nothing to do, at most: launches that wait in a queue
cost none, and of a GPU that is nearly always active most do."""

MANY = 20_000.0
"""Launches a second that keep a thread of Python, or two that take turns, from doing much else."""

LAUNCHING_CORES = 0.85
"""Cores that these then use at least: forward and backward pass hand over to each other."""

SLEEPS = 0.5
"""Part of the time for which the GPU is inactive that a launching thread sleeps for at most: one
that sleeps for as long as the GPU rests waits too, and not for its own launches."""

LEAST_SLEEP = 0.02
"""Share of the time below which CPU time, counted in ticks of 10 ms, shows no sleep."""


def launch_rate(e: Evidence) -> float | None:
    """Kernels launched a second, of the last seconds; None where PCIe is not read or carries more
    than launches."""
    sent, received = e.pcie_rates
    least, most = RECEIVED_OVER_SENT
    if not sent or received is None or not least <= received / sent <= most:
        return None
    return sent / SENT_BY_LAUNCH


def launch_overhead(e: Evidence, inactive: float) -> float:
    """What launching takes of the active share of a second of which this share is inactive."""
    rate = launch_rate(e)
    return 0.0 if rate is None else min(ACTIVE_BY_LAUNCH * rate, MOST_OF_INACTIVE * inactive)


def launches(e: Evidence) -> Found:
    """One core without a rest, and a GPU that works a little all the time."""
    limits = e.context.thresholds
    if e.host.launcher_cores is None or e.mean_activity < WORKS_AT_ALL or in_bursts(e):
        return NOTHING
    rate = launch_rate(e)
    least = limits.thread_least
    if rate is not None and rate >= MANY:
        least = min(least, LAUNCHING_CORES)
    if not least <= e.host.launcher_cores <= limits.thread_most:
        return NOTHING
    if 1.0 - e.host.launcher_cores >= max(LEAST_SLEEP, SLEEPS * (1.0 - e.mean_activity)):
        return NOTHING
    cores = Figure("cores", e.host.launcher_cores, limits.thread_most, CORES)
    told = () if rate is None else (Figure("launches", rate, None, A_SECOND),)
    return (Fact(FactKind.ONE_THREAD, (cores, *told)),)
