"""Where the lines are drawn between the verdicts. Every one of them is configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares are 0-1 of time or of a limit; the defaults come from labelled loads on H100s."""

    held_after: float = 60.0  # s for which a GPU with a process must have been quiet
    quiet: float = 0.01  # activity, PCIe and NVLink below this are quiet
    busy: float = 0.80  # activity from which a bottleneck before the GPU can be ruled out
    sm_low: float = 0.30  # SM activity below this: the GPU does next to no arithmetic
    power_low: float = 0.50  # of the power limit: stands for `sm_low` where there is no GPM
    throttled: float = 0.50  # share of the time for which something held the clocks down
    clock_low: float = 0.75  # of the highest SM clock: above it the power cap is health
    power_full: float = 0.90  # of the board's own limit: so much drawn is health at any clock
    communicating: float = 0.10  # of a wire's limit
    behind: float = 0.30  # by so much SM activity a GPU lies behind the best of its job
    waiting: float = 0.50  # share of time that loaders sleep uninterruptibly
    disk_active: float = 0.10  # share of time that a local disk is busy
    io_pressure: float = 0.30  # share of time that some task waited for I/O
    running: float = 0.80  # share of time that loaders run
    cores_busy: float = 0.90  # of the cores that the job may use
    cpu_pressure: float = 0.30  # share of time that some task waited for a core
    takes_part: float = 0.20  # cores that a job uses at least where the host can hold it up
    thread_least: float = 0.80  # cores of the launching process: about one is a chain of calls
    thread_most: float = 1.30  # ... and more than this is not one chain
