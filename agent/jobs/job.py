"""Running and ended jobs. Times are in seconds since the epoch, unless stated otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.bounds import HOUR
from agent.jobs.identity import JobLabels
from agent.jobs.speed import SLOWER
from agent.model import BUSY, GAINED_BY, LOST_STATES, Cause, GpuKey, Pair, Reason, State, time_in


class Goodput(NamedTuple):
    """Goodput of jobs in GPU-seconds: `given` is the allotted time, and `worked` is the busy time.
    `tensor` is the time that the work would take at the tensor core peak, or None if unknown.
    `measured` is the part of `worked` for which `tensor` is known (None: all of it)."""

    given: float
    worked: float
    tensor: float | None
    measured: float | None = None

    @property
    def at_work(self) -> float | None:
        """Ratio (0-1) of `worked` to `given`, or None if `given` is 0."""
        return self.worked / self.given if self.given > 0 else None

    @property
    def of_peak(self) -> float | None:
        """Ratio (0-1) of the tensor throughput during work to the peak, an upper bound on MFU."""
        work = self.work_measured
        return min(1.0, (self.tensor or 0.0) / work) if work > 0 else None

    @property
    def work_measured(self) -> float:
        """GPU-seconds of work for which the activity of the tensor cores is known."""
        if self.tensor is None:
            return 0.0
        return self.worked if self.measured is None else self.measured

    def __str__(self) -> str:
        given, worked = (amount(seconds / HOUR) for seconds in (self.given, self.worked))
        text = f"of {given} GPU-hours given, {worked} worked"
        peak = self.of_peak
        return text if peak is None else f"{text}, at {percent(peak)} of the tensor peak"


def amount(value: float) -> str:
    """Return GPU-hours or kWh as text, with two decimal places, or as a whole number from 1,000 on.
    For values between 0 and 0.01, return `< 0.01`."""
    return "< 0.01" if 0 < value < 0.01 else f"{value:,.{0 if value >= 1000 else 2}f}"


def percent(share: float) -> str:
    """Return a share as text, such as `76 %`. For shares between 0 and 1 %, return `< 1 %`."""
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


class GroupedBy(StrEnum):
    """The evidence that the processes of a job belong together."""

    SLURM = "slurm"
    ANCESTOR = "ancestor"  # or the same process group
    ALONE = "alone"  # a single process, so no grouping
    LOCK_STEP = "lock_step"  # no other evidence; the GPUs run in lockstep


class Slowdown(NamedTuple):
    """Slowdown of a job: its step time now, and in its first hour (`reference`), in seconds."""

    step: float
    reference: float
    since: float  # start (wall time)
    seconds: float  # duration

    @property
    def ratio(self) -> float:
        """Relative increase in the step time over `reference`, for example 0.2 for 20 %."""
        return self.step / self.reference - 1


class CulpritState(StrEnum):
    """State, according to /proc, of a process that the rest of its job waits for."""

    STOPPED = "stopped"  # by a signal or debugger
    ASLEEP = "asleep"  # while the other processes spin


class Culprit(NamedTuple):
    """A process that the rest of a hung job waits for. `rank` is None if it is unknown."""

    rank: int | None
    pid: int
    gpu: GpuKey
    state: CulpritState


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang of a job: all of its GPUs wait without end. `since` is the time at which the last GPU
    began to wait, and `seconds` is the number of seconds since then on the agent's clock."""

    since: float
    culprits: tuple[Culprit, ...] = ()
    seconds: float = 0.0


class Saving(NamedTuple):
    """The estimated saving if `pair`, a state and cause, did not occur: `lost` GPU-seconds, and
    `saved` seconds of job time. `then` is the next bottleneck. It is on `then_gpu`, the GPU that
    would then be slowest (None if all GPUs would be equally fast). If `pair` is the wait for a
    peer, `late` is the GPU that the others wait for, and `due_to` is its own loss, if known."""

    pair: Pair
    lost: float
    saved: float
    then: Pair
    then_gpu: GpuKey | None
    advice: str | None = None  # applies to most of the recent loss on the job's GPUs
    late: GpuKey | None = None
    due_to: Pair | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """A job's use of its GPUs up to its end, or up to now if `ended` is None.

    `name` and `labels`, except for the runtime, are empty unless `job.info` is enabled. `seconds`
    contains GPU-seconds by state and cause, and `unobserved` is GPU-seconds without a known state.
    A shared GPU counts in proportion to the job's share. If the share is unknown, all seconds of
    the GPU count in `undivided` instead. `held` is the current number of GPUs, in which a shared
    GPU counts in proportion. `missing` is the part of `unobserved` on lost GPUs. `steps` is the
    number of steps since the step time was first known, and `mean_rate` is in steps per second, or
    None if unknown. `tensor` is the GPU-seconds that the work would take at the tensor core peak.
    `joules` is the energy used in the observed seconds (None if there is no energy counter), and
    `joules_by` is that energy by state and cause. `cost` is in `currency`, or None without a price.
    `lasted` is the time since the newest process started, and `watched` is the time since the agent
    first saw the job, both in seconds on the agent's clock.
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
    tensor: float | None = None
    undivided: float = 0.0
    held: float = 0.0
    missing: float = 0.0
    currency: str = ""

    @property
    def goodput(self) -> Goodput:
        """The job's goodput, in which all observed GPU-seconds count as given."""
        return Goodput(self.gpu_seconds, self.seconds.get(BUSY, 0.0), self.tensor)

    @property
    def lost(self) -> float:
        """GPU-seconds in states that count as lost, plus the time of lost GPUs."""
        return time_in(self.seconds, *LOST_STATES) + self.missing

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds with a known state."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A running job: its receipt so far and its progress.

    `step` is the step time in seconds, with a `confidence` from 0 to 1. If the step time is
    unknown, `why_not` is the reason. `never_waits` is the GPU that all other GPUs wait for.
    `shares` contains the job's share of each GPU that other jobs also use, or None if unknown.
    `rates` contains steps per second in intervals of ten seconds, oldest first. `lost` contains
    GPUs that no longer respond. `at_rest` is true if all GPUs of the job are in the state `held` or
    `idle`.
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
    at_rest: bool = False
    shares: Mapping[GpuKey, float | None] = field(default_factory=dict)


class WatchedJobs(NamedTuple):
    """All jobs: running jobs, sorted by their first GPU, and ended jobs, most recent first."""

    running: tuple[Job, ...] = ()
    ended: tuple[Receipt, ...] = ()


PEER: Pair = (State.STARVED, Cause.PEER)
LEAST = 0.01
"""Minimum share of GPU-seconds of a cause for a saving to be computed (chosen, not measured)."""

Seconds = Mapping[Pair, float]


def savings(by_gpu: Mapping[GpuKey, Seconds]) -> tuple[Saving, ...]:
    """Return the saving for each state and cause in which a job loses time, largest first. The
    slowest GPU sets the pace, so the GPU that is slowest without the cause limits the saving."""
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
    own = {  # excludes time for which the GPU waits for a peer
        gpu: sum(part for pair, part in seconds.items() if pair != PEER)
        for gpu, seconds in by_gpu.items()
    }
    if pair == PEER:  # with a balanced load, each GPU works for the mean time
        without = dict.fromkeys(own, sum(own.values()) / len(own))
    else:
        without = {gpu: own[gpu] - by_gpu[gpu].get(pair, 0.0) for gpu in own}
    slowest = max(without, key=lambda gpu: (without[gpu], own[gpu]))
    saved = max(0.0, max(own.values()) - without[slowest])
    then = _own_loss(by_gpu[slowest], pair, LEAST * own[slowest]) or BUSY
    differ = min(without.values()) < (1 - SLOWER) * without[slowest]
    found = Saving(pair, lost, saved, then, slowest if differ else None)
    waits = sorted((seconds.get(PEER, 0.0), gpu) for gpu, seconds in by_gpu.items())
    if pair != PEER or len(waits) < 2 or 2 * waits[0][0] > waits[1][0]:
        return found
    late, most = waits[0][1], waits[-1][0]
    return found._replace(late=late, due_to=_own_loss(by_gpu[late], PEER, most / 2))


def _own_loss(seconds: Seconds, pair: Pair, least: float) -> Pair | None:
    """Return the largest loss, other than `pair` and waits for a peer, of at least `least` s."""
    lost = [
        (part, of)
        for of, part in seconds.items()
        if of[0] in GAINED_BY and of not in (pair, PEER) and part >= least
    ]
    return max(lost)[1] if lost else None
