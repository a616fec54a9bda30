"""The status of a machine at a tick, as returned by `/api/v1/status`. Lists are sorted by severity,
most severe first. Texts are for people only: clients must not compare or search them. Commands in a
text are in backticks. Names of fields with figures include the unit. Null means unknown or not
applicable; a reason or text next to the field explains it.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from agent.faults.watch import AlertState
from agent.model import Cause, Reason, State


class Level(StrEnum):
    """Severity, in descending order. It alone determines the colour in which something is shown. A
    null level means that the severity is unknown."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    GOOD = "good"


class Part(Struct, frozen=True, gc=False):
    """Base class for parts of the status. They contain no reference cycles, so the garbage
    collector can skip the hundreds of parts that are built on every tick."""


class AlertStatus(Part, frozen=True, kw_only=True):
    """The alert of a finding. `text` describes who is notified and when the alert fires."""

    name: str
    severity: Level
    state: AlertState
    text: str


class HeadlineClause(Part, frozen=True, kw_only=True):
    """A clause of the headline. It describes a fault, or the states of the GPUs.

    `findings` contains the IDs of the findings that the clause covers. Lists omit them.
    """

    level: Level | None
    text: str
    findings: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    since: datetime | None = None
    or_before: bool = False  # as in FindingStatus
    do: str | None = None
    alert: AlertStatus | None = None
    runbook: str | None = None  # anchor in runbook.html


class GpuGroup(Part, frozen=True, kw_only=True):
    """GPUs that show the same state and cause. If `state` is null, `reason` explains this.

    `share` is the share of the last `window_seconds` that the GPUs spent in this state for this
    cause. `since` is the time at which the first of the GPUs entered the state.
    """

    name: str  # `GPUs 0-2 and 4`, `8 GPUs`
    gpus: tuple[int, ...]
    level: Level | None
    state: State | None
    cause: Cause | None
    reason: Reason | None
    text: str  # `starved by disk, 24 % of the last 15 min`, without `name`
    share: float | None = None
    window_seconds: int | None = None
    since: datetime | None = None
    why: tuple[str, ...] = ()  # facts that support the verdict
    do: str | None = None  # null if a headline clause includes it
    job: str | None = None
    findings: tuple[str, ...] = ()


class FindingStatus(Part, frozen=True, kw_only=True):
    """A fault or a loss of GPU time. `hidden_by` is the ID of the finding about its cause. A
    finding with `hidden_by` is shown below that finding, without a first step."""

    id: str
    kind: str
    level: Level
    text: str  # includes the name of the GPU or device
    brief: str  # without the name, for lists below the GPU or device
    devices: tuple[str, ...] = ()  # `gpu3`, `mlx5_0:1`
    since: datetime
    or_before: bool = False  # present when the agent first checked, so it may be older
    do: str | None = None
    alert: AlertStatus | None = None
    runbook: str | None = None
    hidden_by: str | None = None
    over: bool = False  # ended, but still shown by its event counter
    in_doubt: bool = False  # job results from the affected GPUs may be wrong
    can_wait: bool = False  # nothing is lost by waiting


class GpuFigures(Part, frozen=True, kw_only=True):
    """Figures of a GPU now, and their limits. Power and tensor throughput are 10 s means."""

    activity_ratio: float | None = None
    sm_active_ratio: float | None = None
    tensor_throughput_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    temperature_limit_celsius: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_limit_hertz: float | None = None


class ProcessStatus(Part, frozen=True, kw_only=True):
    """A process on a GPU. Program and user are set only if the configuration allows it."""

    pid: int
    program: str | None = None
    user: str | None = None
    memory_bytes: float | None = None
    time_ratio: float | None = None


class InstanceStatus(Part, frozen=True, kw_only=True):
    """A MIG instance."""

    number: int
    profile: str
    uuid: str
    activity_ratio: float | None = None
    sm_active_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    processes: int | None = None


class GpuStatus(Part, frozen=True, kw_only=True):
    """The status of a GPU. `shares` contains the time shares of the last 10 s by `state/cause`.
    `findings` contains the IDs of the findings about the GPU.
    """

    gpu: int
    uuid: str
    model: str
    lost: bool
    faulty: bool  # not lost, but with a fault
    level: Level | None
    state: State | None
    cause: Cause | None
    text: str  # `starved by disk`, `lost`, or the reason for the lack of a verdict
    since: datetime | None = None
    gaps_seconds: int = 0  # time since `since` spent in other states
    why: tuple[str, ...] = ()  # facts that support the verdict
    doubts: tuple[str, ...] = ()
    do: str | None = None
    note: str | None = None  # remark, if other GPUs wait for its process
    basis: str | None = None  # signals on which the verdict is based
    confidence: float | None = None
    waits_for: int | None = None
    shares: Mapping[str, float] = {}
    figures: GpuFigures = GpuFigures()
    who: str | None = None  # the largest process and the number of others
    processes: tuple[ProcessStatus, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    findings: tuple[str, ...] = ()
    job: str | None = None


class PathStatus(Part, frozen=True, kw_only=True):
    """One direction of a data path. `level` is `warning` if the traffic reaches the threshold, and
    otherwise null. For a disk without a limit, it depends on the time with requests in flight."""

    path: str  # nvlink, pcie, hbm, disk, network, infiniband
    device: str
    gpu: int | None
    direction: str  # transmit, receive, read, write, total
    ratio: float | None = None
    bytes_per_second: float | None = None
    limit_bytes_per_second: float | None = None
    threshold_ratio: float | None = None
    origin: str | None = None
    source: str | None = None
    up: bool | None = None  # whether a port has a link or a disk controller works
    level: Level | None = None
    text: str  # `39 of 55 GB/s`, `no link`, `dead`, `not known`
    why: str | None = None  # the reason for unknown traffic


class PathRow(Part, frozen=True, kw_only=True):
    """A table row that summarizes devices of the same kind with similar traffic. `inward` and
    `outward` are the mean rates of these devices, for example `39 of 55 GB/s`."""

    path: str
    name: str  # `gpu0-7`
    devices: tuple[str, ...]
    moves: bool
    level: Level | None = None
    inward: str | None = None
    inward_ratio: float | None = None
    outward: str | None = None
    outward_ratio: float | None = None
    text: str  # `full`, `of md0`, `at rest`, `no link`, or `dead`; empty if there is no remark


class PathKind(Part, frozen=True, kw_only=True):
    """Summary of all paths of a kind, such as NVLink. It is shown above their rows."""

    path: str
    title: str  # `NVLink`
    directions: tuple[str, ...]
    devices: tuple[str, ...]
    threshold_ratio: float | None = None
    faults: dict[str, Level] = {}  # devices with a fault related to this path
    highest: str  # `highest 71 %`, `not known`
    rates: str | None = None  # `8 x 400 Gb/s, each at full rate`
    limits: str  # `limit 450 GB/s (spec sheet)`
    moves: bool  # expanded: few devices, with traffic or a finding
    level: Level | None = None


class LinkLoad(StrEnum):
    """Load of an edge in the NVLink graph. It determines the colour of the edge."""

    NONE = "none"
    LOW = "low"
    MID = "mid"
    FULL = "full"
    ERRING = "erring"  # has errors or another fault
    LESS = "less"  # some links of the edge are down
    DOWN = "down"
    UNKNOWN = "unknown"


class LinkStatus(Part, frozen=True, kw_only=True):
    """An edge of the NVLink graph: a link between two GPUs, or, if `peer` is null, all links from a
    GPU to the switches. `lane` is the index of the edge among the `lanes` edges of its GPU pair."""

    gpu: int
    peer: int | None
    lane: int
    lanes: int
    up: int  # number of links that are up
    links: int
    down: tuple[int, ...] = ()  # numbers of the links of `gpu` that are down
    ratio: float | None = None
    load: LinkLoad
    text: str | None = None  # description of the fault


class NvlinkGraph(Part, frozen=True, kw_only=True):
    """The NVLink graph. Its `kind` is switch, mesh, full, direct, or none. `expected` contains the
    pairs of linked GPUs in the spec sheet, as two indices and the number of links."""

    kind: str
    expected: tuple[tuple[int, int, int], ...] = ()
    text: str = ""


class PairShare(Part, frozen=True, kw_only=True):
    """The share of a job's GPU time that was spent in one state due to one cause."""

    state: State
    cause: Cause
    share: float
    text: str


class RunningJob(Part, frozen=True, kw_only=True):
    """A running job, with its progress and the GPU time that it has lost so far."""

    id: str
    ids: tuple[str, ...]  # all names that links may use for the job
    title: str
    user: str | None
    gpus: tuple[int, ...]
    name: str  # `GPUs 0-7`
    level: Level | None
    text: str  # most serious first
    do: str | None = None
    since: datetime
    watched_seconds: int
    gpu_seconds: float
    lost_gpu_seconds: float
    steps_per_second: tuple[float | None, ...] = ()  # at intervals of ten seconds
    shares: tuple[PairShare, ...] = ()
    cost: float | None = None
    hours: str  # GPU-hours and lost time
    money: str | None = None
    saving: str | None = None
    before: str | None  # ID of the previous run with this name and user
    findings: tuple[str, ...] = ()


class EndedJob(Part, frozen=True, kw_only=True):
    """An ended job. `text` is its receipt."""

    id: str
    ids: tuple[str, ...]
    title: str
    gpus: tuple[int, ...]
    name: str
    ended: datetime | None
    seconds: float
    text: str
    before: str | None


class AbsenceStatus(Part, frozen=True, kw_only=True):
    """Values of a metric that are absent for the same reason. `text` names the devices."""

    metric: str
    meaning: str
    reason: Reason
    text: str


class EventStatus(Part, frozen=True, kw_only=True):
    """An event of the last 24 hours: a fault, a loss of GPU time for at least a minute, or a job.
    If it began before the agent started, `since` is null. If it has not ended, `until` is null."""

    since: datetime | None
    until: datetime | None
    level: Level | None
    text: str
    job: str | None = None


class MachineStatus(Part, frozen=True, kw_only=True):
    """Identity of the machine and of its agent. `text` summarizes it."""

    host: str
    system: str | None
    title: str | None
    product: str | None
    driver_version: str | None
    gpus: int | None
    gpus_expected: int | None
    models: tuple[str, ...]
    reason: Reason | None  # why the GPUs cannot be counted
    simulated: bool
    version: str
    started: datetime | None  # time of the agent's first check for faults
    uptime_seconds: int | None  # uptime of the host
    text: str


class HostStatus(Part, frozen=True, kw_only=True):
    """Load of the host: CPU utilization, and shares of time in which tasks waited."""

    cpu_ratio: float | None
    stalled_ratio: Mapping[str, float | None]  # by cpu, io, memory
    text: str


class SourceStatus(Part, frozen=True, kw_only=True):
    """A source of metrics. Its state is `up`, `down`, or `off` (disabled by the configuration)."""

    source: str
    state: str


class Status(Part, frozen=True, kw_only=True):
    """The status at a tick. `sound` is a sentence if there are no findings, and else null."""

    at: datetime
    tick: int
    second: int  # on the agent's clock, as in the history
    level: Level | None  # level of the whole machine
    machine: MachineStatus
    headline: tuple[HeadlineClause, ...]
    sound: str | None
    groups: tuple[GpuGroup, ...]
    findings: tuple[FindingStatus, ...]
    gpus: tuple[GpuStatus, ...]
    divided: str | None  # state shares of all GPUs over ten seconds; null for a single state
    jobs: tuple[RunningJob, ...]
    unnamed: str | None  # why no job has a name and a user
    ended: tuple[EndedJob, ...]
    paths: tuple[PathStatus, ...]
    path_rows: tuple[PathRow, ...]
    path_kinds: tuple[PathKind, ...]
    links: tuple[LinkStatus, ...]
    graph: NvlinkGraph
    host: HostStatus
    sources: tuple[SourceStatus, ...]
    absences: tuple[AbsenceStatus, ...]
    unknown: str | None  # number of absent metrics, with reasons
    events: tuple[EventStatus, ...]
