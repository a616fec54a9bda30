"""The data model: what a metric is, what a read yields, what the agent knows at one tick."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

GPU_LABELS = ("gpu", "uuid")
EXPIRY_BEATS = 3
"""Data older than this many beats of its read is no longer exported."""


class Kind(StrEnum):
    """What the value of a metric may do."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SIGNAL = "signal"  # evidence for the diagnosis: in the snapshot, never in the exposition


class Reason(StrEnum):
    """Why a value is absent."""

    UNSUPPORTED = "unsupported"  # the hardware or its driver refuses the question
    DRIVER = "driver"  # this driver is too old to know the question
    DENIED = "denied"  # permission
    MIG = "mig"  # refused for the whole GPU while MIG is on
    LOST = "lost"  # the GPU fell off the bus
    STALLED = "stalled"  # the read hangs, or its data expired
    FAILED = "failed"  # an error that has no better name
    MISSING = "not_present"  # no such hardware here
    NO_DRIVER = "no_driver"  # NVML is not there
    UNKNOWN = "unknown"  # answered, but with no usable value


FINAL = (Reason.LOST, Reason.NO_DRIVER)
"""Reasons after which nothing more need be asked of a GPU."""


class Absent(Exception):
    """A value that is not there; `reason` says why, the message says what was asked."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.value)
        self.reason = reason

    def kept(self) -> "Absent":
        """The same to keep: an error that was raised holds on to every frame that it came by."""
        return Absent(self.reason, str(self))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, declared once: every exposition, board, rule and page refers to this object."""

    name: str
    kind: Kind
    meaning: str
    origin: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def help(self) -> str:
        """Meaning with unit, then the NVML call or file that the value comes from."""
        return f"{self.meaning} Origin: {self.origin}."


def gauge(name: str, meaning: str, origin: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.GAUGE, meaning, origin, labels)


def counter(name: str, meaning: str, origin: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.COUNTER, meaning, origin, labels)


def signal(name: str, meaning: str, origin: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.SIGNAL, meaning, origin, labels)


class Sample(NamedTuple):
    """One value of one metric; `labels` in the order of `metric.labels`."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Absence(NamedTuple):
    """One value that is not there; `labels` as far as they are known (often GPU and UUID)."""

    metric: Metric
    labels: tuple[str, ...]
    reason: Reason
    detail: str


class ReadKey(NamedTuple):
    """Which read of which device: the name under which its newest reading is kept."""

    source: str
    part: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read yielded. `at` is on the agent's monotonic clock, `every` is its beat (s)."""

    key: ReadKey
    at: float
    every: float
    samples: tuple[Sample, ...] = ()
    absences: tuple[Absence, ...] = ()
    failure: str = ""

    @property
    def expires(self) -> float:
        """When it is too old to be exported (monotonic seconds)."""
        return self.at + EXPIRY_BEATS * self.every

    def fresh(self, now: float) -> bool:
        return now <= self.expires


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the agent knows at one tick; replaced whole, never changed."""

    tick: int
    at: float
    wall: float
    readings: Mapping[ReadKey, Reading] = field(default_factory=dict)

    def samples(self, now: float) -> Iterator[Sample]:
        """All samples that have not expired at `now` (monotonic seconds)."""
        for reading in self.readings.values():
            if reading.fresh(now):
                yield from reading.samples

    def absences(self, now: float) -> Iterator[Absence]:
        """All values that are absent; samples of expired readings count as stalled."""
        for reading in self.readings.values():
            yield from reading.absences
            if not reading.fresh(now):
                for metric, labels, _ in reading.samples:
                    yield Absence(metric, labels, Reason.STALLED, "its data expired")
