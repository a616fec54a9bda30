"""Data of running and ended jobs. Times are seconds since the epoch unless stated otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.bounds import HOUR
from agent.jobs.identity import JobLabels
from agent.jobs.speed import SLOWER
from agent.model import BUSY, GAINED_BY, Cause, GpuKey, Pair, Reason, State


class Goodput(NamedTuple):
    """GPU-seconds given to jobs, GPU-seconds at work, and GPU-seconds that the same work would take
    at tensor core peak (None if not readable). `measured` is the part of the work for which that is
    known, or None for all of it."""

    given: float
    worked: float
    tensor: float | None
    measured: float | None = None

    @property
    def at_work(self) -> float | None:
        """Share of the given time spent at work, 0-1, or None if no time was given."""
        return self.worked / self.given if self.given > 0 else None

    @property
    def of_peak(self) -> float | None:
        """Ratio of tensor throughput at work to peak, 0-1, an approximate upper bound of MFU."""
        work = self.work_measured
        return min(1.0, (self.tensor or 0.0) / work) if work > 0 else None

    @property
    def work_measured(self) -> float:
        """GPU-seconds at work for which `tensor` is known."""
        if self.tensor is None:
            return 0.0
        return self.worked if self.measured is None else self.measured

    def __str__(self) -> str:
        given, worked = (amount(seconds / HOUR) for seconds in (self.given, self.worked))
        text = f"of {given} GPU-hours given, {worked} worked"
        peak = self.of_peak
        return text if peak is None else f"{text}, at {percent(peak)} of the tensor peak"


def amount(value: float) -> str:
    """Return GPU-hours or kWh with two decimal places, or as a whole number from 1,000. A value
    above 0 is never shown as 0."""
    return "< 0.01" if 0 < value < 0.01 else f"{value:,.{0 if value >= 1000 else 2}f}"


def percent(share: float) -> str:
    """Return a share as a percentage, such as `76 %`; a share below 1 % but above 0 is `< 1 %`."""
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


class GroupedBy(StrEnum):
    """Evidence for grouping processes into a job."""

    SLURM = "slurm"
    ANCESTOR = "ancestor"  # or a process group
    ALONE = "alone"  # a single process, so no grouping
    LOCK_STEP = "lock_step"  # no other evidence; their GPUs run in lockstep


class Slowdown(NamedTuple):
    """Slowdown of a job relative to its first hour; `step` and `reference` are step times (s)."""

    step: float
    reference: float
    since: float  # start (wall-clock time)
    seconds: float  # duration

    @property
    def ratio(self) -> float:
        """Relative increase of the step time over the reference."""
        return self.step / self.reference - 1


class CulpritState(StrEnum):
    """State, according to /proc, of a process that a job waits for."""

    STOPPED = "stopped"  # by a signal or a debugger
    ASLEEP = "asleep"  # while the others spin


class Culprit(NamedTuple):
    """A process that the others wait for; `rank` is None if unknown."""

    rank: int | None
    pid: int
    gpu: GpuKey
    state: CulpritState


@dataclass(frozen=True, slots=True)
class Hang:
    """Hang of a job: all its GPUs wait. `since` is the time at which the last GPU began to wait,
    and `seconds` is how long ago that was on the agent's clock."""

    since: float
    culprits: tuple[Culprit, ...] = ()
    seconds: float = 0.0


class Saving(NamedTuple):
    """Saving from removing a cause: `lost` GPU-seconds and `saved` seconds of job time. `then` is
    the next bottleneck, on the GPU that would be slowest (None if all would be equally fast)."""

    pair: Pair
    lost: float
    saved: float
    then: Pair
    then_gpu: GpuKey | None
    advice: str | None = None  # fits most of the recent loss on the job's GPUs


@dataclass(frozen=True, slots=True)
class Receipt:
    """GPU-hours of a job by state and cause, up to its end, or so far if `ended` is None.

    `name` and `labels`, except the runtime, are empty unless `job.info` is on. `seconds` are
    GPU-seconds by state and cause, and `unobserved` are GPU-seconds without a known state. A shared
    GPU counts in proportion to the job's share; if the share is unknown, the seconds of the whole
    GPU count only in `undivided`. `held` is the current number of GPUs, with shared GPUs counted in
    part. `steps` is the number of steps since a rhythm was first seen, and `mean_rate` is in steps
    per second, or None without a rhythm. `tensor` is the GPU-seconds the work would take at tensor
    core peak. `joules` is the energy counter's increase in the observed seconds, or None without a
    counter, and `joules_by` gives it by state and cause. `cost` is in the currency of
    `cost.gpu_hour`, or None without a price. `lasted` is the time since the newest process arrived,
    and `watched` the time observed by the agent; both are seconds on the agent's clock, like
    `ended_at`.
    """

    id: str
    name: str
    labels: JobLabels
    gpus: tuple[GpuKey, ...]
    began: float
    ended: float | None
    lasted: float
    watched: float
    seconds: Mapping[Pair, float]
    unobserved: float
    steps: int
    mean_rate: float | None
    joules: float | None
    joules_by: Mapping[Pair, float]
    cost: float | None
    savings: tuple[Saving, ...]
    ended_at: float | None = None
    tensor: float | None = None
    undivided: float = 0.0
    held: float = 0.0
    currency: str = ""

    @property
    def goodput(self) -> Goodput:
        """Goodput of the job."""
        return Goodput(self.gpu_seconds, self.seconds.get(BUSY, 0.0), self.tensor)

    @property
    def gpu_seconds(self) -> float:
        """Observed GPU-seconds."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A running job: its receipt so far and its progress.

    `step` is the step time in seconds with a `confidence` of 0-1; without it, `why_not` gives the
    reason. `never_waits` is the GPU that the others wait for. `shares` gives the job's share of
    GPUs that it shares with other jobs, or None if unknown. `rates` are steps per second in
    intervals of ten seconds, oldest first. `lost` are GPUs that no longer respond.
    """

    receipt: Receipt
    grouped_by: GroupedBy
    pids: tuple[int, ...]
    step: float | None = None
    confidence: float = 0.0
    why_not: Reason | None = None
    reference: float | None = None
    slower: Slowdown | None = None
    never_waits: GpuKey | None = None
    hang: Hang | None = None
    rates: tuple[float | None, ...] = ()
    lost: tuple[GpuKey, ...] = ()
    shares: Mapping[GpuKey, float | None] = field(default_factory=dict)


class WatchedJobs(NamedTuple):
    """All jobs: running jobs, sorted by first GPU, and ended jobs, newest first."""

    running: tuple[Job, ...] = ()
    ended: tuple[Receipt, ...] = ()


PEER: Pair = (State.STARVED, Cause.PEER)
LEAST = 0.01
"""Minimum share of GPU-seconds for a cause to be listed (chosen)."""

Seconds = Mapping[Pair, float]


def savings(by_gpu: Mapping[GpuKey, Seconds]) -> tuple[Saving, ...]:
    """Return the loss from each cause and the saving from removing it, largest saving first. As the
    slowest GPU sets the pace, removing a cause saves only the time that this GPU gains until
    another GPU is slowest."""
    whole = sum(sum(seconds.values()) for seconds in by_gpu.values())
    if whole <= 0:
        return ()
    lost: dict[Pair, float] = {}
    for seconds in by_gpu.values():
        for pair, part in seconds.items():
            if pair[0] in GAINED_BY:
                lost[pair] = lost.get(pair, 0.0) + part
    found = [_saving(pair, part, by_gpu) for pair, part in lost.items() if part >= LEAST * whole]
    return tuple(sorted(found, key=lambda saving: (-saving.saved, -saving.lost, saving.pair)))


def _saving(pair: Pair, lost: float, by_gpu: Mapping[GpuKey, Seconds]) -> Saving:
    own = {  # without the time that the GPU waits for a peer
        gpu: sum(part for pair, part in seconds.items() if pair != PEER)
        for gpu, seconds in by_gpu.items()
    }
    if pair == PEER:  # with an even load, each GPU works for the average time
        without = dict.fromkeys(own, sum(own.values()) / len(own))
    else:
        without = {gpu: own[gpu] - by_gpu[gpu].get(pair, 0.0) for gpu in own}
    slowest = max(without, key=lambda gpu: (without[gpu], own[gpu]))
    saved = max(0.0, max(own.values()) - without[slowest])
    rest = [
        (part, of)
        for of, part in by_gpu[slowest].items()
        if of[0] in GAINED_BY and of not in (pair, PEER) and part >= LEAST * own[slowest]
    ]
    differ = min(without.values()) < (1 - SLOWER) * without[slowest]
    return Saving(pair, lost, saved, max(rest)[1] if rest else BUSY, slowest if differ else None)
