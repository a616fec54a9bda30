"""Copies between host and GPU, and launches of kernels, by the traffic over PCIe."""

from collections.abc import Sequence
from math import inf
from statistics import fmean, median

from agent.diagnosis.active_share import LEAST_TRANSFER, MOSTLY, at_lower_power
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.process_evidence import KERNEL_RATE
from agent.hardware import processes
from agent.model import SignalQuality
from agent.sources import workload

COPY_RATE = 0.87
"""Ratio of payload to PCIe limit during a copy from pinned memory (H100: 55.9 of 63 GB/s)."""

PAGEABLE_RATE = 8e9
"""Bytes per second that a thread copies from pageable memory (6 to 9 GB/s on an H100)."""

MAPPED_RATE = 12e9
"""Bytes per second that a thread copies to pageable memory that is in use (9 to 13 GB/s). Within a
moment, the rate of PCIe is at least half of that while copies from pageable memory run, but 3 to 5
GB/s if the thread copies all of a small batch to a buffer of the driver first."""


def copies_fill(e: Evidence, inactive: float) -> float:
    """Return the share of time in which copies between host and GPU saturate PCIe. If it is less
    than half of the inactive time, return 0, because the copies may overlap with work."""
    share = _copied(e) / COPY_RATE
    return min(inactive, share) if share >= MOSTLY * inactive else 0.0


def copies_alone(e: Evidence) -> float:
    """Return the share of time in which copies run without kernels and count as active time. With
    GPM, it is 0, because copies do not count as active. Without GPM, power may alternate
    between two levels, and the lower limits the share. At one level, only low power permits it."""
    if e.quality is SignalQuality.GPM:
        return 0.0
    most = at_lower_power(e.second) or (e.second.activity if e.sm_underutilised else 0.0)
    found = min(most, _copied(e))
    return found if found >= LEAST_TRANSFER else 0.0


def _copied(e: Evidence) -> float:
    """Return the share of time that copies between host and GPU would take at the full PCIe rate.
    Return 0 if the traffic may be between GPUs or belong to NCCL, whose waiting kernels read host
    memory at up to 12 GB/s. They send more of that than copies do, as launches do."""
    wire = e.fullest("pcie")
    if wire is None or e.pcie_peer_traffic or (e.joined and launch_rate(e)):
        return 0.0
    return sum(rate or 0.0 for rate in e.pcie_rates) / wire.limit


def _copy_share(moments: Sequence[float], rate: float, limit: float) -> float | None:
    """Return the share of time for which copies in one direction run, or None if too few moments
    are known. `moments` are the rates within moments, `rate` is the mean rate, and `limit` that of
    PCIe (bytes/s). Copies that no moment shows are faster than those that would be seen."""
    running = [one for one in moments if one >= KERNEL_RATE]
    if len(running) < 2:  # slower copies would have been seen three times
        passed = len(moments) * rate / 3
        fast = limit if passed >= PAGEABLE_RATE else PAGEABLE_RATE
        return rate / fast if passed >= KERNEL_RATE else None
    pinned = MOSTLY * limit
    if not MOSTLY * MAPPED_RATE <= median(running) < pinned:
        return rate / limit
    if max(running) >= pinned:  # both kinds
        return len(running) / len(moments)
    return rate / fmean(running)


def copies_by_thread(e: Evidence, thread: float, kernel: float) -> float:
    """Return the share of time that a launching thread spends on copies: at KERNEL_RATE to newly
    allocated memory, and else at the rate of copies that run. If that is unknown, it is
    PAGEABLE_RATE from pageable memory and MAPPED_RATE to it. If the process has pinned memory then,
    whose copies need no thread, only copies to newly allocated memory count, or the time that all
    copies take at the full rate. So do copies from a GPU that has used NVLink, but those to new
    memory last as long as its page faults. `thread` and `kernel` are the shares of time that the
    thread runs in total and in the kernel."""
    launches, wire = launch_rate(e), e.fullest("pcie")
    if e.pcie_peer_traffic or (e.joined and launches):
        return 0.0
    least = _copied(e) if e.quality is SignalQuality.GPM else 0.0  # NVML: counted as active
    sent, received = (rate or 0.0 for rate in e.pcie_rates)
    fresh = min(e.host.own("fresh"), e.host.own("system"))  # workers also map memory
    new = min(sent, fresh * processes.FRESH_RATE)
    if e.joined and launches is None:
        least = max(least, new / processes.FRESH_RATE)
        return least if least >= LEAST_TRANSFER else 0.0
    rates, mapping = (sent - new, received), new / KERNEL_RATE
    if launches is not None:  # no copies from the GPU
        received -= RECEIVED_BY_LAUNCH * launches
        rates = 0.0, received
        mapping = kernel + fresh if received >= KERNEL_RATE * thread else 0.0
    seen = zip(*e.history.moments, strict=True) if e.history.moments else ((), ())
    limit = wire.limit if wire is not None else inf
    shares = [
        _copy_share(one, rate, limit) if rate > 0 else None
        for one, rate in zip(seen, rates, strict=True)
    ]
    data = sum(
        rate / usual if share is None else share
        for rate, usual, share in zip(rates, (MAPPED_RATE, PAGEABLE_RATE), shares, strict=True)
    )
    known = shares[0 if launches is None else 1] is not None
    pinning = not known and e.context.samples.value(workload.PINNING, *e.labels)
    if launches is not None and (known or pinning):
        mapping = 0.0
    if pinning:
        data, mapping = 0.0, max(least, mapping)
    copied = mapping + data
    return copied if copied >= LEAST_TRANSFER else 0.0


SENT_BY_LAUNCH, RECEIVED_BY_LAUNCH = 240.0, 1560.0
"""Numbers of PCIe bytes that a GPU sends and receives to fetch a kernel launch from the host. In
measurements on an H200, with seven kinds of kernels and a small training job at 23,000 to 243,000
launches per second, the GPU sends 200 to 270 bytes per launch (360 to 440 for two kinds with long
argument lists). It receives seven to thirteen times as many bytes (1.3 times for a CUDA graph
node). Other PCIe traffic has different ratios."""

RECEIVED_BY_COPY = 14.5
"""Number of bytes that the GPU receives for each byte that it sends while data is copied to it: 16
on an H100 (1,122 and 70 MB/s, 1,254 and 78 MB/s), and 13.6 to 14 on an H200 (359 and 26 MB/s)."""

LEAST_RECEIVED = RECEIVED_BY_LAUNCH / SENT_BY_LAUNCH / 2
"""Minimum ratio of received to sent bytes: half of that of a launch. With a lower ratio, data is
being copied from the GPU. In jobs on several GPUs, the ratio is at least 3.4, because NCCL's
kernels also send data."""

ACTIVE_BY_LAUNCH = 1.18e-6
"""Seconds of GPU activity that a kernel launch adds if launches do not queue. In comparison with a
CUDA graph, it is 1.05 to 1.32 us on an H200."""

MOST_OF_INACTIVE = 0.25
"""Maximum launch overhead as a share of the inactive time. Queued launches have no overhead, and if
a GPU is rarely inactive, most launches are queued."""


def launch_rate(e: Evidence) -> float | None:
    """Return the number of kernel launches per second, based on the PCIe traffic that is not part
    of copies to the GPU, and on the activity that they add. Return None if the traffic is unknown
    or includes copies from the GPU."""
    sent, received = e.pcie_rates
    if sent is None or received is None or received < LEAST_RECEIVED * sent:
        return None
    by_launch = SENT_BY_LAUNCH - RECEIVED_BY_LAUNCH / RECEIVED_BY_COPY
    by_sent = max(0.0, sent - received / RECEIVED_BY_COPY) / by_launch
    return min(by_sent, received / RECEIVED_BY_LAUNCH, e.second.activity / ACTIVE_BY_LAUNCH)


def launch_overhead(e: Evidence, inactive: float) -> float:
    """Return the share of time by which kernel launches increase the GPU's activity. `inactive` is
    the share of time in which the GPU is inactive."""
    return min(ACTIVE_BY_LAUNCH * (launch_rate(e) or 0.0), MOST_OF_INACTIVE * inactive)
