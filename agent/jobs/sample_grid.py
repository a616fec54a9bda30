"""Samples of one GPU on an even grid, as the estimate of periods needs them.

The driver takes power samples evenly; the times that it writes beside them scatter by about a
millisecond, now and then by a whole sample. Which sample is which is therefore shown by counting,
and the times only keep the count from drifting.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

LEARNED_FROM = 64
"""Samples out of which the spacing is learned. Where a third more of as many come too late than too
early, or the other way round, it is another one, and all starts again."""

DRIFT = 0.02
"""Part of a sample's time error that is believed: what remains of 1 ms of scatter is 0.1 ms."""

SPACING_DRIFT = DRIFT**2 / 4
"""The same for the spacing: the quickest that does not overshoot."""

FEW_LOST = 4
"""Samples in a gap that a straight line may fill; longer ones hold the recent mean."""

RECENT = 64
"""Samples whose mean that is."""

LONGEST_GAP = 128
"""Samples in a gap that ends the series."""


class SampleGrid:
    """From samples (seconds, value) in order of time to values `spacing` seconds apart."""

    def __init__(self) -> None:
        self.spacing = 0.0
        """Seconds between values; 0 until it is known."""
        self.latest = float("-inf")
        """The time of the latest value on the grid, in seconds."""
        self._newest = float("-inf")  # the time of the latest sample taken, as it was reported
        self._waiting: list[tuple[float, float]] = []
        self._values: list[float] = []  # placed, and not handed out yet or recent
        self._placed = self._balance = 0

    def place(self, samples: Iterable[tuple[float, float]]) -> list[list[float]]:
        """The new values; samples seen before are left out.

        The first list goes on where the last call ended, each further one is a series of its own:
        the samples between were too far apart, or their spacing was another.
        """
        series = [self._values]
        given = len(self._values)
        newest = self._newest
        for time, value in samples:
            if time <= newest:
                continue
            newest = time
            spacing = self.spacing
            late = time - self.latest - spacing
            if spacing and -spacing < 2 * late < spacing:
                self.latest = time - (1 - DRIFT) * late
                self.spacing += SPACING_DRIFT * late
                self._values.append(value)
                self._placed += 1
            elif not spacing or not self._fit(time, value):
                self._wait(time, value)
                if self.spacing:
                    series.append(self._values)
        self._newest = newest
        new = [series[0][given:], *series[1:]]
        self._values = self._values[-RECENT:]
        return new

    def _wait(self, time: float, value: float) -> None:
        """Keep samples until they distinguish how far they are; then begin a series with them."""
        waiting = self._waiting
        waiting.append((time, value))
        if len(waiting) <= LEARNED_FROM:
            return
        self.spacing = median(after[0] - before[0] for before, after in pairwise(waiting))
        self.latest = waiting[0][0] - self.spacing
        self._values = []
        self._placed = self._balance = 0
        self._waiting = []
        for number, (at, one) in enumerate(waiting):
            if not self._fit(at, one):  # a long gap among them
                self._waiting = waiting[number:]
                return

    def _fit(self, time: float, value: float) -> bool:
        """Place a sample, filling a gap before it; not if it begins something new."""
        ahead = round((time - self.latest) / self.spacing)
        self._placed += 1
        self._balance += (ahead > 1) - (ahead < 1)
        other = self._placed >= LEARNED_FROM and 3 * abs(self._balance) > self._placed
        if self._placed >= LEARNED_FROM:
            self._placed = self._balance = 0
        if other or ahead > LONGEST_GAP:
            self.spacing = 0.0
            return False
        if ahead >= 1:  # else it came early: its place is taken
            self._values += self._between(ahead - 1, value)
            self._values.append(value)
            late = time - self.latest - ahead * self.spacing
            self.latest = time - (1 - DRIFT) * late
        return True

    def _between(self, lost: int, value: float) -> Sequence[float]:
        if not lost:
            return ()
        if lost > FEW_LOST:
            recent = self._values[-RECENT:]
            return [sum(recent) / len(recent)] * lost
        last = self._values[-1]
        return [last + (value - last) * i / (lost + 1) for i in range(1, lost + 1)]
