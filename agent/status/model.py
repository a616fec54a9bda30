"""The status of a machine at a tick, as returned by `/api/v1/status`.

Lists are ordered, most severe first. Texts are for people only and must not be compared or
searched; commands in a text are in backticks. Field names include the unit. Null means unknown or
not applicable; an adjacent reason or text says which.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from agent.faults.watch import AlertState
from agent.model import Cause, Reason, State


class Level(StrEnum):
    """Severity of a statement, most severe first, which alone determines its colour. A null level
    means that nothing is known."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
    GOOD = "good"


class AlertStatus(Struct, frozen=True, kw_only=True):
    """The alert of a finding; `text` says how it notifies and when it fires."""

    name: str
    severity: Level
    state: AlertState
    text: str


class HeadlineClause(Struct, frozen=True, kw_only=True):
    """A clause of the machine's summary: a fault, or the work of a group of GPUs.

    `findings` are the IDs of the findings that the clause reports; lists of findings omit them.
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


class Why(Struct, frozen=True, kw_only=True):
    """A fact behind a verdict."""

    text: str


class GpuGroup(Struct, frozen=True, kw_only=True):
    """GPUs with the same verdict. Without a state, `reason` gives a machine-readable cause.

    `share` is the share of the last `window_seconds` spent in the state with its cause; `since` is
    the time at which the first GPU of the group entered the state.
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
    why: tuple[Why, ...] = ()
    do: str | None = None  # null if a headline clause already has it
    job: str | None = None
    findings: tuple[str, ...] = ()


class FindingStatus(Struct, frozen=True, kw_only=True):
    """A fault. `hidden_by` is the ID of the finding that causes it; a hidden finding is displayed
    under its cause, without a first step."""

    id: str
    kind: str
    level: Level
    text: str  # includes the name of the GPU or device
    brief: str  # without that name, for lists below it
    devices: tuple[str, ...] = ()  # `gpu3`, `mlx5_0:1`
    since: datetime
    or_before: bool = False  # present at the agent's first fault check, so that it may be older
    do: str | None = None
    alert: AlertStatus | None = None
    runbook: str | None = None
    hidden_by: str | None = None
    over: bool = False  # no longer present, except in its event counter
    in_doubt: bool = False  # job results from its GPUs may be wrong
    can_wait: bool = False  # nothing is lost meanwhile


class GpuFigures(Struct, frozen=True, kw_only=True):
    """Current figures of a GPU, with limits; power and tensor throughput are 10 s means."""

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
    """A process on a GPU; program and user are set only if the configuration allows it."""

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
    """A GPU and its own verdict, with details that its group omits.

    `shares` are time shares of the last ten seconds by `state/cause`; `findings` are finding IDs.
    """

    gpu: int
    uuid: str
    model: str
    lost: bool
    faulty: bool  # it is not lost, and a critical finding concerns it
    level: Level | None
    state: State | None
    cause: Cause | None
    text: str  # `starved by disk`, `lost`, or the reason for having no verdict
    since: datetime | None = None
    gaps_seconds: int = 0  # time since then spent in other states
    why: tuple[Why, ...] = ()
    doubts: tuple[Why, ...] = ()
    do: str | None = None
    note: str | None = None  # additional remark: other GPUs wait for its process
    basis: str | None = None  # signals behind the verdict
    confidence: float | None = None
    waits_for: int | None = None
    shares: Mapping[str, float] = {}
    figures: GpuFigures = GpuFigures()
    who: str | None = None  # its largest process and the number of others
    processes: tuple[ProcessStatus, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    findings: tuple[str, ...] = ()
    job: str | None = None


class PathStatus(Struct, frozen=True, kw_only=True):
    """A direction of a data path. `level` is warning at or above the threshold, or else null. Disks
    without a limit are judged by the share of time in which they have requests."""

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
    up: bool | None = None  # whether a port has a link, or the controller of a disk works
    level: Level | None = None
    text: str  # `39 of 55 GB/s`, `no link`, `dead`, `not known`


class PathRow(Struct, frozen=True, kw_only=True):
    """Devices of the same kind with similar traffic, as a row of a short list, fullest first.
    `inward` and `outward` are means over the devices, for example `39 of 55 GB/s`."""

    path: str
    name: str  # `gpu0-7`
    devices: tuple[str, ...]
    moves: bool
    level: Level | None = None
    inward: str | None = None
    inward_ratio: float | None = None
    outward: str | None = None
    outward_ratio: float | None = None
    text: str  # `full`, `of md0`, `at rest`, `no link`, `dead`; empty without a remark


class PathKind(Struct, frozen=True, kw_only=True):
    """Summary of a kind of path, displayed above its rows."""

    path: str
    title: str  # `NVLink`
    directions: tuple[str, ...]
    devices: tuple[str, ...]
    threshold_ratio: float | None = None
    faults: dict[str, Level] = {}  # devices with a fault of this path
    highest: str  # `highest 71 %`, `not known`
    rates: str | None = None  # `8 x 400 Gb/s, each at full rate`
    limits: str  # `limit 450 GB/s (spec sheet)`
    moves: bool  # displayed expanded: few devices, with traffic or a finding
    level: Level | None = None


class LinkLoad(StrEnum):
    """Load of a link, which determines its colour in the graph."""

    NONE = "none"
    LOW = "low"
    MID = "mid"
    FULL = "full"
    ERRING = "erring"  # makes errors
    LESS = "less"  # some links of the edge are down
    DOWN = "down"
    UNKNOWN = "unknown"


class LinkStatus(Struct, frozen=True, kw_only=True):
    """An edge of the NVLink graph: a link between two GPUs, or, if `peer` is null, all links from a
    GPU to the switches. `lane` is the edge's index among the `lanes` edges of its GPU pair."""

    gpu: int
    peer: int | None
    lane: int
    lanes: int
    up: int  # links of this edge that are up
    links: int
    down: tuple[int, ...] = ()  # numbers of the links that are down, on `gpu`
    ratio: float | None = None
    load: LinkLoad
    text: str | None = None  # description of the fault


class NvlinkGraph(Struct, frozen=True, kw_only=True):
    """The NVLink graph of kind switch, mesh, full, direct, or none; `expected` lists the GPU pairs
    that are linked according to the spec sheet, with the number of links."""

    kind: str
    expected: tuple[tuple[int, int, int], ...] = ()
    text: str = ""


class PairShare(Struct, frozen=True, kw_only=True):
    """A state and its cause, with the share of time spent in it."""

    state: State
    cause: Cause
    share: float
    text: str


class RunningJob(Struct, frozen=True, kw_only=True):
    """A running job: its progress and its losses so far."""

    id: str
    ids: tuple[str, ...]  # all names by which a link may refer to it
    title: str
    user: str | None
    gpus: tuple[int, ...]
    name: str  # `GPUs 0-7`
    level: Level | None
    text: str  # most severe first
    do: str | None = None
    since: datetime
    watched_seconds: int
    gpu_seconds: float
    lost_gpu_seconds: float
    steps_per_second: tuple[float | None, ...] = ()  # every ten seconds, oldest first
    shares: tuple[PairShare, ...] = ()
    cost: float | None = None
    hours: str  # its GPU-hours and losses
    money: str | None = None
    saving: str | None = None
    before: str | None  # ID of the previous run with the same name and user
    findings: tuple[str, ...] = ()


class EndedJob(Struct, frozen=True, kw_only=True):
    """A finished job, with its receipt as text."""

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
    """Values of a metric that are absent for the same reason; `text` names location and reason."""

    metric: str
    meaning: str
    reason: Reason
    text: str


class EventStatus(Struct, frozen=True, kw_only=True):
    """An event of the last 24 hours: a fault, a state that lost time for a minute or longer, or a
    job. A null `since` means before the agent started; a null `until` means still ongoing."""

    since: datetime | None
    until: datetime | None
    level: Level | None
    text: str
    job: str | None = None


class MachineStatus(Struct, frozen=True, kw_only=True):
    """Identity of the machine and its agent; `text` is a summary."""

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
    started: datetime | None  # when the agent first checked for faults
    uptime_seconds: int | None  # host uptime
    text: str


class HostStatus(Struct, frozen=True, kw_only=True):
    """Load of the host: CPU utilization, and shares of time in which some task waited."""

    cpu_ratio: float | None
    stalled_ratio: Mapping[str, float | None]  # by cpu, io, memory
    text: str


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source of values, which is `up`, `down`, or `off` (disabled by the configuration)."""

    source: str
    state: str


class Status(Struct, frozen=True, kw_only=True):
    """The complete status at a tick. `sound` is a sentence if there are no findings, or else
    null."""

    at: datetime
    tick: int
    second: int  # on the agent's clock, as in the history
    level: Level | None  # of the whole machine
    machine: MachineStatus
    headline: tuple[HeadlineClause, ...]
    sound: str | None
    groups: tuple[GpuGroup, ...]
    findings: tuple[FindingStatus, ...]
    gpus: tuple[GpuStatus, ...]
    divided: str | None  # shares of the last ten seconds of all GPUs, unless in a single state
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
    unknown: str | None  # number of absent metrics, and the reasons
    events: tuple[EventStatus, ...]
