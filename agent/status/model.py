"""The status of a machine at a tick, as `/api/v1/status` sends it.

Order has a meaning: the gravest stands first. A text is for people, nothing compares or searches
it; a command in it stands in backticks. A number has its unit in the name of its field. Null is
unknown, or not so; a reason or a text beside it says which.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from agent.faults.watch import AlertState
from agent.model import Cause, Reason, State


class Level(StrEnum):
    """Severity of a statement, the gravest first; colour follows from it alone. A level of null
    says that nothing is known."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    GOOD = "good"


class AlertStatus(Struct, frozen=True, kw_only=True):
    """The alert of a finding; `text` names its receiver and its time."""

    name: str
    severity: Level
    state: AlertState
    text: str


class HeadlineClause(Struct, frozen=True, kw_only=True):
    """A part of the machine's sentence: a fault, or the work of a group of GPUs.

    `findings` are the ids of the findings that it speaks of: a list of findings leaves these out.
    """

    level: Level | None
    text: str
    findings: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    since: datetime | None = None
    do: str | None = None
    alert: AlertStatus | None = None
    runbook: str | None = None  # anchor in runbook.html


class Why(Struct, frozen=True, kw_only=True):
    """A fact behind a verdict."""

    text: str


class GpuGroup(Struct, frozen=True, kw_only=True):
    """GPUs with the same verdict. Without a state `reason` says why, for programs.

    `share` is the part of the last `window_seconds` that went to the state and its cause; `since`
    is the time at which the first of the GPUs began.
    """

    name: str  # `GPUs 0-2 and 4`, `8 GPUs`
    gpus: tuple[int, ...]
    level: Level | None
    state: State | None
    cause: Cause | None
    reason: Reason | None
    text: str  # `starved by disk, 24 % of the last 15 min`, without the name
    share: float | None = None
    window_seconds: int | None = None
    since: datetime | None = None
    why: tuple[Why, ...] = ()
    do: str | None = None  # null if a clause of the headline has the same
    job: str | None = None
    findings: tuple[str, ...] = ()


class FindingStatus(Struct, frozen=True, kw_only=True):
    """A fault. `hidden_by` is the id of the finding that causes it: it is folded under that
    finding, and has no first step of its own to show."""

    id: str
    kind: str
    level: Level
    text: str  # with the name of its GPU or device
    brief: str  # without: for a list under that name
    devices: tuple[str, ...] = ()  # `gpu3`, `mlx5_0:1`
    since: datetime | None = None  # null: since before the agent looked first
    do: str | None = None
    alert: AlertStatus | None = None
    runbook: str | None = None
    hidden_by: str | None = None
    over: bool = False  # only the counter of its events is left
    in_doubt: bool = False  # results of jobs on its GPUs are in doubt


class GpuFigures(Struct, frozen=True, kw_only=True):
    """Figures of a GPU now, with their limits; power and tensor throughput are means of 10 s."""

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


class ProcessStatus(Struct, frozen=True, kw_only=True):
    """A process on a GPU; program and user only if the settings let them be named."""

    pid: int
    program: str | None = None
    user: str | None = None
    memory_bytes: float | None = None
    time_ratio: float | None = None


class InstanceStatus(Struct, frozen=True, kw_only=True):
    """A MIG instance."""

    number: int
    profile: str
    uuid: str
    activity_ratio: float | None = None
    sm_active_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    processes: int | None = None


class GpuStatus(Struct, frozen=True, kw_only=True):
    """A GPU: its own verdict, with the parts that its group leaves out.

    `shares` are those of the last ten seconds by `state/cause`. `findings` are the ids of its
    findings.
    """

    gpu: int
    uuid: str
    model: str
    lost: bool
    level: Level | None
    state: State | None
    cause: Cause | None
    text: str  # `starved by disk`, `lost`, or why nothing is known
    since: datetime | None = None
    gaps_seconds: int = 0  # of the time since then in which it was not so
    why: tuple[Why, ...] = ()
    doubts: tuple[Why, ...] = ()
    do: str | None = None
    note: str | None = None  # a further remark: others wait for its process
    basis: str | None = None  # by which signals it is judged
    confidence: float | None = None
    waits_for: int | None = None
    shares: Mapping[str, float] = {}
    figures: GpuFigures = GpuFigures()
    who: str | None = None  # its largest process, and how many more
    processes: tuple[ProcessStatus, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    findings: tuple[str, ...] = ()
    job: str | None = None


class PathStatus(Struct, frozen=True, kw_only=True):
    """A direction of a data path. `level` is warning at or above the threshold, else null; a disk
    without a limit is judged by the share of the time in which it has requests."""

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
    up: bool | None = None  # whether a port has a link
    level: Level | None = None
    text: str  # `39 of 55 GB/s`, `no link`, `not known`


class PathRow(Struct, frozen=True, kw_only=True):
    """Devices of the same kind and traffic, for a short list: the fullest first. `inward` and
    `outward` are means over the devices, as `39 of 55 GB/s`, with their ratio."""

    path: str
    name: str  # `gpu0-7`
    devices: tuple[str, ...]
    moves: bool
    level: Level | None = None
    inward: str | None = None
    inward_ratio: float | None = None
    outward: str | None = None
    outward_ratio: float | None = None
    text: str  # `full`, `of md0`, `at rest`, `no link`, `not read`; empty without a remark


class PathKind(Struct, frozen=True, kw_only=True):
    """The remarks on a kind of path above its rows."""

    path: str
    title: str  # `NVLink`
    directions: tuple[str, ...]
    devices: tuple[str, ...]
    threshold_ratio: float | None = None
    highest: str  # `highest 71 %`, `not known`
    rates: str | None = None  # `8 x 400 Gb/s, all at full rate`
    limits: str  # `limit 450 GB/s (spec sheet)`
    moves: bool  # it is shown opened: few devices, and something moves or is wrong
    level: Level | None = None


class LinkLoad(StrEnum):
    """Load of a link, for its colour in the drawing."""

    NONE = "none"
    LOW = "low"
    MID = "mid"
    FULL = "full"
    LESS = "less"  # some of its links are down
    DOWN = "down"
    UNKNOWN = "unknown"


class LinkStatus(Struct, frozen=True, kw_only=True):
    """An edge of the NVLink graph: a link between two GPUs, or all links from a GPU to the switches
    (`peer` null). `lane` is its place among the `lanes` edges of the same two GPUs."""

    gpu: int
    peer: int | None
    lane: int
    lanes: int
    up: int  # links of this edge that are up
    links: int
    down: tuple[int, ...] = ()  # numbers of the links that are down, on `gpu`
    ratio: float | None = None
    load: LinkLoad
    text: str | None = None  # its fault


class NvlinkGraph(Struct, frozen=True, kw_only=True):
    """The graph that the links make: switch, mesh, full, direct or none; `expected` are pairs of
    GPUs that the spec sheet joins, with the number of links."""

    kind: str
    expected: tuple[tuple[int, int, int], ...] = ()
    text: str = ""


class PairShare(Struct, frozen=True, kw_only=True):
    """A state and its cause, with its share of the time."""

    state: State
    cause: Cause
    share: float
    text: str


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that runs: its progress, and its losses so far."""

    id: str
    ids: tuple[str, ...]  # every name by which a link may ask for it
    title: str
    user: str | None
    gpus: tuple[int, ...]
    name: str  # `GPUs 0-7`
    level: Level | None
    text: str  # the worst first
    do: str | None = None
    since: datetime
    watched_seconds: int
    gpu_seconds: float
    lost_gpu_seconds: float
    steps_per_second: tuple[float | None, ...] = ()  # every ten seconds, the oldest first
    shares: tuple[PairShare, ...] = ()
    cost: float | None = None
    hours: str  # its GPU-hours and their yield
    money: str | None = None
    saving: str | None = None
    before: str | None  # id of the last run before of the same name and user
    findings: tuple[str, ...] = ()


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that ended, with its receipt in a sentence."""

    id: str
    ids: tuple[str, ...]
    title: str
    gpus: tuple[int, ...]
    name: str
    ended: datetime | None
    seconds: float
    text: str
    before: str | None


class AbsenceStatus(Struct, frozen=True, kw_only=True):
    """Values that are absent for the same reason; `text` names place and reason."""

    metric: str
    meaning: str
    reason: Reason
    text: str


class EventStatus(Struct, frozen=True, kw_only=True):
    """A fault, a state that cost time for a minute or longer, or a job, of the last 24 hours.
    `since` null: it began before the agent started; `until` null: it continues."""

    since: datetime | None
    until: datetime | None
    level: Level | None
    text: str
    job: str | None = None


class MachineStatus(Struct, frozen=True, kw_only=True):
    """Identity of the machine and of its agent; `text` has it in a sentence."""

    host: str
    system: str | None
    title: str | None
    product: str | None
    driver_version: str | None
    gpus: int | None
    gpus_expected: int | None
    models: tuple[str, ...]
    reason: Reason | None  # why its GPUs cannot be counted
    simulated: bool
    version: str
    started: datetime | None  # when the agent looked first
    uptime_seconds: int | None  # of the host
    text: str


class HostStatus(Struct, frozen=True, kw_only=True):
    """Load of the host: busy share of its CPUs, shares of the time in which some task waited."""

    cpu_ratio: float | None
    stalled_ratio: Mapping[str, float | None]  # by cpu, io, memory
    text: str


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source of values: `up`, `down`, or `off` by the settings."""

    source: str
    state: str


class Status(Struct, frozen=True, kw_only=True):
    """The whole status at a tick. `sound` is a sentence if no finding is known, else null."""

    at: datetime
    tick: int
    second: int  # of the agent's clock, as in the history
    level: Level | None  # of the whole machine
    machine: MachineStatus
    headline: tuple[HeadlineClause, ...]
    sound: str | None
    groups: tuple[GpuGroup, ...]
    findings: tuple[FindingStatus, ...]
    gpus: tuple[GpuStatus, ...]
    divided: str | None  # division of the last ten seconds of all GPUs, unless it is one state
    jobs: tuple[RunningJob, ...]
    ended: tuple[EndedJob, ...]
    paths: tuple[PathStatus, ...]
    path_rows: tuple[PathRow, ...]
    path_kinds: tuple[PathKind, ...]
    links: tuple[LinkStatus, ...]
    graph: NvlinkGraph
    host: HostStatus
    sources: tuple[SourceStatus, ...]
    absences: tuple[AbsenceStatus, ...]
    unknown: str | None  # how many metrics are absent, and for which reasons
    events: tuple[EventStatus, ...]
