"""Kernels that one thread launches one by one: how many a second, and what that costs.

The GPU fetches each launch from the host over PCIe, which nothing else does at these sizes. On an
H200 a kernel launched by itself was measured to make it send 200 to 270 bytes (seven kinds of
kernels and a small training, 23,000 to 243,000 a second; two kinds with long lists of arguments 360
to 440) and receive seven to thirteen times as many, a node of a CUDA graph 1.3. And where launches
do not queue each counts as active for 1.05 to 1.32 us longer than its kernel takes in a graph.
"""

from agent.diagnosis.evidence import Evidence

SENT_BY_LAUNCH, RECEIVED_BY_LAUNCH = 240.0, 1560.0
"""Bytes of PCIe traffic that a GPU sends and receives for one launch."""

RECEIVED_BY_COPY = 16.0
"""Bytes that it receives for each that it sends while data is copied to it (1,122 for 70 MB/s,
1,254 for 78 on H100s)."""

LEAST_RECEIVED = 5.0
"""Least ratio of bytes received to bytes sent; below it, data is copied from the GPU. With 6.5
six of 409 s lose their cause on the tapes without GPM."""

ACTIVE_BY_LAUNCH = 1.18e-6
"""Seconds for which a launch counts as active beside its kernel."""

MOST_OF_INACTIVE = 0.25
"""That over the time for which the GPU has nothing to do, at most: launches that wait in a queue
cost none, and of a GPU that is nearly always active most do. With 0.5 one GPU fewer of 112 is right
on the tapes, with GPM and without."""


def launch_rate(e: Evidence) -> float | None:
    """Kernels launched a second, of the last seconds, beside copies to the GPU; None where PCIe is
    not read or copies from the GPU hide them."""
    sent, received = e.pcie_rates
    if sent is None or received is None or received < LEAST_RECEIVED * sent:
        return None
    by_launch = SENT_BY_LAUNCH - RECEIVED_BY_LAUNCH / RECEIVED_BY_COPY
    return max(0.0, sent - received / RECEIVED_BY_COPY) / by_launch


def launch_overhead(e: Evidence, inactive: float) -> float:
    """Return the share that launching takes of the active part of a second with this inactive
    share."""
    rate = launch_rate(e)
    return 0.0 if rate is None else min(ACTIVE_BY_LAUNCH * rate, MOST_OF_INACTIVE * inactive)
