"""The thresholds between verdicts that can be configured; thresholds of one file stand in it."""

from typing import Annotated

from msgspec import Meta

from agent.config.decoding import Share
from agent.config.settings import Section

Wait = Annotated[float, Meta(ge=1, le=86_400, description="a number of seconds from 1 to 86400")]


class Thresholds(Section, frozen=True):
    """Shares are 0-1 of time or of a limit; the defaults come from labelled loads on H100s."""

    table = "diagnosis"
    retired = (
        *("waiting", "io_pressure", "running", "cores_busy", "cpu_pressure", "host_sensitive"),
        *("thread_least", "thread_most"),
    )
    held_after: Wait = 60.0  # s for which a GPU with a process must have been quiet
    quiet: Share = 0.01  # activity, PCIe and NVLink below this are quiet
    busy: Share = 0.80  # activity from which a GPU may only be spinning for a peer
    sm_low: Share = 0.30  # SM activity below this: the GPU does next to no arithmetic
    power_low: Share = 0.50  # of the power limit: stands for `sm_low` without GPM
    throttled: Share = 0.50  # share of the time for which something held the clocks down
    clock_low: Share = 0.75  # of the highest SM clock: below it clocks that somebody set are shown
    communicating: Share = 0.10  # of a wire's limit
    behind: Share = 0.30  # by so much SM activity a GPU lies behind the best of its job
    disk_active: Share = 0.10  # share of time that a local disk is busy
