"""Data of a job, running or ended. Times are wall time (s since the epoch) unless said."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from agent.jobs.goodput import Goodput
from agent.jobs.identity import JobLabels
from agent.model import BUSY, GpuKey, Pair, Reason


class GroupedBy(StrEnum):
    """Evidence by which processes are grouped into one job."""

    NCCL = "nccl"  # they are ranks of one communicator
    SLURM = "slurm"
    ANCESTOR = "ancestor"  # or a process group
    ALONE = "alone"  # one process: nothing to join
    LOCK_STEP = "lock_step"  # no other sign; their GPUs do the same


class ChangeKind(StrEnum):
    """Kind of change when a job became slower."""

    CLOCK = "clock"  # SM clock, Hz, of the GPU that lost most
    TEMPERATURE = "temperature"  # degrees Celsius, of the hottest GPU
    SHARE = "share"  # of its GPUs' time, by state and cause
    NEIGHBOURS = "neighbours"  # other jobs on this host


class JobChange(NamedTuple):
    """One figure before a job became slower, and since."""

    kind: ChangeKind
    before: float
    after: float
    pair: Pair | None = None  # of a share


class Slowdown(NamedTuple):
    """A job that is slower than in its own first hour; step and reference in seconds."""

    step: float
    reference: float
    since: float  # wall time
    seconds: float  # for how long
    changes: tuple[JobChange, ...]

    @property
    def ratio(self) -> float:
        """Excess of a step over the reference, as a share of it."""
        return self.step / self.reference - 1


class CulpritState(StrEnum):
    """State of the process that a job waits for, by /proc."""

    STOPPED = "stopped"  # by a signal or a debugger
    ASLEEP = "asleep"  # while the others spin


class Culprit(NamedTuple):
    """A rank that the others wait for; `gpu` where it is on this host, `rank` where it is known."""

    rank: int | None
    pid: int | None
    gpu: GpuKey | None
    host: str
    state: CulpritState | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """A job of which every GPU waits. `since` is when the last of them began to, `seconds` of the
    agent's clock ago.

    `launched` and `others_launched` are collectives of `kind`, where NCCL reported them.
    """

    since: float
    culprits: tuple[Culprit, ...] = ()
    kind: str = ""
    launched: int | None = None
    others_launched: int | None = None
    confirmed: bool = False  # NCCL's counts stand still
    seconds: float = 0.0


class Saving(NamedTuple):
    """Saving from ending one cause: `lost` GPU-seconds, `saved` seconds of the job; `then` is the
    next limit, on the GPU that would be the slowest (None: all would be alike)."""

    pair: Pair
    lost: float
    saved: float
    then: Pair
    then_gpu: GpuKey | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """GPU-hours of a job by state and cause, up to its end or up to now (`ended` None).

    `name` and `labels`, but for the runtime, are empty unless `job.info` is on. `seconds` are GPU-
    seconds by state and cause, `unobserved` what nothing is known of. `steps` are counted from when
    the rhythm was first seen; `tensor` are GPU-seconds at the peak of the tensor cores; rates are
    steps a second, None without a rhythm. `joules` are those of the energy counter in the seconds
    that were observed, None without one; `joules_by` are by state and cause. `cost` in the currency
    of `cost.gpu_hour`, None without one. `lasted` is since its newest process came, `watched` as
    long as the agent has followed it, both in seconds of the agent's clock, of which `ended_at` is
    the moment of its end.
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
    best_rate: float | None
    joules: float | None
    joules_by: Mapping[Pair, float]
    cost: float | None
    savings: tuple[Saving, ...]
    ended_at: float | None = None
    tensor: float | None = None

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
    wait for. `unheard` is why NCCL does not report it, a sentence. `rates` are steps a second each
    ten seconds, oldest first. `lost` are those of its GPUs that no longer answer.
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
    unheard: str = ""
    rates: tuple[float | None, ...] = ()
    lost: tuple[GpuKey, ...] = ()


class WatchedJobs(NamedTuple):
    """All jobs: running ones by their first GPU, ended ones the newest first."""

    running: tuple[Job, ...] = ()
    ended: tuple[Receipt, ...] = ()


@dataclass(slots=True)
class JobStatus:
    """Data of jobs beyond their processes. Written by who watches jobs, a tick before it is read.
    By UUID: `nccl_stalled` where NCCL launches nothing more, `waits_on_remote` where the rank that
    all wait for is on another host; `stepping` where a job has had the rhythm of a training for a
    minute. `together` the GPUs of each job."""

    together: tuple[frozenset[GpuKey], ...] = ()
    nccl_stalled: frozenset[str] = frozenset()
    waits_on_remote: frozenset[str] = frozenset()
    stepping: frozenset[str] = frozenset()
