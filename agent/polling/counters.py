"""Filters raw counter values. Counters wrap, reset, and jump, and some readings are wrong."""

from dataclasses import dataclass, field

from agent.model import Absent, Kind, Labels, Metric, Reason, checked
from agent.ranges import LARGEST, Range

LEAP = 1e6  # Events per second above which an event counter must be confirmed
FELL = Absent(Reason.UNKNOWN, "the counter fell, and the next reading must confirm it")


@dataclass(slots=True)
class CounterFilter:
    """Filters the raw values of a counter. Doubtful values are not exported.

    `fastest` is the maximum plausible increase per second in the unit of the counter, or None for
    event counters. A larger increase is a leap. A decrease that the next reading confirms is a
    reset: the exported value then drops to the raw value, as Prometheus expects. A decrease or leap
    that the next reading reverts is a glitch, and is never exported. A plausible value is also a
    glitch if the two readings after it return to the previous level. The exported value excludes
    persistent leaps, except for event counters. It also excludes decreases to values that the
    counter cannot have reached from 0 in the elapsed time.
    """

    fastest: float | None = None
    _value: float | None = None
    _at: float = 0.0
    _before: tuple[float, float] | None = None  # an earlier confirmed value and its time
    _doubt: tuple[float, float] | None = None
    _exported: float = 0.0
    _ahead: float = 0.0  # difference between raw counter and exported value

    def read(self, raw: float, at: float) -> float | None:
        """Return the value to export for a raw value at `at` (monotonic s), or None if in doubt."""
        if self._value is None or self._follows(self._value, self._at, raw, at):
            return self._accept(raw, at)
        if self._doubt is None or not self._follows(*self._doubt, raw, at):
            self._doubt = (raw, at)
            return None
        returned = self._before is not None and self._follows(*self._before, raw, at)
        reset = raw < self._value and not returned and self._follows(0.0, self._at, raw, at)
        if reset or (raw > self._value and self.fastest is None):
            self._ahead = 0.0
        else:
            self._ahead = raw - (self._exported + (raw - self._doubt[0]))
        return self._accept(raw, at)

    def doubt(self, raw: float) -> Absent:
        """Return the reason why a raw value is not exported before the next reading."""
        if self._value is None or raw < self._value:
            return FELL.without_traceback()
        return Absent(Reason.IMPLAUSIBLE, f"the counter leapt from {self._value:g} to {raw:g}")

    def _follows(self, value: float, since: float, raw: float, at: float) -> bool:
        if raw < value:
            return False
        fastest = LEAP if self.fastest is None else self.fastest
        return raw - value <= fastest * max(at - since, 1e-3)

    def _accept(self, raw: float, at: float) -> float:
        if self._value is not None and self._doubt is None:  # otherwise, it may be wrong
            self._before = self._value, self._at
        self._value, self._at, self._doubt = raw, at, None
        exported = raw - self._ahead
        if self._ahead:  # rounding of floats must not look like a reset
            exported = max(exported, self._exported)
        self._exported = exported
        return self._exported


@dataclass(slots=True)
class Confirmation:
    """Filters the values of a series. A change of more than `step` is exported only if the next
    reading confirms it, so that a single wrong reading has no effect. If the series counts events
    (`counts`), the smaller of the last two readings is exported."""

    step: float
    counts: bool
    doubtful: bool = False  # whether the next reading is decisive and should be soon
    _last: float | None = None
    _exported: float = 0.0
    _lower: int = 0  # consecutive lower readings

    def read(self, raw: float) -> float:
        last, self._last = self._last, raw
        if last is None:
            self._exported = raw
            return raw
        if self.counts:
            agreed = min(last, raw)
            self._lower = self._lower + 1 if max(last, raw) < self._exported else 0
            lower = 5 if agreed else 1  # lower readings in a row after which a count falls
            if agreed >= self._exported or self._lower >= lower:
                self._exported, self._lower = agreed, 0
        elif min(abs(raw - self._exported), abs(raw - last)) <= self.step:
            self._exported = raw
        self.doubtful = not self.doubtful and raw not in (last, self._exported)
        return self._exported


SeriesKey = tuple[str, ...]  # A series of a read: metric name and sample labels


@dataclass(slots=True)
class Filters:
    """The filters for all series of a read. If a complete run of the read does not report a series,
    its filter is dropped. The device is gone, and another device may get its name."""

    _before: dict[SeriesKey, CounterFilter | Confirmation] = field(default_factory=dict)
    _now: dict[SeriesKey, CounterFilter | Confirmation] = field(default_factory=dict)
    _doubtful: bool = False

    def passed(self, metric: Metric, labels: Labels, value: float, at: float) -> float:
        """Return the value to export for the raw `value`. Raise Absent if it is doubtful."""
        key = (metric.name, *labels)
        one = self._before.get(key)
        if one is None and metric.step is not None:
            one = Confirmation(metric.step, metric.kind is Kind.COUNTER)
        one = self._now[key] = one or CounterFilter(metric.fastest)
        if isinstance(one, Confirmation):
            exported = one.read(value)
            self._doubtful |= one.doubtful
            return exported
        passed = one.read(value, at)
        if passed is None:
            raise one.doubt(value)
        return passed

    def keep(self, metric: Metric, labels: Labels) -> None:
        key = (metric.name, *labels)
        if key in self._before:
            self._now[key] = self._before[key]

    def end_run(self) -> bool:
        """Drop the filters of series that this run did not report. Return whether any series has a
        doubtful value, so that the read should run again in the next tick."""
        self._before, self._now = self._now, {}
        doubtful, self._doubtful = self._doubtful, False
        return doubtful


@dataclass(slots=True)
class Integral:
    """A counter that the agent computes by integrating a rate since the agent started.

    If more than `longest` seconds pass between two readings, the time between them is not counted.
    """

    metric: Metric
    longest: float = 15.0
    total: float = 0.0
    _at: float | None = None

    def add(self, rate: float, at: float) -> float:
        """Add `rate` (units per second) times the seconds since the last call, and return the
        total. Raise Absent if the rate is impossible."""
        fastest = self.metric.fastest or LARGEST
        rate = checked(rate, Range(0, fastest), self.metric.origin)
        if self._at is not None and 0.0 < at - self._at <= self.longest:
            self.total += rate * (at - self._at)
        self._at = at
        return self.total
