"""Kernels that one thread launches one by one: how many a second, and what that costs.

The GPU fetches each launch from the host over PCIe, which nothing else does at these sizes. On an
H200 (`python -m tests.hardware.launches`) a kernel launched by itself makes it send 200 to 270
bytes (seven kinds of kernels and a small training, 23,000 to 243,000 a second; two kinds with long
lists of arguments 360 to 440) and receive seven to thirteen times as many, a node of a CUDA graph
1.3. And where launches do not queue each counts as active for 1.05 to 1.32 us longer than its
kernel takes in a graph.
"""

from agent.diagnosis.evidence import Evidence

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
    rate, levels = launch_rate(e), e.history.power
    if levels is None or levels.distinct:  # it works in bursts: launches wait in a queue
        return 0.0
    return 0.0 if rate is None else min(ACTIVE_BY_LAUNCH * rate, MOST_OF_INACTIVE * inactive)
