"""Counters that grow at given rates. Their values are computed when they are read."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import NamedTuple


def noise(number: int, series: int = 0) -> float:
    mixed = (number * 0x9E3779B1 + series * 0x85EBCA77 + 1) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x7FEB352D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return (mixed >> 8) / (1 << 23) - 1.0


JITTER = 0.004  # Maximum shift of the start of a step, as a share of the step

StepPlace = tuple[int, float, float, float]
"""A position in a step: the index of the phase, the start time and duration of the step in units of
the mean step duration, and the seconds since the phase began (multiplied by the mean step duration
and divided by that of this step)."""


class StepRates:
    """Rates of counters in each phase of an endlessly repeated step.

    `durations` are the phase durations in seconds, and `rates` are the rates per second in each
    phase. Like real steps, simulated steps vary slightly in duration. The variations do not
    accumulate. If there is a single phase, the rates are constant.
    """

    def __init__(self, durations: Sequence[float], rates: Mapping[str, Sequence[float]]) -> None:
        self._ends = tuple(accumulate(durations))
        self._step = self._ends[-1]
        self._begins = (0.0, *self._ends)
        self._last = len(durations) - 1
        self._present = (0.0, 0.0)  # Start and end of the most recently queried step

        self._courses: dict[str, tuple[Sequence[float], Sequence[float]]] = {
            name: (of_phases, (0.0, *accumulate(map(mul, durations, of_phases))))
            for name, of_phases in rates.items()
        }
        """The rates in each phase, and the increases since the start of the step at the start of
        each phase and at the end of the step, by counter name."""

        self.names = dict.fromkeys(rates)

    def place(self, seconds: float) -> StepPlace:
        """Return the position in a step at `seconds` after the start of the first step."""
        if not self._last:
            return 0, 0.0, 1.0, seconds
        begin, end = self._present
        if not begin <= seconds < end:
            number = int(seconds // self._step)
            number += (seconds >= self._begin(number + 1)) - (seconds < self._begin(number))
            begin, end = self._present = self._begin(number), self._begin(number + 1)
        length = (end - begin) / self._step
        within = (seconds - begin) / length
        phase = bisect_right(self._ends, within, 0, self._last)
        return phase, begin / self._step, length, within - self._begins[phase]

    def _begin(self, number: int) -> float:
        return (number + JITTER * _off(number)) * self._step

    def count(self, name: str, place: StepPlace) -> float:
        """Return the increase of `name` from the start of the first step to `place`."""
        course = self._courses.get(name)
        if course is None:
            return 0.0
        rates, sums = course
        phase, before, length, within = place
        return before * sums[-1] + length * (sums[phase] + rates[phase] * within)


_off = lru_cache(256)(noise)
"""Deviation of a step's duration (-1 to 1), cached because GPUs of a job have the same steps."""


class _Span(NamedTuple):
    """The rates since time `since` (s). `origin` is the start time of the first step. `base`
    contains the totals at `since` without the increases in the steps from `origin` to `since`."""

    since: float
    base: dict[str, float]
    steady: dict[str, float]
    steps: StepRates
    origin: float


NO_STEPS = StepRates((1.0,), {})


class Meter:
    """Counters by name. A counter grows at a constant rate, or at one rate per phase of a step."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def flow(
        self, now: float, steady: dict[str, float], steps: StepRates = NO_STEPS, origin: float = 0.0
    ) -> None:
        base, place = self.copy(now), steps.place(now - origin)
        for name in steps.names:
            base[name] = base.get(name, 0.0) - steps.count(name, place)
        while len(self._spans) > 1 and self._spans[1].since <= now - 20.0:  # s
            del self._spans[0]
        self._spans.append(_Span(now, base, steady, steps, origin))

    def add(self, name: str, amount: float) -> None:
        base = self._spans[-1].base
        base[name] = base.get(name, 0.0) + amount

    def keep(self, names: Iterable[str]) -> None:
        """Remove all counters except those in `names`."""
        base = self._spans[-1].base
        for name in base.keys() - set(names):
            del base[name]

    def read(self, name: str, at: float) -> float:
        """Return the value of the counter `name` at time `at` (s), at most 20 s ago. Return
        0 if the name is unknown. The first rates also apply before they were set."""
        return self.read_all((name,), at)[0]

    def mean(self, name: str, begin: float, end: float) -> float:
        return (self.read(name, end) - self.read(name, begin)) / (end - begin)

    def copy(self, at: float) -> dict[str, float]:
        if not self._spans:
            return {}
        span = self._span(at)
        names = {**span.base, **span.steady, **span.steps.names}
        return dict(zip(names, self.read_all(names, at), strict=True))

    def read_all(self, names: Iterable[str], at: float) -> list[float]:
        """Return the values of several counters at time `at` (s)."""
        since, base, steady, steps, origin = self._span(at)
        place, seconds, found = steps.place(at - origin), at - since, []
        for name in names:
            total = base.get(name, 0.0) + steps.count(name, place)
            found.append(total + steady[name] * seconds if name in steady else total)
        return found

    def _span(self, at: float) -> _Span:
        for span in reversed(self._spans):
            if span.since <= at:
                return span
        return self._spans[0]
