"""Configurable thresholds for verdicts. Other thresholds are constants where they are used."""

from typing import Annotated

from msgspec import Meta

from agent.config.decoding import Share
from agent.config.settings import Section

Wait = Annotated[float, Meta(ge=1, le=86_400, description="a number of seconds from 1 to 86400")]


class Thresholds(Section, frozen=True):
    """Thresholds for verdicts. Shares are fractions (0-1) of time or of a limit. The default values
    were derived from loads with a known bottleneck on H100 GPUs."""

    table = "diagnosis"
    retired = (
        *("waiting", "io_pressure", "running", "cores_busy", "cpu_pressure", "host_sensitive"),
        *("thread_least", "thread_most"),
    )
    held_after: Wait = 60.0  # seconds for which a GPU with a process must be quiet to count as held
    quiet: Share = 0.01  # activity and PCIe and NVLink usage below this value are quiet
    busy: Share = 0.80  # activity above which a GPU may only be spinning for a peer
    sm_low: Share = 0.30  # SM activity below which the GPU does almost no arithmetic
    power_low: Share = 0.50  # fraction of the power limit; used instead of `sm_low` without GPM
    throttled: Share = 0.50  # share of time for which the clocks were lowered
    clock_low: Share = 0.75  # of the maximum SM clock; lower user-set clocks are shown
    communicating: Share = 0.10  # fraction of a path's limit
    behind: Share = 0.15  # of the power limit; the best GPU of a job draws so much more than one
    disk_active: Share = 0.10  # share of time for which a local disk is busy
