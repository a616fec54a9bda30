"""The filters of raw values: counters wrap, reset and jump, and a driver answers oddly once."""

from dataclasses import dataclass, field

from agent.model import Absent, Kind, Labels, Metric, Reason

LEAP = 1e6  # Events per second beyond which a counter of events is in doubt until the next reading
FELL = Absent(Reason.UNKNOWN, "the counter fell, and the next reading must confirm it")


@dataclass(slots=True)
class CounterFilter:
    """Follows a raw counter and gives the value to export, or None while it is in doubt.

    `fastest` is the highest plausible increase per second, in the counter's unit; `None` for
    events. A fall is a reset when the next reading confirms it: the exported value then falls to
    the raw value, which Prometheus understands. A fall or a leap that the next reading takes back
    is a glitch and never exported; so is a plausible value, once the next two readings are back at
    the level before it. A leap that stays, or a fall to a value that cannot have grown from 0
    meanwhile, is left out of the exported value; a leap of events that stays is not.
    """

    fastest: float | None = None
    _value: float | None = None
    _at: float = 0.0
    _before: tuple[float, float] | None = None  # an earlier value without doubt, and its time
    _doubt: tuple[float, float] | None = None
    _exported: float = 0.0
    _ahead: float = 0.0  # how far the raw counter is ahead of the exported value

    def read(self, raw: float, at: float) -> float | None:
        """Return the value to export if the raw value can follow its predecessors, at `at`
        (monotonic s)."""
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
        """Return the reason why a raw value is in doubt."""
        if self._value is None or raw < self._value:
            return FELL.without_traceback()
        return Absent(Reason.IMPLAUSIBLE, f"the counter leapt from {self._value:g} to {raw:g}")

    def _follows(self, value: float, since: float, raw: float, at: float) -> bool:
        if raw < value:
            return False
        fastest = LEAP if self.fastest is None else self.fastest
        return raw - value <= fastest * max(at - since, 1e-3)

    def _accept(self, raw: float, at: float) -> float:
        if self._value is not None and self._doubt is None:  # else it may be odd itself
            self._before = self._value, self._at
        self._value, self._at, self._doubt = raw, at, None
        exported = raw - self._ahead
        if self._ahead:  # floats that large may lose a little: that must not look like a reset
            exported = max(exported, self._exported)
        self._exported = exported
        return self._exported


FALLS = 5
"""Readings in a row that are lower, and not 0, until a count of events is taken to have fallen."""


@dataclass(slots=True)
class Confirmation:
    """Follows a value that may change by `step` at most unless the next reading has it too: an odd
    reading that is taken back has no effect. Of a count (`counts`) the smaller of the last two
    readings is exported, so that no fall and no rise that is taken back looks like new events."""

    step: float
    counts: bool
    doubtful: bool = False  # whether the next reading decides, and should not wait
    _last: float | None = None
    _exported: float = 0.0
    _lower: int = 0  # readings in a row that were

    def read(self, raw: float) -> float:
        last, self._last = self._last, raw
        if last is None:
            self._exported = raw
            return raw
        if self.counts:
            agreed = min(last, raw)
            self._lower = self._lower + 1 if max(last, raw) < self._exported else 0
            if agreed >= self._exported or self._lower >= (FALLS if agreed else 1):
                self._exported, self._lower = agreed, 0
        elif min(abs(raw - self._exported), abs(raw - last)) <= self.step:
            self._exported = raw
        self.doubtful = not self.doubtful and raw not in (last, self._exported)
        return self._exported


SeriesKey = tuple[str, ...]  # A series of a read: the metric's name and the labels of the sample


@dataclass(slots=True)
class Filters:
    """The filters of a read's series. A filter is forgotten when a whole run does not mention its
    series: the device is gone, and another may come by that name."""

    _before: dict[SeriesKey, CounterFilter | Confirmation] = field(default_factory=dict)
    _now: dict[SeriesKey, CounterFilter | Confirmation] = field(default_factory=dict)
    _doubtful: bool = False

    def passed(self, metric: Metric, labels: Labels, value: float, at: float) -> float:
        """Return the value to export for this series; raises Absent while it is in doubt."""
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
        """Forget the series that this run did not mention. Return whether the next run, which
        decides a doubtful series, should come at once."""
        self._before, self._now = self._now, {}
        doubtful, self._doubtful = self._doubtful, False
        return doubtful


@dataclass(slots=True)
class Integral:
    """A counter of the agent's own: rate times time, from 0 at the agent's start.

    `longest` bounds the time (s) that a reading may stand for: a gap is not invented.
    """

    metric: Metric
    longest: float = 15.0
    total: float = 0.0
    _at: float | None = None

    def add(self, rate: float, at: float) -> float:
        """Let `rate` (unit per second) have held since the last reading; return the total. Raises
        Absent if such a rate is impossible."""
        rate = self.metric.checked_rate(rate)
        if self._at is not None and 0.0 < at - self._at <= self.longest:
            self.total += rate * (at - self._at)
        self._at = at
        return self.total
