"""Configurable thresholds of verdicts; a threshold of a single file is defined in that file."""

from typing import Annotated

from msgspec import Meta

from agent.config.decoding import Share
from agent.config.settings import Section

Wait = Annotated[float, Meta(ge=1, le=86_400, description="a number of seconds from 1 to 86400")]


class Thresholds(Section, frozen=True):
    """Thresholds of verdicts. Shares are fractions (0-1) of time or of a limit; the defaults come
    from labelled loads on H100."""

    table = "diagnosis"
    retired = (
        *("waiting", "io_pressure", "running", "cores_busy", "cpu_pressure", "host_sensitive"),
        *("thread_least", "thread_most"),
    )
    held_after: Wait = 60.0  # seconds for which a GPU with a process must have been quiet
    quiet: Share = 0.01  # activity, PCIe, and NVLink below this value are quiet
    busy: Share = 0.80  # activity from which a GPU may only be spinning for a peer
    sm_low: Share = 0.30  # SM activity below which the GPU does almost no arithmetic
    power_low: Share = 0.50  # fraction of the power limit; replaces `sm_low` without GPM
    throttled: Share = 0.50  # share of time for which the clocks were held down
    clock_low: Share = 0.75  # of the maximum SM clock, below which user-set clocks are shown
    communicating: Share = 0.10  # fraction of a path's limit
    behind: Share = 0.30  # SM activity by which a GPU lags the best GPU of its job
    disk_active: Share = 0.10  # share of time that a local disk is busy
