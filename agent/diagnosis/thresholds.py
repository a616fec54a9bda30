"""The thresholds between verdicts that can be configured; those of one rule stand beside it."""

from typing import Annotated

from msgspec import Meta

from agent.config.decoding import Mismatch, Share
from agent.config.settings import Section

Wait = Annotated[float, Meta(ge=1, le=86_400, description="a number of seconds from 1 to 86400")]
Cores = Annotated[float, Meta(gt=0, le=1024, description="a number of cores above 0")]


class Thresholds(Section, frozen=True):
    """Shares are 0-1 of time or of a limit; the defaults come from labelled loads on H100s."""

    table = "diagnosis"
    held_after: Wait = 60.0  # s for which a GPU with a process must have been quiet
    quiet: Share = 0.01  # activity, PCIe and NVLink below this are quiet
    busy: Share = 0.80  # activity from which a GPU may only be spinning for a peer
    sm_low: Share = 0.30  # SM activity below this: the GPU does next to no arithmetic
    power_low: Share = 0.50  # of the power limit: stands for `sm_low` where there is no GPM
    throttled: Share = 0.50  # share of the time for which something held the clocks down
    clock_low: Share = 0.75  # of the highest SM clock: below it clocks that somebody set are shown
    communicating: Share = 0.10  # of a wire's limit
    behind: Share = 0.30  # by so much SM activity a GPU lies behind the best of its job
    waiting: Share = 0.50  # share of time that loaders sleep uninterruptibly
    disk_active: Share = 0.10  # share of time that a local disk is busy
    io_pressure: Share = 0.30  # share of time that some task waited for I/O
    running: Share = 0.80  # share of time that loaders run
    cores_busy: Share = 0.90  # of the cores that the job may use
    cpu_pressure: Share = 0.30  # share of time that some task waited for a core
    host_sensitive: Cores = 0.20  # cores that a job uses at least where the host can hold it up
    thread_least: Cores = 0.92  # cores of the launching process: about one is a chain of calls
    thread_most: Cores = 1.30  # ... and more than this is not one chain

    def __post_init__(self) -> None:
        if self.thread_least > self.thread_most:
            expected = f"at most thread_most ({self.thread_most:g})"
            raise Mismatch("thread_least", f"{self.thread_least:g}", expected)
