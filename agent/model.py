"""The data model: metrics, the samples of a read, the agent's knowledge at a tick."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import NamedTuple

from agent.errors import Failure
from agent.ranges import ANY, LARGEST, NOT_NEGATIVE, Range

Labels = tuple[str, ...]
"""The labels of a series: their values; in a metric's declaration, their names."""

GPU_LABELS = ("gpu", "uuid")
EXPIRY_INTERVALS = 3  # of its read, and at least real seconds: older data is not exported


class Kind(StrEnum):
    """Kind of a metric, by how its value may change."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INTERNAL = "internal"  # evidence for the diagnosis: in the snapshot, never in the exposition


class InDefault(StrEnum):
    """Series of a metric that the default set of `/metrics` has."""

    ALL = "all"
    FULL = "none"
    MOVED = "moved"  # the parts that ever were above 0, and a part without a name, at 0, per device
    GROWN = "grown"  # the parts that ever were above 0
    ZERO = "at 0"  # those that ever were at 0
    ONE_WAY = "once"  # once a device if both directions are equal
    WHICH = "some"  # those that `which` chooses
    SHORT = "short"  # of paths whose hardware carries less than the system's spec sheet says


class Reason(StrEnum):
    """Reason why a value is absent."""

    UNSUPPORTED = "unsupported"  # the hardware or its driver refuses the question
    DRIVER = "driver"  # this driver is too old to know the question
    DENIED = "denied"  # permission
    MIG = "mig"  # refused for the whole GPU while MIG is on
    LOST = "lost"  # the GPU fell off the bus
    STALLED = "stalled"  # the read hangs, or its data expired
    NOT_ANSWERING = "not_answering"  # calls of this GPU do not return in time
    FAILED = "failed"  # an error that has no better name
    MISSING = "not_present"  # no such hardware here
    NO_DRIVER = "no_driver"  # NVML is not there
    CRASHED = "crashed"  # NVML ends the process that initialises it
    RELEASED = "released"  # the driver was given back, for an upgrade
    UNKNOWN = "unknown"  # answered, but with no usable value
    IMPLAUSIBLE = "implausible"  # answered with a value that the hardware cannot have
    NOT_ENOUGH = "not_enough"  # too few samples so far
    TOO_SHORT = "too_short"  # the event is shorter than the time between samples
    IRREGULAR = "irregular"  # there is no rhythm in the samples
    FLAT = "flat"  # the samples hardly vary
    LEFT_OUT = "left_out"  # there are more devices than are reported
    NOT_CONFIGURED = "not_configured"  # the settings leave it out


FINAL = (Reason.LOST, Reason.NO_DRIVER)
"""Reasons after which the agent asks a GPU nothing more."""

PERMANENT = frozenset({Reason.UNSUPPORTED, Reason.DRIVER, Reason.MIG, Reason.MISSING})
"""Reasons that hold until the GPU is queried again."""


class Absent(Exception):
    """A value that is not there; `reason` says why, the message names the question."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.value)
        self.reason = reason

    def without_traceback(self) -> "Absent":
        """Return a copy to keep: a raised error holds every frame that it passed."""
        return Absent(self.reason, str(self))


def checked(value: object, possible: Range, what: str) -> float:
    """Return the value as a number; raises Absent(implausible) if it cannot be a number."""
    if isinstance(value, int | float) and possible.low <= value <= possible.high:
        return float(value)
    shown = f"{value:.12g}" if isinstance(value, float) else f"{value!r:.60}"
    limits = "a number"
    if possible != ANY:
        limits += f" from {possible.low:g} to {possible.high:g}"
    raise Absent(Reason.IMPLAUSIBLE, f"{what} is {shown}, expected {limits}")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, declared once: every exposition, board, rule and page refers to this object.

    A value outside `possible` is a mistake of the driver, and absent. `fastest` is the most by
    which a counter can grow in a second, None for events, which have no such limit. A change by
    more than `step` is exported once the next reading has it too. `shown` chooses the series of
    the default set; `parts` are the labels of kinds of an event, `which` those to export at once.
    """

    name: str
    meaning: str
    origin: str
    labels: Labels = ()
    possible: Range = field(default=ANY, compare=False)
    fastest: float | None = field(default=None, compare=False)
    step: float | None = field(default=None, compare=False)
    kind: Kind = Kind.GAUGE
    shown: InDefault = field(default=InDefault.ALL, compare=False)
    parts: Labels = field(default=(), compare=False)
    which: Callable[[Labels], bool] = field(default=lambda _: False, compare=False)

    def checked(self, value: object) -> float:
        """The value as a number; raises Absent(implausible)."""
        return checked(value, self.possible, self.origin)

    def checked_rate(self, value: object) -> float:
        """Return the rate from which a counter is integrated, in its unit per second; raises
        Absent(implausible)."""
        return checked(value, Range(0, self.fastest or LARGEST), self.origin)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def help(self) -> str:
        """Meaning with unit, then the NVML call or file that the value comes from."""
        return f"{self.meaning} Origin: {self.origin}."


gauge = Metric
counter = partial(Metric, kind=Kind.COUNTER, possible=NOT_NEGATIVE)
internal = partial(Metric, kind=Kind.INTERNAL)


class Sample(NamedTuple):
    """A value of a metric; `labels` in the order of `metric.labels`."""

    metric: Metric
    labels: Labels
    value: float


class TimedSeries(NamedTuple):
    """Samples that the driver took between two reads: values of a metric, oldest first. `times` are
    seconds on the driver's clock, which runs like the agent's but has another origin."""

    metric: Metric
    labels: Labels
    times: tuple[float, ...]
    values: tuple[float, ...]


class Absence(NamedTuple):
    """A value that is not there; `labels` as far as they are known (often GPU and UUID)."""

    metric: Metric
    labels: Labels
    reason: Reason
    detail: str


class GpuKey(NamedTuple):
    """A GPU: NVML's index, which may shift when another is lost, and its UUID, which stays."""

    index: int  # type: ignore[assignment]  # not that of tuples
    uuid: str

    @property
    def labels(self) -> tuple[str, str]:
        """The labels `gpu` and `uuid`."""
        return str(self.index), self.uuid


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Identity of a GPU; `index` may shift when another GPU is lost, `uuid` never."""

    index: int
    uuid: str
    model: str
    architecture: str
    pci_bus_id: str
    serial: str
    vbios_version: str
    racked: bool = False  # its place reports a rack, by the serial number of the chassis

    @property
    def key(self) -> GpuKey:
        return GpuKey(self.index, self.uuid)


class Figure(NamedTuple):
    """A number that decided something; `unit` is a base unit (ratio, bytes_per_second, ...)."""

    name: str
    value: float
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """An observation that decided a verdict: its kind, its figures, the GPU and devices meant.

    Kinds are members of an enumeration beside the code that finds them.
    """

    kind: StrEnum
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    gpu: GpuKey | None = None  # another than the judged GPU


class Severity(StrEnum):
    """Severity of a finding."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the machine; `device` is its port, link, array or source, empty if it is about the
    whole GPU or machine; `labels` are others of its alert."""

    kind: str
    severity: Severity
    gpu: GpuKey | None = None
    device: str = ""
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)


class State(StrEnum):
    """State of a GPU."""

    IDLE = "idle"  # no compute process, or a server without requests
    HELD = "held"  # processes that do nothing, for a while
    HUNG = "hung"  # a job whose GPUs all wait for one another, or for an event that never comes
    THROTTLED = "throttled"  # the clocks are held down
    STARVED = "starved"  # a process is there, and its GPU waits
    COMMUNICATING = "communicating"  # the GPU waits for a wire that carries its data
    BUSY = "busy"


class Cause(StrEnum):
    """Cause of a state."""

    NONE = "none"
    THERMAL = "thermal"
    POWER = "power"
    RELIABILITY = "reliability"
    PCIE = "pcie"
    NVLINK = "nvlink"
    INFINIBAND = "infiniband"
    PEER = "peer"
    DISK = "disk"
    NETWORK = "network"
    CPU = "cpu"
    HOST_THREAD = "host_thread"
    REQUESTS = "requests"
    UNKNOWN = "unknown"


CAUSES: dict[State, tuple[Cause, ...]] = {
    State.IDLE: (Cause.NONE, Cause.REQUESTS),
    State.HELD: (Cause.NONE,),
    State.HUNG: (Cause.NONE,),
    State.THROTTLED: (Cause.THERMAL, Cause.POWER, Cause.RELIABILITY),
    State.STARVED: (
        *(Cause.PCIE, Cause.PEER, Cause.DISK, Cause.NETWORK, Cause.CPU),
        *(Cause.HOST_THREAD, Cause.UNKNOWN),
    ),
    State.COMMUNICATING: (Cause.NVLINK, Cause.INFINIBAND, Cause.PCIE),
    State.BUSY: (Cause.NONE,),
}
"""The causes that each state can have."""

Pair = tuple[State, Cause]
PAIRS: tuple[Pair, ...] = tuple((state, cause) for state, its in CAUSES.items() for cause in its)
BUSY: Pair = (State.BUSY, Cause.NONE)
LOST_STATES = (State.HUNG, State.THROTTLED, State.STARVED, State.HELD)
"""States whose time is lost, the worst first; every count of lost time uses them. Exposed
communication moves a job's own data, and is shown apart."""
WHAT_LOST, GAINED_BY = "|".join(sorted(LOST_STATES)), (*LOST_STATES, State.COMMUNICATING)


def time_in(seconds: Mapping[Pair, float], *states: State) -> float:
    """The sum of the time spent in these states."""
    return sum(part for (state, _), part in seconds.items() if state in states)


class SignalQuality(StrEnum):
    """Signal on which a verdict is based."""

    GPM = "gpm"  # Hopper and newer: activity of the engines and of the multiprocessors
    NVML = "nvml"  # utilization, which counts copies and spinning too, and power


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a GPU: its state and cause, `shares` of the time that sum to 1, evidence."""

    state: State
    cause: Cause
    quality: SignalQuality
    shares: Mapping[Pair, float]
    since: float = 0.0  # when it was first called so (monotonic seconds); short gaps do not count
    gaps: float = 0.0  # seconds since then in which it was not, a minute at a time at most
    evidence: tuple[Fact, ...] = ()  # the weightiest first
    doubts: tuple[Fact, ...] = ()  # facts that were not visible, and would have been asked
    waits_for: GpuKey | None = None  # the GPU of its job that holds it up
    confidence: float = 1.0  # how often verdicts like this were right in trials, 0-1
    advice: Mapping[Pair, str] = field(default_factory=dict)  # fitted most of each recent loss

    @property
    def pair(self) -> Pair:
        return self.state, self.cause


class ReadKey(NamedTuple):
    """Key of a read of a device, under which its newest reading is kept."""

    source: str
    part: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of a read. `at` is on the agent's clock, `every` its interval (s there)."""

    key: ReadKey
    at: float
    every: float
    samples: tuple[Sample, ...] = ()
    absences: tuple[Absence, ...] = ()
    failure: Failure | None = None
    series: tuple[TimedSeries, ...] = ()
    speed: float = 1.0  # of that clock

    @property
    def expires(self) -> float:
        """Time at which the reading is too old for export (monotonic seconds)."""
        return self.at + EXPIRY_INTERVALS * max(self.every, self.speed)

    def fresh(self, now: float) -> bool:
        return now <= self.expires


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the agent knows at a tick; replaced whole, never changed.

    A GPU that is there has a verdict, or an absence with the reason; `findings` are the faults of
    the machine, None if nothing has looked.
    """

    tick: int
    at: float
    wall: float
    readings: Mapping[ReadKey, Reading] = field(default_factory=dict)
    verdicts: Mapping[GpuKey, Verdict] = field(default_factory=dict)
    unjudged: Mapping[GpuKey, Absence] = field(default_factory=dict)
    findings: tuple[Finding, ...] | None = None

    def samples(self, now: float) -> Iterator[Sample]:
        """All samples that have not expired at `now` (monotonic seconds)."""
        return chain.from_iterable(
            reading.samples for reading in self.readings.values() if reading.fresh(now)
        )

    def absences(self, now: float) -> Iterator[Absence]:
        """All values that are absent; samples of expired readings count as stalled."""
        for reading in self.readings.values():
            yield from reading.absences
            if not reading.fresh(now):
                for metric, labels, _ in reading.samples:
                    yield Absence(metric, labels, Reason.STALLED, "its data expired")
