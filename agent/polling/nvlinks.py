"""The NVLinks that a GPU has, for all sources that ask them."""

from agent.hardware.device import NvmlDevice
from agent.model import FINAL, GPU_LABELS, Absent, Reason, checked
from agent.polling.gpu_state import GpuState
from agent.polling.reads import PERMANENT
from agent.ranges import Range

LINK_LABELS = (*GPU_LABELS, "link")
MOST_LINKS = 36
"""More than any GPU has; the number that a GPU does have is found by asking."""

NO_NVLINK = Absent(Reason.MISSING, "this GPU has no NVLink")


STATES = Range(0, 3)


def link_state(device: NvmlDevice, link: int) -> float:
    """0 down, 1 up, 2 asleep; raises Absent."""
    return checked(device.get("NvLinkState", link), STATES, "nvmlDeviceGetNvLinkState")


def links_of(device: NvmlDevice, state: GpuState) -> tuple[int, ...]:
    """The links that this GPU has, up or down: those that report their state, asked once a query.
    Raises Absent where none does, for a reason that may pass: then no one knows."""
    if state.links is None:
        state.links = _answering(device)
    return state.links


def _answering(device: NvmlDevice) -> tuple[int, ...]:
    found, passing = [], None
    for link in range(MOST_LINKS):
        try:
            link_state(device, link)
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            passing = passing if absent.reason in PERMANENT else absent
            continue
        found.append(link)
    if passing is not None and not found:
        raise passing
    return tuple(found)
