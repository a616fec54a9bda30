"""Reads. A read collects some metrics of a source, often for one GPU. Each read has its own
schedule, and its failure does not affect other reads."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent import model
from agent.clock import Clock
from agent.errors import Failure
from agent.hardware.device import NvmlDevice, Scope
from agent.hardware.nvml import MISSHAPEN, misshapen
from agent.model import FINAL, PERMANENT, Absence, Absent, Metric, Reading, ReadKey, Reason, Sample
from agent.polling import intervals
from agent.polling.counters import Filters
from agent.polling.worker import Emit

LATE = 0.4
"""A read with an interval of one tick is due again after this share of a tick. Therefore, a read
that was late by up to 0.6 ticks also runs in the next tick."""

SOONEST = 0.1  # Minimum share of the interval between two runs

CEASED = {Reason.UNSUPPORTED, Reason.DENIED, Reason.DRIVER, Reason.IMPLAUSIBLE}
"""Reasons for absent values that are normal unless the metric had values before."""

OFF = "off"  # Name of the part of a disabled source, which is neither up nor down


@dataclass(slots=True)
class ReadOutput:
    """Collects the samples of a read. The labels of each begin with `labels`, such as a GPU's."""

    at: float
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    series: list[model.TimedSeries] = field(default_factory=list)
    pending: bool = False  # no result yet, so run again in the next tick
    failure: Failure | None = None  # failure of a part of the read; source is down
    filters: Filters | None = None  # filters for counters, if there are earlier readings

    def add(self, metric: Metric, value: float | Absent, *labels: str) -> None:
        """Add a value, or the reason why it is absent. An impossible value becomes absent."""
        if isinstance(value, Absent):  # raising a shared error keeps stack frames
            self.absent(metric, value, *labels)
            return
        try:
            number = model.checked(value, metric.possible, metric.origin)
            filtered = metric.kind is model.Kind.COUNTER or metric.step is not None
            if filtered and self.filters is not None:
                number = self.filters.passed(metric, labels, number, self.at)
        except Absent as absent:
            self.absent(metric, absent, *labels)
        else:
            self.samples.append(Sample(metric, self.labels + labels, number))

    def ask(self, metric: Metric, read: Callable[[], float], *labels: str) -> None:
        try:
            self.add(metric, read(), *labels)
        except Absent as absent:
            self.absent(metric, absent, *labels)

    def absent(self, metric: Metric, absent: Absent, *labels: str) -> None:
        self.absences.append(Absence(metric, self.labels + labels, absent.reason, str(absent)))
        if self.filters is not None:
            self.filters.keep(metric, labels)

    def reading(self, key: ReadKey) -> Reading:
        """Return the collected samples and absences as a reading with an interval of one tick."""
        return Reading(key, self.at, intervals.TICK, tuple(self.samples), tuple(self.absences))


@dataclass(slots=True, eq=False)
class Read:
    """A scheduled read of a source, for all devices or for one.

    `metrics` contains all metrics that the read may return. `every` returns the current interval in
    seconds. If `run_on_wake` is true, the read also runs when work on the GPU starts or stops.
    """

    key: ReadKey
    metrics: tuple[Metric, ...]
    run: Callable[[ReadOutput], None]
    every: Callable[[], float]
    labels: tuple[str, ...] = ()
    run_on_wake: bool = False
    stagger: float | None = None  # offset of the device as a share of the interval
    varies: bool = False  # the interval may be shortened between runs
    filters: Filters = field(default_factory=Filters)
    due: float = 0.0
    at: float = 0.0  # time of the last run
    runs: int = 0
    _had: frozenset[str] = frozenset()  # names of metrics with values in the first reading
    _gone: frozenset[str] = frozenset()  # metrics without values in the last run

    def ceased(self, reading: Reading) -> bool:
        """Return whether a metric that had values before was refused or impossible in the last two
        runs. A faulty GPU may refuse calls instead of reporting an error."""
        if not self._had:
            self._had = frozenset(sample.metric.name for sample in reading.samples)
        odd = {absence.metric.name for absence in reading.absences if absence.reason in CEASED}
        if odd:
            odd = (odd & self._had).difference(sample.metric.name for sample in reading.samples)
        before, self._gone = self._gone, frozenset(odd)
        return not before.isdisjoint(odd)


def is_due(read: Read, now: float) -> bool:
    """Return whether a read is due. If its interval has become shorter, the new one applies."""
    return read.due <= now or (read.varies and read.at + read.every() <= now)


def fixed(seconds: float) -> Callable[[], float]:
    return lambda: seconds


Question = tuple[Any, ...] | Callable[[NvmlDevice], float]


class GpuRow(NamedTuple):
    """A GPU value: its metric, its labels besides those of the GPU, and its NVML query
    (`question`). A query is a call such as `PowerUsage` with its arguments, a field ID with its
    scope, or a function of the device. `part` selects a value from the returned structure. The NVML
    value, multiplied by `times` and divided by `per`, is in the unit of the metric."""

    metric: Metric
    question: Question
    labels: model.Labels = ()
    times: float = 1.0
    per: float = 1.0
    part: str = ""


class GpuRows:
    """Reads GPU rows in order, and all field IDs in one call, because the driver reads adjacent
    fields of a link together. An absent value does not affect other rows, unless the GPU is lost.

    Until a row has had a value, each run calls `rows` once to get the rows. Each run also
    repeats queries that were refused, because a link that was down may have come up.
    """

    def __init__(self, device: NvmlDevice, rows: Callable[[], Iterable[GpuRow]]) -> None:
        self._device = device
        self._rows = rows
        self.answered = False  # whether the last read returned any value, ...
        self.refused = False  # ... or none, for reasons valid until the next query
        self._asked: list[tuple[GpuRow, Scope | None]] = []  # rows, and their fields if any

    def read(self, out: ReadOutput) -> None:
        if not self.answered:
            asked = [(row, row.question) for row in self._rows()]
            self._asked = [
                (r, None if callable(q) or isinstance(q[0], str) else q) for r, q in asked
            ]
        scopes = [scope for _, scope in self._asked if scope is not None]
        answers = iter(self._device.fields(scopes) if scopes else ())
        refusals: list[Absent] = []
        for row, scope in self._asked:
            value = self._value(row) if scope is None else next(answers)
            if isinstance(value, Absent):
                if value.reason in FINAL:
                    raise value
                refusals.append(value)
                out.absent(row.metric, value, *row.labels)
            else:
                out.add(row.metric, value * row.times / row.per, *row.labels)
        self.answered = len(refusals) < len(self._asked)
        self.refused = not self.answered and all(one.reason in PERMANENT for one in refusals)

    def _value(self, row: GpuRow) -> float | Absent:
        try:
            if callable(row.question):
                return row.question(self._device)
            return self._device.number(*row.question, part=row.part)
        except MISSHAPEN as error:
            return misshapen(row.metric.origin, error)
        except Absent as absent:
            return absent.without_traceback()


@dataclass(slots=True)
class ReadCosts:
    """Wall-clock and CPU seconds of all reads, by source. Any thread may add to them."""

    by_source: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, source: str, wall: float, cpu: float) -> None:
        with self._lock:
            before = self.by_source.get(source, (0.0, 0.0))
            self.by_source[source] = before[0] + wall, before[1] + cpu


def everything_absent(
    read: Read, absent: Absent, at: float, failure: Failure | None = None
) -> Reading:
    absences = tuple(Absence(m, read.labels, absent.reason, str(absent)) for m in read.metrics)
    return Reading(read.key, at, read.every(), (), absences, failure)


def perform(read: Read, clock: Clock, read_costs: ReadCosts) -> tuple[Reading, Absent | None]:
    """Run a read, and measure its time. Return its reading and, if the read raised an exception,
    the reason for the absent values. An exception does not affect other reads."""
    at = clock.monotonic()
    out = ReadOutput(at, read.labels, filters=read.filters)
    wall, cpu = clock.meter()
    raised: Absent | None = None
    failure: Failure | None = None
    try:
        read.run(out)
    except Absent as absent:
        raised = absent.without_traceback()  # its frames refer to it
    except Exception as error:  # errors and unexpected data must not stop the agent
        failure = Failure.of(error)
        raised = Absent(Reason.FAILED, str(failure))
    wall_after, cpu_after = clock.meter()
    read_costs.add(read.key.source, wall_after - wall, cpu_after - cpu)
    plan(read, at, pending=out.pending)
    if raised is not None:
        return everything_absent(read, raised, at, failure), raised
    if not out.pending and read.filters.end_run():
        read.due = min(read.due, at + intervals.TICK)
    failure = failure or out.failure
    found = tuple(out.samples), tuple(out.absences), failure, tuple(out.series)
    return Reading(read.key, at, read.every(), *found, clock.speed), None


def is_pending(read: Read, reading: Reading) -> bool:
    """Return whether the read has requested a second run, so that `reading` is incomplete."""
    return read.due <= reading.at


def plan(read: Read, at: float, *, pending: bool) -> None:
    """Set the next due time of a read. Each device has its own offset within the interval.

    Offsets are relative to time 0 of the clock. If they were relative to the last run, a slow run
    would move the reads of all devices to the same time.
    """
    read.at = at
    if pending:
        read.due = at
        return
    read.runs += 1
    every = read.every()
    read.due = at + (every if every > intervals.TICK else LATE * every)
    if read.stagger is not None and every > intervals.TICK:
        read.due -= (at + read.stagger * every) % every
        if read.due - at < SOONEST * every:  # it ran shortly before its offset
            read.due += every


SOON_SECONDS = 0.05  # Reads due within this time run now, as ticks are not exact


@dataclass(slots=True, eq=False)
class ReadSchedule:
    """Reads and their schedule, for devices that cannot be lost, such as those of the host."""

    reads: Sequence[Read]
    clock: Clock
    read_costs: ReadCosts

    def due(self) -> bool:
        """Return whether any read is due. Any thread may call this method."""
        now = self.clock.monotonic() + SOON_SECONDS
        return any(is_due(read, now) for read in self.reads)

    def run(self, emit: Emit) -> None:
        now = self.clock.monotonic() + SOON_SECONDS
        for read in self.reads:
            if is_due(read, now):
                reading, _ = perform(read, self.clock, self.read_costs)
                if not is_pending(read, reading):
                    emit(reading)

    def complete(self) -> bool:
        return all(read.runs for read in self.reads)
