"""Data of a job, running or ended. Times are wall time (s since the epoch) unless said."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agent.bounds import HOUR
from agent.jobs.identity import JobLabels
from agent.model import BUSY, GAINED_BY, Cause, GpuKey, Pair, Reason, State


class Goodput(NamedTuple):
    """GPU-seconds: given to jobs, at work, and at the peak of the tensor cores that would do the
    same work (None if that is not readable)."""

    given: float
    worked: float
    tensor: float | None

    @property
    def at_work(self) -> float | None:
        """Share of the given time, 0-1; None if no time was given."""
        return self.worked / self.given if self.given > 0 else None

    @property
    def of_peak(self) -> float | None:
        """Tensor throughput while at work over the peak, 0-1: an approximate upper bound of MFU."""
        known = self.tensor is not None and self.worked > 0
        return min(1.0, (self.tensor or 0.0) / self.worked) if known else None

    def __str__(self) -> str:
        given, worked = (amount(seconds / HOUR) for seconds in (self.given, self.worked))
        text = f"of {given} GPU-hours given, {worked} worked"
        peak = self.of_peak
        return text if peak is None else f"{text}, at {percent(peak)} of the tensor peak"


def amount(value: float) -> str:
    """GPU-hours or kWh to a hundredth, like costs, from a thousand on without fractions; a value
    above 0 is never shown as 0."""
    return "< 0.01" if 0 < value < 0.01 else f"{value:,.{0 if value >= 1000 else 2}f}"


def percent(share: float) -> str:
    """`76 %`; `0 %` is none, and less than 1 % is `< 1 %`."""
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


class GroupedBy(StrEnum):
    """Evidence by which processes are grouped into a job."""

    SLURM = "slurm"
    ANCESTOR = "ancestor"  # or a process group
    ALONE = "alone"  # a lone process: nothing to join
    LOCK_STEP = "lock_step"  # no other sign; their GPUs do the same


class Slowdown(NamedTuple):
    """A job that is slower than in its own first hour; step and reference in seconds."""

    step: float
    reference: float
    since: float  # wall time
    seconds: float  # for how long

    @property
    def ratio(self) -> float:
        """Excess of a step over the reference, as a share of it."""
        return self.step / self.reference - 1


class CulpritState(StrEnum):
    """State of the process that a job waits for, by /proc."""

    STOPPED = "stopped"  # by a signal or a debugger
    ASLEEP = "asleep"  # while the others spin


class Culprit(NamedTuple):
    """A process that the others wait for; `rank` if it is known."""

    rank: int | None
    pid: int
    gpu: GpuKey
    state: CulpritState


@dataclass(frozen=True, slots=True)
class Hang:
    """A job of which every GPU waits. `since` is the time at which the last of them began to wait,
    `seconds` of the agent's clock ago."""

    since: float
    culprits: tuple[Culprit, ...] = ()
    seconds: float = 0.0


class Saving(NamedTuple):
    """Saving from the end of a cause: `lost` GPU-seconds, `saved` seconds of the job; `then` is the
    next limit, on the GPU that would be the slowest (None: all would be alike)."""

    pair: Pair
    lost: float
    saved: float
    then: Pair
    then_gpu: GpuKey | None
    advice: str | None = None  # fitted most of it lately, on the GPUs of the job


@dataclass(frozen=True, slots=True)
class Receipt:
    """GPU-hours of a job by state and cause, up to its end or up to now (`ended` None).

    `name` and `labels`, but for the runtime, are empty unless `job.info` is on. `seconds` are
    GPU-seconds by state and cause, `unobserved` those without a known state; of a GPU that it
    shares with other jobs, its part, and if that is not known, `undivided` are the seconds of the
    whole GPU, which count nowhere else. It has `held` GPUs now, those shared in part. `steps` are
    counted from the first sight of the rhythm, `mean_rate` is steps a second, None without one;
    `tensor` are GPU-seconds at the peak of the tensor cores. `joules` are those of the energy
    counter in the seconds that were observed, None without a counter; `joules_by` are by state and
    cause. `cost` in the currency of `cost.gpu_hour`, None without a price. `lasted` is since its
    newest process came, `watched` as long as the agent has followed it, both in seconds of the
    agent's clock, of which `ended_at` is the moment of its end.
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

    @property
    def goodput(self) -> Goodput:
        """Goodput of its GPU-hours."""
        return Goodput(self.gpu_seconds, self.seconds.get(BUSY, 0.0), self.tensor)

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds observed."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A running job: its receipt so far, and how it gets on.

    `step` in seconds with `confidence` 0-1, or `why_not`. `never_waits` is the GPU that the others
    wait for. `shares` are those of the GPUs that others use too, None if unknown. `rates` are steps
    a second every ten seconds, oldest first. `lost` are those of its
    GPUs that no longer answer.
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
    """All jobs: running jobs by their first GPU, ended jobs the newest first."""

    running: tuple[Job, ...] = ()
    ended: tuple[Receipt, ...] = ()


PEER: Pair = (State.STARVED, Cause.PEER)
LEAST = 0.01
"""Share of the GPU-seconds from which a cause is worth a line; chosen."""

ALIKE = 0.05
"""Share of the slowest GPU's time within which no GPU of a job is called the slowest."""

Seconds = Mapping[Pair, float]


def savings(by_gpu: Mapping[GpuKey, Seconds]) -> tuple[Saving, ...]:
    """Return the loss of each cause and the saving of its end, the most saved first: as the slowest
    GPU sets the pace, a cause costs the time that this GPU would gain without it, until another GPU
    is the slowest."""
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
    own = {gpu: _own(seconds) for gpu, seconds in by_gpu.items()}
    if pair == PEER:  # an even load: each GPU as long at work as all of them on average
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
    differ = min(without.values()) < (1 - ALIKE) * without[slowest]
    return Saving(pair, lost, saved, max(rest)[1] if rest else BUSY, slowest if differ else None)


def _own(seconds: Seconds) -> float:
    """Seconds of a GPU that are not spent waiting for a peer."""
    return sum(part for pair, part in seconds.items() if pair != PEER)
