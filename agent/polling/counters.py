"""The filter of raw counters, which wrap, reset and jump: no rate may show it."""

from dataclasses import dataclass

from agent.model import Absent, Metric, Reason

LEAP = 1e6
"""Events per second beyond which a counter of events is in doubt until the next reading."""

FELL = Absent(Reason.UNKNOWN, "the counter fell, and the next reading must confirm it")


@dataclass(slots=True)
class CounterFilter:
    """Follows one raw counter and gives the value to export, or None while it is in doubt.

    `fastest` is the highest plausible increase per second, in the counter's unit; `None` for
    events. A fall is a reset when the next reading confirms it: the exported value then falls to
    the raw one, which Prometheus understands. A fall or a leap that the next reading takes back
    is a glitch and never exported; so is a value that could be, once the next two are back where
    they were before it. A leap that stays, or a fall to a value that cannot have grown from 0
    meanwhile, is left out of what is exported; a leap of events that stays is not.
    """

    fastest: float | None = None
    _value: float | None = None
    _at: float = 0.0
    _before: tuple[float, float] | None = None  # an earlier value without doubt, and its time
    _doubt: tuple[float, float] | None = None
    _exported: float = 0.0
    _ahead: float = 0.0  # by how much the raw counter is ahead of what is exported

    def read(self, raw: float, at: float) -> float | None:
        """The raw value if it can follow what came before, at monotonic time `at` (s)."""
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
        """Why a raw value is in doubt."""
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


@dataclass(slots=True)
class Integral:
    """A counter of the agent's own: rate times time, from 0 at the agent's start.

    `longest` bounds the time (s) that one reading may stand for: a gap is not invented.
    """

    metric: Metric
    longest: float = 15.0
    total: float = 0.0
    _at: float | None = None

    def add(self, rate: float, at: float) -> float:
        """Let `rate` (unit per second) have held since the last reading; return the total. Raises
        Absent where there can be no such rate."""
        rate = self.metric.checked_rate(rate)
        if self._at is not None and 0.0 < at - self._at <= self.longest:
            self.total += rate * (at - self._at)
        self._at = at
        return self.total
