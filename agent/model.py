"""The data model: metrics, samples, readings, verdicts, findings, and snapshots."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from agent.errors import Failure
from agent.ranges import ANY, Range

Labels = tuple[str, ...]
"""Label values of a series, or label names of a metric."""

GPU_LABELS = ("gpu", "uuid")
EXPIRY_INTERVALS = 3  # read intervals of at least 1 wall-clock s; older data is not exported


class Kind(StrEnum):
    """Type of a metric, such as counter."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INTERNAL = "internal"  # evidence for the diagnosis, in the snapshot but not exported


class InDefault(StrEnum):
    """Which series of a metric are in the default set of `/metrics`."""

    ALL = "all"
    FULL = "none"
    MOVED = "moved"  # parts that have been above 0, and an unnamed part at 0 for each device
    GROWN = "grown"  # parts that have been above 0
    ZERO = "at 0"  # series that have been 0
    ONE_WAY = "once"  # a single series per device if both directions are equal
    WHICH = "some"  # series selected by `which`
    SHORT = "short"  # paths whose hardware limit is below the system's spec sheet


class Reason(StrEnum):
    """Reason why the value of a metric is absent."""

    UNSUPPORTED = "unsupported"  # the hardware or the driver does not support the query
    DRIVER = "driver"  # the driver is too old to support the query
    DENIED = "denied"  # permission denied
    MIG = "mig"  # not available for the whole GPU in MIG mode
    LOST = "lost"  # the GPU has fallen off the bus
    STALLED = "stalled"  # the read hangs, or its data has expired
    NOT_ANSWERING = "not_answering"  # calls for this GPU time out
    FAILED = "failed"  # any other error
    MISSING = "not_present"  # the machine has no such hardware
    NO_DRIVER = "no_driver"  # NVML is not installed
    CRASHED = "crashed"  # NVML terminates the process that initializes it
    RELEASED = "released"  # the agent released the driver for an upgrade
    UNKNOWN = "unknown"  # the response contains no usable value
    IMPLAUSIBLE = "implausible"  # the response is a value that the hardware cannot have
    NOT_ENOUGH = "not_enough"  # too few samples so far
    TOO_SHORT = "too_short"  # the event is shorter than the time between samples
    IRREGULAR = "irregular"  # the samples have no rhythm
    FLAT = "flat"  # the samples are almost constant
    LEFT_OUT = "left_out"  # there are more devices than the reporting limit
    NOT_CONFIGURED = "not_configured"  # disabled by the configuration


FINAL = (Reason.LOST, Reason.NO_DRIVER)
"""If a call for a GPU fails for one of these reasons, the agent makes no further calls for it."""

PERMANENT = frozenset({Reason.UNSUPPORTED, Reason.DRIVER, Reason.MIG, Reason.MISSING})
"""Reasons that remain valid until the agent creates new reads for the GPU."""


class Absent(Exception):
    """Raised if a metric has no value. The message contains details about the `reason`."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.value)
        self.reason = reason

    def without_traceback(self) -> "Absent":
        """Return a copy without a traceback, because a traceback keeps stack frames in memory."""
        return Absent(self.reason, str(self))


NUMBER = int, float  # checking a tuple is several times faster than checking a union


def checked(value: object, possible: Range, what: str) -> float:
    """Return a value as a float. Raise Absent(implausible) if it is not a number in `possible`."""
    low, high = possible
    if isinstance(value, NUMBER) and low <= value <= high:
        return float(value)
    shown = f"{value:.12g}" if isinstance(value, float) else f"{value!r:.60}"
    limits = "a number"
    if possible != ANY:
        limits += f" from {low:g} to {high:g}"
    raise Absent(Reason.IMPLAUSIBLE, f"{what} is {shown}, expected {limits}")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric. Code refers to a metric by this object, not by its name.

    A value outside `possible` is a driver error and counts as absent. `fastest` is the maximum
    increase of a counter per second, or None for event counters, which have no limit. A change by
    more than `step` is exported only if the next reading confirms it. `shown` selects the series in
    the default set. `parts` are the labels that distinguish the kinds of a device's events. `which`
    selects the series that the default set contains from the start.
    """

    name: str
    meaning: str
    origin: str
    labels: Labels = ()
    possible: Range = ANY
    fastest: float | None = None
    step: float | None = None
    kind: Kind = Kind.GAUGE
    shown: InDefault = InDefault.ALL
    parts: Labels = ()
    which: Callable[[Labels], bool] = lambda _: False

    def checked(self, value: object) -> float:
        """Return a value as a float. Raise Absent(implausible) if it is outside `possible`."""
        return checked(value, self.possible, self.origin)

    def __str__(self) -> str:
        return self.name

    @property
    def help(self) -> str:
        """The HELP text: meaning, unit, and the NVML call or file from which the value is read."""
        return f"{self.meaning} Origin: {self.origin}."


class Sample(NamedTuple):
    """A value of a metric. The label values are in the order of `metric.labels`."""

    metric: Metric
    labels: Labels
    value: float


class TimedSeries(NamedTuple):
    """Values that the driver sampled between two reads, oldest first. `times` are in seconds on the
    driver's clock, whose origin differs from that of the agent's clock."""

    metric: Metric
    labels: Labels
    times: tuple[float, ...]
    values: tuple[float, ...]


class Absence(NamedTuple):
    """A missing value of a metric, and the reason. Often, only `gpu` and `uuid` are known."""

    metric: Metric
    labels: Labels
    reason: Reason
    detail: str


class GpuKey(NamedTuple):
    """A GPU: its NVML index and its UUID. The index may change if another GPU is lost."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    uuid: str

    @property
    def labels(self) -> tuple[str, str]:
        """The values of the labels `gpu` and `uuid`."""
        return str(self.index), self.uuid


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Identity of a GPU. The index may change if another GPU is lost. The UUID never changes."""

    index: int
    uuid: str = ""
    model: str = ""
    architecture: str = ""
    pci_bus_id: str = ""
    serial: str = ""
    vbios_version: str = ""
    racked: bool = False  # whether the GPU reports a chassis serial number, as in a rack

    @property
    def key(self) -> GpuKey:
        return GpuKey(self.index, self.uuid)


class Figure(NamedTuple):
    """A number in a fact or finding. `unit` is a base unit, such as bytes_per_second."""

    name: str
    value: float
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """An observation that supports a verdict: its kind, figures, names, and GPU.

    `kind` is a member of an enumeration in the module that finds the fact.
    """

    kind: StrEnum
    figures: tuple[Figure, ...] = ()
    names: tuple[str, ...] = ()
    gpu: GpuKey | None = None  # a GPU other than the judged GPU


class Severity(StrEnum):
    """Severity of a finding or an alert."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class State(StrEnum):
    """State of a GPU, such as starved."""

    IDLE = "idle"  # no compute process, or a server without requests
    HELD = "held"  # processes that have been doing nothing for a while
    HUNG = "hung"  # a job whose GPUs all wait for each other, or for an event that never occurs
    THROTTLED = "throttled"  # the clocks are reduced
    STARVED = "starved"  # the GPU has a process, but waits
    COMMUNICATING = "communicating"  # the GPU waits for a link that transfers data
    BUSY = "busy"


class Cause(StrEnum):
    """Cause of a GPU's state."""

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
"""The possible causes of each GPU state."""

Pair = tuple[State, Cause]
PAIRS: tuple[Pair, ...] = tuple((state, cause) for state, its in CAUSES.items() for cause in its)
BUSY: Pair = (State.BUSY, Cause.NONE)
LOST_STATES = (State.HUNG, State.THROTTLED, State.STARVED, State.HELD)
"""GPU states whose time counts as lost, most serious first. All sums of lost time use this list.
Exposed communication transfers a job's own data, so it does not count as lost."""
WHAT_LOST, GAINED_BY = "|".join(sorted(LOST_STATES)), (*LOST_STATES, State.COMMUNICATING)


def time_in(seconds: Mapping[Pair, float], *states: State) -> float:
    """Return the sum of the seconds in the given GPU states."""
    return sum(part for (state, _), part in seconds.items() if state in states)


class SignalQuality(StrEnum):
    """The measurements on which a verdict is based."""

    GPM = "gpm"  # Hopper and newer: engine and SM activity
    NVML = "nvml"  # utilization, which includes copies and spinning, and power


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a GPU: its state and cause, the evidence, and shares of time (sum: 1)."""

    state: State
    cause: Cause
    quality: SignalQuality
    shares: Mapping[Pair, float]
    since: float = 0.0  # start of the state, ignoring short gaps (monotonic s)
    gaps: float = 0.0  # seconds since then in other states, at most a minute at a time
    evidence: tuple[Fact, ...] = ()  # most important first
    of_losses: Mapping[Pair, tuple[Fact, ...]] = field(default_factory=dict)  # of other losses
    doubts: tuple[Fact, ...] = ()  # relevant facts that could not be read
    waits_for: GpuKey | None = None  # the GPU of the same job that delays this GPU
    confidence: float = 1.0  # share of similar verdicts that were correct in trials, 0-1
    advice: Mapping[Pair, str] = field(default_factory=dict)  # applies to most of each loss

    @property
    def pair(self) -> Pair:
        return self.state, self.cause


class ReadKey(NamedTuple):
    """The key under which the latest reading of a read is stored."""

    source: str
    part: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a read at time `at`. The read runs every `every` seconds (agent's clock)."""

    key: ReadKey
    at: float
    every: float
    samples: tuple[Sample, ...] = ()
    absences: tuple[Absence, ...] = ()
    failure: Failure | None = None
    series: tuple[TimedSeries, ...] = ()
    speed: float = 1.0  # speed of the agent's clock

    @property
    def expires(self) -> float:
        """The time after which the reading is too old to export (monotonic seconds)."""
        return self.at + EXPIRY_INTERVALS * max(self.every, self.speed)

    def fresh(self, now: float) -> bool:
        return now <= self.expires


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings and verdicts of the agent at one tick. A snapshot is immutable.

    Each GPU that is present has a verdict, or an entry in `unjudged` with the reason. `turns`
    contains the start (s) of each worker thread's reads that have not responded for long.
    """

    tick: int
    at: float
    wall: float
    readings: Mapping[ReadKey, Reading] = field(default_factory=dict)
    verdicts: Mapping[GpuKey, Verdict] = field(default_factory=dict)
    unjudged: Mapping[GpuKey, Absence] = field(default_factory=dict)
    turns: Mapping[str, float] = field(default_factory=dict)

    def samples(self, now: float) -> Iterator[Sample]:
        """Yield all samples that have not expired at `now` (monotonic seconds)."""
        return chain.from_iterable(
            reading.samples for reading in self.readings.values() if reading.fresh(now)
        )

    def absences(self, now: float) -> Iterator[Absence]:
        """Yield all absences at `now`. A sample of an expired reading is absent (`stalled`)."""
        for reading in self.readings.values():
            yield from reading.absences
            if not reading.fresh(now):
                for metric, labels, _ in reading.samples:
                    yield Absence(metric, labels, Reason.STALLED, "its data expired")
