"""One series at five resolutions, each searched for periods of up to a quarter of its window.

The first resolution is the samples themselves, each further one has half as many. All windows
hold equally many values, so that with samples 20 ms apart the first reaches back 5 s and the last
82 s, and each costs half as much as the one before. A period is agreed on when windows agree that
have no sample in common.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import eq
from statistics import median
from typing import NamedTuple

from agent.jobs.autocorrelation import autocorrelation
from agent.jobs.periodicity import FEW, MOST_PARTS, Lag, Peaks

BLOCK = 32
"""Samples that are taken in at once: two values at the last resolution."""

WINDOW = 256
"""Values that are searched for a period at once."""

STRIDE = WINDOW // 2
"""Values from one window to the next: of three in a row the first and the last share none."""

TIMESCALES = 5
"""Resolutions: with samples 20 ms apart, periods of 0.1 to 20 s."""

PHASES = STRIDE // BLOCK
"""Series of different phases end their windows with different blocks: where eight GPUs' samples
come at once, two of them search their windows at once, and not eight."""

REMEMBERED = 5
"""Windows, out of which three must agree: a validation may spoil two."""

STRONG = 0.6
"""Autocorrelation at a period that begins to count: in one window, and as the mean of three."""

WEAKEST = 0.4
"""Autocorrelation in windows that count beside stronger ones: a pause of 0.3 s leaves so much."""

STEADY, STEADY_ALIKE = 0.4, 0.01
"""Mean autocorrelation from which a period counts that every remembered window shows, and how far
it may then differ from window to window. Chance does not repeat itself to one part in a hundred."""

FAINT = 0.3
"""Autocorrelation that the newest samples must have at a period that coarser ones show."""

CERTAIN = 0.8
"""Autocorrelation at a period at which it may differ more from window to window."""

ALIKE, STILL_ALIKE = 0.02, 0.06
"""How far periods of windows may differ, in parts: at all, and where they are certain. Loaders and
clocks make steps longer for seconds; chance does not make strong periods at all."""

FLAT = 0.03
"""A range of the samples below this part of their mean is no work: a GPU at rest has 0.01."""


class WindowResult(NamedTuple):
    """What one window showed."""

    number: int  # of the windows of its resolution
    peaks: Peaks  # its autocorrelation
    lag: Lag | None  # the period, in values of its resolution
    depth: float  # the range of the values over their mean

    @property
    def flat(self) -> bool:
        return self.depth < FLAT


class Timescale:
    """One resolution of a series."""

    def __init__(self, number: int, phase: int) -> None:
        self.step = 1 << number
        """Samples that one value here stands for."""
        self.offset = (1 - self.step) / 2
        """The sample in the middle of the first value here, counted from the first sample."""
        self.values: deque[float] = deque(maxlen=WINDOW)
        self.arrived = 0
        """Values that have arrived so far."""
        self.results: deque[WindowResult] = deque(maxlen=REMEMBERED)
        self.agreed: Lag | None = None
        """The period, resolved or not, that windows agree on."""
        self.shown: ShownPeriod | None = None
        """The last such period that is resolved."""
        self.shown_at = 0
        """The sample at which it was shown."""
        self._due = WINDOW + phase * BLOCK // self.step
        self._last: tuple[float, ...] = ()

    def extend(self, values: Sequence[float]) -> bool:
        """Take values in, a part of a block; whether a window is complete with them."""
        self.values.extend(values)
        self.arrived += len(values)
        if self.arrived < self._due:
            return False
        self._due += STRIDE
        self._examine()
        return True

    def halved(self, values: Sequence[float]) -> list[float]:
        """The values that arrived last, at the next resolution: half as many.

        They need half the bandwidth: the kernel (1 3 3 1) / 8 lets little through above it.
        """
        v = (*(self._last or (values[0], values[0])), *values)
        self._last = v[-2:]
        return [(v[i] + v[i + 3] + 3 * (v[i + 1] + v[i + 2])) / 8 for i in range(0, len(values), 2)]

    def _examine(self) -> None:
        correlation = autocorrelation(self.values, STRIDE, FLAT)
        depth, peaks = correlation.depth, Peaks(correlation.at_lag)
        lag = None if depth < FLAT else peaks.lag()
        newest = WindowResult(self.arrived // STRIDE, peaks, lag, depth)
        self.results.append(newest)
        self.agreed = (self._agreed(newest, lag) or self._steady(lag)) if lag else None
        if self.agreed and self.agreed.resolved:
            self.shown = ShownPeriod(self, self.agreed)
            self.shown_at = self.arrived * self.step

    def _agreed(self, newest: WindowResult, lag: Lag) -> Lag | None:
        agreeing = [
            (result.number, result.lag)
            for result in self.results
            if result.lag
            and result.lag.strength >= WEAKEST
            and result.lag.resolved == lag.resolved
            and alike(result.lag.samples, lag.samples, min(result.lag.strength, lag.strength))
        ]
        apart = newest.number - agreeing[0][0] if agreeing else 0
        if len(agreeing) < 3 or apart < 2 or agreeing[-1][0] != newest.number:
            return None
        strengths = [one.strength for _, one in agreeing]
        if lag.resolved and (max(strengths) < STRONG or sum(strengths) < 3 * STRONG):
            return None
        return Lag(lag.samples, sum(strengths) / len(strengths), lag.resolved)

    def _steady(self, lag: Lag) -> Lag | None:
        """A period that every remembered window shows, if only weakly."""
        lags = [result.lag for result in self.results if result.lag and result.lag.resolved]
        if len(lags) < REMEMBERED or lag.samples < FEW:
            return None
        near = [one for one in lags if abs(one.samples / lag.samples - 1) <= STEADY_ALIKE]
        strength = sum(one.strength for one in lags) / REMEMBERED
        return Lag(lag.samples, strength, True) if near == lags and strength >= STEADY else None


def alike(one: float, other: float, strength: float) -> bool:
    """Whether two periods of this strength are one."""
    return abs(one - other) <= (STILL_ALIKE if strength >= CERTAIN else ALIKE) * other


class ShownPeriod(NamedTuple):
    """A period, and the resolution that shows it."""

    timescale: Timescale
    lag: Lag

    @property
    def samples(self) -> float:
        """The period in samples of the series."""
        return self.lag.samples * self.timescale.step


class Timescales:
    """All resolutions of one series, whose first window ends `phase` blocks later than it could."""

    def __init__(self, phase: int = 0) -> None:
        self.all = [Timescale(number, phase) for number in range(TIMESCALES)]
        self.first = self.all[0]

    def extend(self, block: Sequence[float]) -> Iterator[Timescale]:
        """Take a block of samples in; the resolutions at which that completed a window."""
        values = block
        for timescale in self.all:
            if timescale.extend(values):
                yield timescale
            values = timescale.halved(values)

    def period(self) -> ShownPeriod | None:
        """The period of the series, resolved or not: the shortest shown, or a few of it.

        What is longer counts only where it explains the series better: then the shorter one is
        part of a step. Else it is the time from one validation to the next, or between two other
        events; what was seen during the longer one's window says so, too.
        """
        found = None
        for timescale in self.all:
            lag = timescale.agreed
            if lag is None or not (lag.resolved or timescale is self.first):
                continue
            longer = ShownPeriod(timescale, lag)
            shorter = found or self._remembered(timescale)
            if shorter is None or alike(longer.samples, shorter.samples, 1.0):
                if found is None and self._is_present(longer):
                    found = longer
            elif lag.resolved and self._explains_better(longer, shorter):
                found = longer
        return found

    def alike_values(self) -> float:
        """How many samples in a row are equal, by the median: more than 1 from a slow sensor."""
        values = tuple(self.first.values)
        if sum(map(eq, values, values[1:])) < len(values) / 2:
            return 1.0
        return median(len(list(run)) for _, run in groupby(values))

    def _remembered(self, timescale: Timescale) -> ShownPeriod | None:
        """What a finer resolution has shown within the window of this one."""
        since = self.first.arrived - WINDOW * timescale.step
        finer = (o.shown for o in self.all if o.step < timescale.step and o.shown_at > since)
        return next((shown for shown in finer if shown), None)

    def _is_present(self, found: ShownPeriod) -> bool:
        """Whether the newest samples have this period too: coarser ones may be of the past."""
        step, peaks = self._finest(found)
        return peaks.lag_near(found.samples / step).strength >= FAINT

    def _explains_better(self, longer: ShownPeriod, shorter: ShownPeriod) -> bool:
        ratio = longer.samples / shorter.samples
        if not 1.5 < ratio <= MOST_PARTS + 0.5:
            return False
        step, peaks = self._finest(longer)
        return peaks.explains_better(longer.samples / step, shorter.samples / step)

    def _finest(self, found: ShownPeriod) -> tuple[int, Peaks]:
        """The step of the finest resolution whose lags reach a period, and its newest
        autocorrelation."""
        finest = next(o for o in self.all if found.samples <= (STRIDE - 2) * o.step)
        return finest.step, finest.results[-1].peaks
