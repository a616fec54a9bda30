"""Steps found one by one in a series whose period is known: how many, and when the last began.

The mean course of one step is laid over the series where the next step is expected, a little
earlier and later. Where the series follows it there was a step; where it stays even one is missing,
for the GPU rests or spins; where it does neither, something else goes on (a validation), or a step
that the samples show badly.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

WHOLE = 16
"""Values that are compared together, about: two steps of 9, three of 5."""

FOLLOWS = 0.5
"""Correlation of the series with the course of a step above which there was one."""

AS_DEEP = 0.35
"""Part of the course's depth that a step must have."""

OFF_BEAT = 0.2
"""Part of a step by which one may come early or late and still be the next in a row."""

FORGETS = 0.15
"""Part by which each step found changes the mean course."""

TIMED = 4
"""Steps of which one is looked for beside its expected place, if all follow the course there."""

IN_STEP = 4
"""Steps too noisy to be found that have been steps if the next one found comes when it should."""

STRANGE = 5
"""Periods that are neither even nor steps, after which something else is going on."""

MARGIN = 2
"""Values beyond a step that its course is cut from, between values."""


class Fit(NamedTuple):
    """How well a step lies at a place of the series."""

    place: float
    correlation: float
    slope: float  # its depth over that of the mean course

    @property
    def is_step(self) -> bool:
        return self.correlation >= FOLLOWS and self.slope >= AS_DEEP


class StepCount:
    """Follows the steps of one series; places are values since the series began."""

    def __init__(self, step: float, values: Sequence[float], end: int) -> None:
        """Steps of `step` values each; `values` are those before place `end`, some steps long."""
        self.steps = 0
        self._together = max(1, round(WHOLE / step))
        self._period = self._together * step
        self._found = 0
        self._values = list(values)
        self._start = end - len(self._values)  # the place of the first value kept
        self._strange = 0  # periods since the last step found that are neither even nor a step
        self._even = 0  # periods since then that are even
        self._keep(self._mean_course())
        self._last = self._turn()
        self._next = self._last + self._period

    @property
    def last(self) -> float:
        """The place at which the last step found began."""
        return self._last + self._period * (1 - 1 / self._together)

    @property
    def strange(self) -> bool:
        """Whether the series varies as steps do, but has not followed their course for a while."""
        return self._strange >= STRANGE

    @property
    def seen(self) -> int:
        """The place after the last value taken in."""
        return self._start + len(self._values)

    def extend(self, values: Sequence[float]) -> None:
        """Look for the steps that end within these further values."""
        self._values += values
        while self._next + (1 + self._reach()) * self._period + MARGIN <= self.seen:
            self._seek()
        done = int(self._next - 2 * self._period) - self._start
        if done > 2 * self._period:
            del self._values[:done]
            self._start += done

    def retime(self, step: float) -> None:
        """Go on with steps of another length that look alike."""
        period = self._together * step
        self._next += period - self._period
        self._period = period
        if period < len(self._course):
            self._keep(self._course[: int(period)])

    def missed(self, end: float) -> int:
        """How many steps before this place are missing, up to the last that was found."""
        since = int((end - self._last) / self._period) - 1
        return self._together * max(0, min(since, self._even))

    def _reach(self) -> float:
        """How far from its place a step is looked for: after a missing one, anywhere."""
        return 0.5 if self._next - self._last > 1.5 * self._period else OFF_BEAT

    def _seek(self) -> None:
        """Look for the next step; an even series is no step wherever it is looked at."""
        expected, reach = self._next, self._reach()
        self._next += self._period
        if self._is_even(expected):
            self._even += 1
            return
        fit = self._best(expected, reach)
        if not fit.is_step:
            self._strange += 1
            return
        between = (fit.place - self._last) / self._period
        whole = round(between)
        in_step = abs(between - whole) <= OFF_BEAT and whole <= IN_STEP
        self.steps += self._together * (whole if in_step else 1)
        self._found += 1
        self._last = fit.place
        self._next = fit.place + self._period
        self._strange = self._even = 0
        if self._found % TIMED == 0:
            cut = self._cut(fit.place)
            self._keep([a + FORGETS * (b - a) for a, b in zip(self._course, cut, strict=True)])

    def _best(self, expected: float, reach: float) -> Fit:
        fit = self._fit(expected)
        if fit.is_step and self._found % TIMED:
            return fit
        shift = max(0.5, self._period / 16)
        best = fit
        for number in range(1, int(reach * self._period / shift) + 1):
            sides = [self._fit(expected - number * shift), self._fit(expected + number * shift)]
            best = max(best, *sides, key=lambda one: one.correlation)
            if best is fit and fit.is_step:
                break
        return best

    def _cut(self, place: float) -> list[float]:
        """The series from this place on, as long as the course, on a line between values."""
        at = place - self._start
        first = int(at)
        rest = at - first
        part = self._values[first : first + len(self._course) + 1]
        return [a + rest * (b - a) for a, b in pairwise(part)]

    def _is_even(self, place: float) -> bool:
        first = int(place - self._start)
        part = self._values[first : first + len(self._course) + 1]
        return max(part) - min(part) < AS_DEEP * self._depth

    def _fit(self, place: float) -> Fit:
        cut = self._cut(place)
        mean = sum(cut) / len(cut)
        above = [value - mean for value in cut]
        together = sum([a * b for a, b in zip(above, self._above, strict=True)])
        spread = sum([a * a for a in above])
        if spread <= 0 or self._spread <= 0:
            return Fit(place, 0.0, 0.0)
        return Fit(place, together / sqrt(spread * self._spread), together / self._spread)

    def _keep(self, course: list[float]) -> None:
        self._course = course
        mean = sum(course) / len(course)
        self._above = [value - mean for value in course]
        self._spread = sum(above * above for above in self._above)
        self._depth = max(course) - min(course)

    def _mean_course(self) -> list[float]:
        """Of the last whole periods, four at most."""
        self._course = [0.0] * int(self._period)
        end = self.seen - MARGIN
        count = max(1, min(4, int((len(self._values) - MARGIN) / self._period)))
        cuts = [self._cut(end - number * self._period) for number in range(1, count + 1)]
        return [sum(part) / count for part in zip(*cuts, strict=True)]

    def _turn(self) -> float:
        """Let the course begin where it rises most; where the last whole step began."""
        course = self._course
        rises = [course[i] - course[i - 2] for i in range(len(course))]
        first = max(range(len(course)), key=lambda i: rises[i]) - 2
        place = self.seen - MARGIN - self._period + first
        if place + self._period > self.seen - MARGIN:
            place -= self._period
        self._keep(self._cut(place))
        return place
