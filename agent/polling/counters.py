"""Filters for raw hardware counters, which wrap, reset and jump: no rate may show it."""

from dataclasses import dataclass


@dataclass(slots=True)
class CounterFilter:
    """Follows one raw counter and gives the value to export, or None while it is in doubt.

    `fastest` is the highest plausible increase per second, in the counter's unit; `None` for no
    bound. A fall is a reset when the next reading confirms it: the exported value then falls to
    the raw one, which Prometheus understands. A fall or a leap that the next reading takes back
    is a glitch and never exported. A leap that stays, or a fall to a value that cannot have grown
    from 0 meanwhile, is left out of what is exported.
    """

    fastest: float | None = None
    _value: float | None = None
    _at: float = 0.0
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
        if raw < self._value and self._follows(0.0, self._at, raw, at):
            self._ahead = 0.0
        else:
            self._ahead = raw - (self._exported + (raw - self._doubt[0]))
        return self._accept(raw, at)

    def _follows(self, value: float, since: float, raw: float, at: float) -> bool:
        if raw < value:
            return False
        return self.fastest is None or raw - value <= self.fastest * max(at - since, 1e-3)

    def _accept(self, raw: float, at: float) -> float:
        self._value, self._at, self._doubt = raw, at, None
        exported = raw - self._ahead
        if self._ahead:  # floats that large may lose a little: that must not look like a reset
            exported = max(exported, self._exported)
        self._exported = exported
        return self._exported


@dataclass(slots=True)
class Integral:
    """A counter of the agent's own: rate times time, from 0 at the agent's start.

    `longest` bounds the time that one reading may stand for: a gap is not invented.
    """

    longest: float = 15.0
    total: float = 0.0
    _at: float | None = None

    def add(self, rate: float, at: float) -> float:
        """Let `rate` (unit per second) have held since the last reading; return the total."""
        if self._at is not None and 0.0 < at - self._at <= self.longest:
            self.total += rate * (at - self._at)
        self._at = at
        return self.total
