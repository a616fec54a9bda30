"""Labels of a load's time, in the words of the account of shares: `state` or `state/cause`."""

BUSY = "busy"
NVLINK = "communicating/nvlink"
PEER = "starved/peer"
CPU = "starved/cpu"
DISK = "starved/disk"
NETWORK = "starved/network"
HOST_THREAD = "starved/host_thread"
UNKNOWN = "starved/unknown"
HUNG = "hung"
PCIE = "starved/pcie"

LABELS = (BUSY, NVLINK, PEER, CPU, DISK, NETWORK, HOST_THREAD, UNKNOWN, HUNG, PCIE)
"""Lines on standard output name a label by its place here: a new one comes last."""

Level = tuple[str, float, float | None]
"""A label that hides in the busy part of each step; the length of a step (s) without it; and with
it, or None where nothing else makes a step longer. What lies between is the label's."""
