"""Reads: the unit that is scheduled, timed, and allowed to fail alone."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from agent.clock import Clock
from agent.errors import Failure
from agent.hardware.device import NvmlDevice, Scope
from agent.hardware.fields import FieldId
from agent.hardware.nvml import MISSHAPEN, misshapen
from agent.model import (
    FINAL,
    PERMANENT,
    Absence,
    Absent,
    Kind,
    Labels,
    Metric,
    Reading,
    ReadKey,
    Reason,
    Sample,
    TimedSeries,
)
from agent.polling import intervals
from agent.polling.counters import Filters
from agent.polling.worker import Emit

LATE = 0.4
"""Share of the tick after which a read of every tick may run again: a read that was late by up to
0.6 of a tick runs at the next tick too."""

SOONEST = 0.1  # Share of the interval that lies between two runs at least
MOST_SERIES = 2048
"""Series of a metric that a read may bring: eight values of each of 256 devices. A source that
bounds itself, and keeps the important devices first, stays below; a set of labels that grows
without end is cut."""

CEASED = {Reason.UNSUPPORTED, Reason.DENIED, Reason.DRIVER, Reason.IMPLAUSIBLE}
"""Reasons for a value that was never there, but not for a value that goes."""

OFF = "off"  # The part of a source that the settings switch off: it is neither up nor down


@dataclass(slots=True)
class ReadOutput:
    """Collects the samples of a read; `labels` (often GPU and UUID) come first on every sample."""

    at: float
    labels: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    series: list[TimedSeries] = field(default_factory=list)
    pending: bool = False  # nothing to say yet: run again at the next tick
    failure: Failure | None = None  # of a part; the source is down
    filters: Filters | None = None  # of the counters, if there were readings before

    def add(self, metric: Metric, value: float | Absent, *labels: str) -> None:
        """Add a value, or the reason why there is none; an impossible value is absent."""
        if isinstance(value, Absent):  # often shared: raised, it would keep each frame
            self.absent(metric, value, *labels)
            return
        try:
            number = metric.checked(value)
            filtered = metric.kind is Kind.COUNTER or metric.step is not None
            if self.filters is not None and filtered:
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


@dataclass(slots=True, eq=False)
class Read:
    """A scheduled read of a source, of one device if it has any.

    `metrics` are its samples when all goes well; `every` gives its interval (s) again each time; a
    `run_on_wake` read also runs at once when the device wakes.
    """

    key: ReadKey
    metrics: tuple[Metric, ...]
    run: Callable[[ReadOutput], None]
    every: Callable[[], float]
    labels: tuple[str, ...] = ()
    run_on_wake: bool = False
    stagger: float | None = None  # place of the device in the interval, a share of it; if any
    varies: bool = False  # the interval may shorten between two runs
    filters: Filters = field(default_factory=Filters)
    due: float = 0.0
    at: float = 0.0  # when it last ran
    runs: int = 0
    _had: frozenset[str] = frozenset()  # metrics that had values at first, by name
    _gone: frozenset[str] = frozenset()  # those that had none any more at the last run

    def ceased(self, reading: Reading) -> bool:
        """Return whether a metric that had values has none at this run and the run before, because
        they are refused or impossible: an ill GPU need not say that a call failed."""
        if not self._had:
            self._had = frozenset(sample.metric.name for sample in reading.samples)
        odd = {absence.metric.name for absence in reading.absences if absence.reason in CEASED}
        if odd:
            odd = (odd & self._had).difference(sample.metric.name for sample in reading.samples)
        before, self._gone = self._gone, frozenset(odd)
        return not before.isdisjoint(odd)


def is_due(read: Read, now: float) -> bool:
    """Return whether the read is due; an interval that has become shorter counts at once."""
    return read.due <= now or (read.varies and read.at + read.every() <= now)


def fixed(seconds: float) -> Callable[[], float]:
    return lambda: seconds


Question = str | tuple[Any, ...] | FieldId | Callable[[NvmlDevice], float]


class GpuRow(NamedTuple):
    """A value of a GPU: its metric with further labels, and the question to NVML: a number by the
    name of its call (`PowerUsage`) and arguments, a field id and its scope, or a function of the
    device. The metric's unit is `per` of NVML's, or `times` fewer."""

    metric: Metric
    question: Question
    labels: Labels = ()
    times: float = 1.0
    per: float = 1.0


class GpuRows:
    """Reads rows in their order; fields in one call, for the driver answers neighbouring fields of
    a link at once. An absent value costs only itself, a lost GPU costs the rest.

    A refused question is asked again each time: a link that is down may be up at the next read.
    """

    def __init__(self, device: NvmlDevice, rows: Iterable[GpuRow]) -> None:
        self._device = device
        self.rows = tuple(rows)
        self.answered = True  # whether the last read got any value, ...
        self.refused = False  # ... or none for reasons that hold until the next query
        self._asked = [(row, _scope(row.question)) for row in self.rows]

    def read(self, out: ReadOutput) -> None:
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
        self.answered = len(refusals) < len(self.rows)
        self.refused = not self.answered and all(one.reason in PERMANENT for one in refusals)

    def _value(self, row: GpuRow) -> float | Absent:
        asked = row.question
        try:
            if isinstance(asked, str | tuple):
                return self._device.number(*((asked,) if isinstance(asked, str) else asked))
            return asked(self._device)  # type: ignore[operator] # no field id
        except MISSHAPEN as error:
            return misshapen(row.metric.origin, error)
        except Absent as absent:
            return absent.without_traceback()


def _scope(question: Question) -> Scope | None:
    """A field id with its scope; None if the question is no field."""
    if isinstance(question, FieldId):
        return question, 0
    if isinstance(question, tuple) and isinstance(question[0], FieldId):
        return question[0], question[1]
    return None


@dataclass(slots=True)
class ReadCosts:
    """Seconds of wall time and of CPU time by source, kept by the threads that pay them."""

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
    """Run a read, timed; an exception costs that read alone. Returns the reading and the reason
    that the read raised."""
    at = clock.monotonic()
    out = ReadOutput(at, read.labels, filters=read.filters)
    wall, cpu = clock.meter()
    raised: Absent | None = None
    failure: Failure | None = None
    try:
        read.run(out)
    except Absent as absent:
        raised = absent
    except Exception as error:  # a bug or a surprise of the hardware must not end the agent
        failure = Failure.of(error)
        raised = Absent(Reason.FAILED, str(failure))
    wall_after, cpu_after = clock.meter()
    read_costs.add(read.key.source, wall_after - wall, cpu_after - cpu)
    plan(read, at, pending=out.pending)
    if raised is not None:
        return everything_absent(read, raised, at, failure), raised
    bound(out)
    if not out.pending and read.filters.end_run():
        read.due = min(read.due, at + intervals.TICK)
    failure = failure or out.failure
    found = tuple(out.samples), tuple(out.absences), failure, tuple(out.series)
    return Reading(read.key, at, read.every(), *found, clock.speed), None


def bound(out: ReadOutput) -> None:
    """Leave out the series above MOST_SERIES of a metric, and say so. Evidence for the diagnosis is
    whole: its series are no answer's, and a job without some of its processes is several jobs."""
    if len(out.samples) <= MOST_SERIES:
        return
    seen = Counter(sample.metric for sample in out.samples)
    for metric, count in seen.items():
        if count > MOST_SERIES and metric.kind is not Kind.INTERNAL:
            places = (i for i, sample in enumerate(out.samples) if sample.metric is metric)
            beyond = set(islice(places, MOST_SERIES, None))
            out.samples = [s for i, s in enumerate(out.samples) if i not in beyond]
            why = f"{len(beyond)} of {count} values are left out"
            out.absences.append(Absence(metric, out.labels, Reason.LEFT_OUT, why))


def is_pending(read: Read, reading: Reading) -> bool:
    """Return whether the read asked to run again at once: its last result stays valid."""
    return read.due <= reading.at


def plan(read: Read, at: float, *, pending: bool) -> None:
    """Set the time at which the read is due again; devices keep their places in the interval.

    The places are counted from the clock's origin: were they counted from the last read, a turn
    that takes long would bring all devices together for good.
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
        if read.due - at < SOONEST * every:  # it ran a little before its place
            read.due += every


def refused_read(why: Absent) -> Callable[[ReadOutput], None]:
    def read(_: ReadOutput) -> None:
        raise why.without_traceback()

    return read


SOON_SECONDS = 0.05  # A read due within so many seconds runs now: a tick is never exactly on time


class ReadSchedule:
    """Reads that share a backend but no device that could be lost (the host's)."""

    def __init__(self, reads: Iterable[Read], clock: Clock, read_costs: ReadCosts) -> None:
        self.reads = tuple(reads)
        self._clock = clock
        self.read_costs = read_costs

    def due(self) -> bool:
        """Return whether a turn would read anything; for any thread."""
        now = self._clock.monotonic() + SOON_SECONDS
        return any(is_due(read, now) for read in self.reads)

    def run(self, emit: Emit) -> None:
        now = self._clock.monotonic() + SOON_SECONDS
        for read in self.reads:
            if is_due(read, now):
                reading, _ = perform(read, self._clock, self.read_costs)
                if not is_pending(read, reading):
                    emit(reading)

    def complete(self) -> bool:
        return all(read.runs for read in self.reads)
