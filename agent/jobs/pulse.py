"""The pulse of a GPU: the length of its job's steps, read from samples of its power.

The measure is the autocorrelation of the newest 256 values, of samples 20 ms apart and of means of
2, 4, 8 and 16 of them, so that two steps of 0.1 to 20 s fit into a window. The test: windows
overlap by half, and three of the last five must show the same period. Power alone cannot show that
gradients are accumulated over parts that are all alike, nor that loaders bring several batches at
once; code that knows of loaders judges that.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate, takewhile
from math import cos, isqrt, pi, sqrt
from operator import eq, itemgetter, sub
from statistics import fmean, median
from typing import NamedTuple


class Correlation(NamedTuple):
    """The autocorrelation of some samples, and how widely they vary."""

    at_lag: list[float]  # Pearson's coefficient for lags 0, 1, 2, ...
    depth: float  # the range of the values over their mean


def autocorrelation(values: Sequence[float], lags: int, flat: float = 0.0) -> Correlation:
    """Pearson's coefficient of `values` with themselves, for each lag below `lags`.

    A straight trend is removed first. Values whose depth is below `flat` correlate with nothing:
    all coefficients but the first are 0. Two whole numbers whose digits are the samples, those of
    the second backwards, are multiplied: each digit of the product is the sum of products at a lag
    (Kronecker substitution). For 256 samples that costs 0.1 ms; a loop over lags costs 2 ms.
    """
    level = sum(values) / len(values)
    depth = (max(values) - min(values)) / abs(level) if level else 0.0
    if depth < max(flat, 1e-9):
        return Correlation([1.0] + [0.0] * (lags - 1), depth)
    even = _without_trend(values)
    lowest = min(even)
    # The largest sum of products still fills a digit, of 32 bits.
    scale = (isqrt((1 << 32) // len(even)) - 1) / (max(even) - lowest)
    return Correlation(_coefficients([int((v - lowest) * scale) for v in even], lags), depth)


def _without_trend(values: Sequence[float]) -> list[float]:
    """Return the values less the line through the means of their halves."""
    half = len(values) // 2
    rise = (sum(values[-half:]) - sum(values[:half])) / half
    slope = rise / (len(values) - half)
    return [value - slope * i for i, value in enumerate(values)]


def _coefficients(whole: list[int], lags: int) -> list[float]:
    count = len(whole)
    layout = f"<{count}I"
    forwards = int.from_bytes(struct.pack(layout, *whole), "little")
    backwards = int.from_bytes(struct.pack(layout, *whole[::-1]), "little")
    product = (forwards * backwards).to_bytes(8 * count, "little")
    products = struct.unpack_from(f"<{lags}I", product, 4 * (count - 1))
    sums = list(accumulate(whole, initial=0))
    squares = list(accumulate([value * value for value in whole], initial=0))
    all_sum, all_squares = sums[-1], squares[-1]
    found = []
    for lag, together in enumerate(products):
        rest = count - lag
        early, late = sums[rest], all_sum - sums[lag]
        spread = (squares[rest] * rest - early * early) * (
            (all_squares - squares[lag]) * rest - late * late
        )
        found.append((together * rest - early * late) / sqrt(spread) if spread > 0 else 0.0)
    return found


WINDOW = 256
"""Values that are searched for a period at once: 5.1 s of the driver's 20 ms samples."""

SCALES = tuple(1 << number for number in range(5))
"""Samples per value of a window; the finest scale that shows a period decides."""

REMEMBERED, AGREEING, ALIKE = 5, 3, 0.02
"""Windows that are remembered, how many of them must agree, and within which part of the period. On
the tapes of labelled loads, with 123 GPUs whose steps take 0.1 s or longer, 55 reported periods are
right and 7 wrong; with 4 windows two fewer are right and two more wrong, with 1 % three fewer are
right and one more wrong."""

STRONG, WEAK = 0.6, 0.4
"""Autocorrelation at a period: the mean of windows that agree, and the least of each; STRONG is
also the share of the highest peak from which the first peak is the period, because the peaks after
it are multiples. With 0.5, three more of the same periods are wrong; with 0.7, five fewer are
reported; without WEAK, pauses of 0.25 s every 7 s pass for steps of 7 s
(tests/agent/jobs/test_pulse.py)."""

SHORTEST = 5.0
"""Samples that a step needs: with four, a step of 77 ms was read 4 % wrong, and three more of the
same periods are wrong; with six, ten fewer are reported."""

PURE = 0.955
"""Part of a sine in the autocorrelation above which it is an alias: in samples 20 ms apart, steps
of 18.6 ms look like a sine of 0.26 s (0.97 to 0.99). Longer steps have edges (at most 0.94).
Without this bound three more of the same periods are wrong."""

FLAT = 0.12
"""Range of the samples over their mean below which they show no steps. An H200 at rest has 0.01, an
H200 held by its board at the power limit 0.06 to 0.11; jobs with steps have 0.18 and more."""


class NoPulse(StrEnum):
    """Reason why a GPU has no pulse."""

    NOT_ENOUGH = "not_enough"  # samples, so far or since a gap
    TOO_SHORT = "too_short"  # steps, for samples as far apart as these
    IRREGULAR = "irregular"
    FLAT = "flat"  # power hardly varies: at rest, spinning evenly, or held at its limit


class PulseReading(NamedTuple):
    """Reading of the steps on a GPU after its newest sample."""

    step_seconds: float | None = None
    confidence: float = 0.0
    """0 to 1: the autocorrelation of the power at the period; 0 without a period."""
    reason: NoPulse | None = NoPulse.NOT_ENOUGH
    """Reason for having no period."""
    steps: float = 0.0
    """Steps since the first sample, as far as their length was known."""
    lag: float = 0.0
    """Seconds after which a change of the period shows: it fills three windows."""


class Period(NamedTuple):
    """Result of a window: a period in values or seconds, and the autocorrelation there."""

    length: float
    strength: float
    resolved: bool  # it has enough samples


class Pulse:
    """The pulse of a GPU. Feed it the samples as they come; their times are in seconds."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._begin()

    def _begin(self) -> None:
        """Forget all samples: those before a gap say nothing about the steps after it."""
        self._times, self._watts = array("d"), array("d")
        self._windows = {s: deque[Period | None](maxlen=REMEMBERED) for s in SCALES}
        self._arrived = 0
        self._spacing = 0.0
        self._flat = False

    def feed(self, samples: Iterable[tuple[float, float]]) -> PulseReading:
        """Take in (seconds, watts) in order of time; known samples may come again."""
        before, stride = self._times[-1] if self._times else None, WINDOW // 2
        for at, watts in samples:
            newest = self._times[-1] if self._times else -float("inf")
            if at <= newest:
                continue
            if self._spacing and at - newest > stride * self._spacing:
                self._begin()
                before = None
            self._times.append(at)
            self._watts.append(watts)
            self._arrived += 1
            if self._arrived % stride == 0:
                del self._times[: -WINDOW * SCALES[-1]], self._watts[: -WINDOW * SCALES[-1]]
                self._examine_scales()
        found = self._reading()
        if found.step_seconds and before is not None:
            since = before - found.step_seconds
            steps = takewhile(lambda at: at > since, reversed(self._times))
            recent = [watts for watts, _ in zip(reversed(self._watts), steps, strict=False)]
            if max(recent) - min(recent) >= FLAT * fmean(recent):  # else it has stopped
                self._steps += (self._times[-1] - before) / found.step_seconds
        return found._replace(steps=self._steps)

    def _examine_scales(self) -> None:
        """Examine the scales whose next window is full, up to the first that shows a period: the
        windows of coarser scales decide nothing, and begin anew after it."""
        decided = False
        for scale, windows in self._windows.items():
            if decided:
                windows.clear()
            elif self._arrived % (WINDOW // 2 * scale) == 0 and self._arrived >= WINDOW * scale:
                self._examine(scale)
                decided = _agreed([one for one in windows if one]) is not None

    def _examine(self, scale: int) -> None:
        """Look for a period in the newest window of this scale."""
        count = WINDOW * scale
        times, watts = self._times[-count:], self._watts[-count:]
        values, self._spacing = _even(times, watts)
        held = 1
        if scale == 1:  # a slow sensor repeats its values
            held = round(WINDOW / (WINDOW - min(sum(map(eq, values, values[1:])), WINDOW - 1)))
        else:
            values = [sum(part) / scale for part in zip(*[iter(values)] * scale, strict=False)]
        found = autocorrelation(values, len(values) // 2, FLAT)
        r, side = found.at_lag, held // 2
        if side:
            r = [fmean(r[max(0, lag - side) : lag + side + 1]) for lag in range(len(r))]
        if scale == 1:
            self._flat = found.depth < FLAT
        one = _period(r, held)
        seconds = self._spacing * scale
        self._windows[scale].append(one and one._replace(length=one.length * seconds))

    def _reading(self) -> PulseReading:
        if not self._windows[1]:
            return PulseReading()
        if self._flat:
            return PulseReading(reason=NoPulse.FLAT)
        for scale, windows in self._windows.items():
            found = _agreed([one for one in windows if one])
            if found is not None and found.resolved:
                lag = 2 * WINDOW * scale * self._spacing
                return PulseReading(found.length, found.strength, None, lag=lag)
            if found is not None and scale == 1:
                return PulseReading(reason=NoPulse.TOO_SHORT)
            if sum(map(bool, windows)) >= AGREEING:
                break  # irregular steps: a period that comes now and then is no period
        enough = self._arrived >= 8 * WINDOW  # long steps cannot be ruled out before
        return PulseReading(reason=NoPulse.IRREGULAR if enough else NoPulse.NOT_ENOUGH)


def _agreed(windows: Sequence[Period]) -> Period | None:
    """The period on which most windows agree."""
    best: list[Period] = []
    for one in windows:
        like = (other for other in windows if other.resolved == one.resolved)
        near = [other for other in like if abs(other.length / one.length - 1) <= ALIKE]
        best = near if len(near) >= len(best) else best
    if len(best) < AGREEING or fmean(one.strength for one in best) < STRONG:
        return None
    length = fmean(one.length for one in best[-AGREEING:])
    return Period(length, fmean(one.strength for one in best), best[-1].resolved)


def _even(times: Sequence[float], watts: Sequence[float]) -> tuple[Sequence[float], float]:
    """Return the newest values, evenly spaced, and their spacing (s): the times of samples scatter
    by a millisecond, and some samples are lost."""
    first, last = times[0], times[-1]
    mean = (last - first) / (len(times) - 1)
    apart = list(map(sub, times[1:], times))
    if min(apart) > mean / 2 and max(apart) < mean * 3 / 2:  # none was lost
        return watts, mean
    usual = median(apart)
    spacing = (last - first) / max(1, round((last - first) / usual))
    places = [round((at - first) / spacing) for at in times]
    placed = dict(zip(places, watts, strict=True))
    values = [placed[0]]
    for place in range(1, max(placed) + 1):
        values.append(placed.get(place, values[-1]))
    return values[-len(times) :], spacing


def _peaks(r: Sequence[float], lags: range) -> Iterator[tuple[float, float]]:
    """Return the place between lags and the height of each peak near these lags."""
    for lag in lags:
        before, top, after = r[lag - 1], r[lag], r[lag + 1]
        if before < top >= after:
            shift = (before - after) / (2 * (before - 2 * top + after))
            yield lag + shift, top - (before - after) * shift / 4


def _period(r: Sequence[float], held: int) -> Period | None:
    """The period that an autocorrelation shows, in lags, of values each `held` in a row alike."""
    longest = len(r) - 2
    peaks = [*_peaks(r, range(2, longest // 2 + 1))]
    highest = max((height for _, height in peaks), default=0.0)
    if highest < WEAK:
        return None
    period, height = next(peak for peak in peaks if peak[1] >= STRONG * highest)
    weighted, weights = period * height, height
    for multiple in range(2, int(longest / period) + 1):  # the tenth has a tenth of the error
        near, off = round(multiple * period), max(1, int(period / 5))
        lags = range(max(2, near - off), min(longest, near + off) + 1)
        place, high = max([(0.0, 0.0), *_peaks(r, lags)], key=itemgetter(1))  # below 0 is none
        weighted, weights = weighted + multiple * place * high, weights + multiple**2 * high
        period = weighted / weights
    shown = r[1 : round(int(longest / period) * period) + 1]
    turn = 2 * pi / period
    wave = 2 * fmean([value * cos(turn * lag) for lag, value in enumerate(shown, 1)])
    alias = held == 1 and (r[1] < 0 or (period >= 8 and wave >= PURE * height))
    resolved = period >= SHORTEST * held and not alias
    return Period(period, min(1.0, height), resolved)
