"""The pulse of a GPU: the step time of its job, detected in power samples.

The method is the autocorrelation of a window of 256 values. At the finest of five scales, a value
is one sample (20 ms). At the others, it is the mean of 2, 4, 8, or 16 samples, so that windows at
one scale or more contain at least two steps of 0.1 to 20 s. Windows overlap by half. A period is
reported if three of the last five windows have it. Power does not show whether a period is a step,
a micro-batch, or several batches that data loaders deliver at once. `diagnosis/pulses.py` detects
such loaders.
"""

import struct
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from math import cos, isqrt, pi, sqrt
from operator import eq, itemgetter, sub
from statistics import fmean, median
from typing import NamedTuple

from agent.model import Reason


def autocorrelation(
    values: Sequence[float], lags: int, flat: float = 0.0
) -> tuple[list[float], float]:
    """Return the Pearson autocorrelation of `values` for each lag below `lags`, and the depth: the
    range of the values divided by their mean.

    A linear trend is removed first: the line through the means of the two halves. If the depth is
    below `flat`, all coefficients except the first are 0. The sums of products at all lags are
    computed as one product of two integers, whose digits are the samples in forward and in reverse
    order (Kronecker substitution). This takes 0.1 ms for 256 samples. A loop over the lags takes 2
    ms.
    """
    level = sum(values) / len(values)
    depth = (max(values) - min(values)) / abs(level) if level else 0.0
    if depth < max(flat, 1e-9):
        return [1.0] + [0.0] * (lags - 1), depth
    half = len(values) // 2
    rise = (sum(values[-half:]) - sum(values[:half])) / half
    slope = rise / (len(values) - half)
    even = [value - slope * i for i, value in enumerate(values)]
    lowest = min(even)
    # Scale the values so that the largest sum of products is at most a 32-bit digit.
    scale = (isqrt((1 << 32) // len(even)) - 1) / (max(even) - lowest)
    return _coefficients([int((v - lowest) * scale) for v in even], lags), depth


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
"""Number of values per window. At the finest scale, a window covers 5.1 s."""

SCALES = tuple(1 << number for number in range(5))
"""Number of samples per value at each scale. The finest scale with a period is used."""

REMEMBERED, AGREEING, ALIKE = 5, 3, 0.02
"""Number of windows to keep, minimum number of windows that agree on a period, and maximum relative
difference of periods that agree. In recordings of known loads on 123 GPUs with steps of at least
0.1 s, 55 reported periods are correct and 7 are wrong. With 4 windows, two fewer are correct and
two more are wrong. With a tolerance of 1 %, three fewer are correct and one more is wrong."""

STRONG, WEAK = 0.6, 0.4
"""Minimum autocorrelation at a period: the mean over the agreeing windows (STRONG), and the value
in each window (WEAK). The period is the first peak whose height is at least STRONG times that of
the highest peak, because later peaks are at multiples of the period. In the recordings, STRONG =
0.5 results in three more wrong periods, and 0.7 in five fewer reported periods. Without WEAK,
pauses of 0.25 s every 7 s are mistaken for steps of 7 s (tests/agent/jobs/test_pulse.py)."""

SHORTEST = 5.0
"""Minimum number of samples per step. With four, the measured time of a 77 ms step is off by 4 %,
and three more periods in the recordings are wrong. With six, ten fewer are reported."""

PURE = 0.955
"""If a pure sine has a higher share of the autocorrelation, its period is an alias. In 20 ms
samples, steps of 18.6 ms look like a 0.26 s sine (share 0.97 to 0.99). Longer steps have edges (at
most 0.94). Without this limit, three more periods in the recordings are wrong."""

FLAT = 0.12
"""Minimum depth (range divided by mean) of samples that show steps. The depth is 0.01 on an idle
H200, 0.06 to 0.11 on an H200 at its power limit, and at least 0.18 for jobs with steps."""


class PulseReading(NamedTuple):
    """Step time of a GPU's job at the latest sample (None if unknown), and the number of steps."""

    step_seconds: float | None = None
    confidence: float = 0.0
    """Autocorrelation (0-1) of the power at the period, or 0 if there is no period."""
    reason: Reason | None = Reason.NOT_ENOUGH
    """Reason why the step time is unknown, or None if it is known."""
    steps: float = 0.0
    """Number of steps since the first sample, counted only while the step time was known."""
    lag: float = 0.0
    """Seconds until a change of the step time is detected: the time in which three windows fill."""


class Period(NamedTuple):
    """A period in a window (in values or seconds), and the autocorrelation at this period."""

    length: float
    strength: float
    resolved: bool  # whether a step has enough samples


class Pulse:
    """Measures the step time of a GPU's job in the power samples. Times are in seconds."""

    def __init__(self) -> None:
        self._steps = 0.0
        self._begin()

    def _begin(self) -> None:
        """Discard all samples, because samples before a gap do not help to measure later steps."""
        self._times, self._watts = array("d"), array("d")
        self._windows = {s: deque[Period | None](maxlen=REMEMBERED) for s in SCALES}
        self._arrived = 0
        self._spacing = 0.0
        self._flat = False

    def feed(self, samples: Iterable[tuple[float, float]]) -> PulseReading:
        """Add samples (seconds, watts), oldest first, if new, and return the current result."""
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
            if max(recent) - min(recent) >= FLAT * fmean(recent):  # otherwise, the job has stopped
                self._steps += (self._times[-1] - before) / found.step_seconds
        return found._replace(steps=self._steps)

    def _examine_scales(self) -> None:
        """Search for a period at each scale with a new full window, finest scale first. After a
        scale with a period, clear the windows of all coarser scales instead."""
        decided = False
        for scale, windows in self._windows.items():
            if decided:
                windows.clear()
            elif self._arrived % (WINDOW // 2 * scale) == 0 and self._arrived >= WINDOW * scale:
                self._examine(scale)
                decided = _agreed([one for one in windows if one]) is not None

    def _examine(self, scale: int) -> None:
        """Search for a period in the latest window at this scale, and store the result."""
        count = WINDOW * scale
        times, watts = self._times[-count:], self._watts[-count:]
        values, self._spacing = _even(times, watts)
        held = 1
        if scale == 1:  # a slow sensor repeats its values
            held = round(WINDOW / (WINDOW - min(sum(map(eq, values, values[1:])), WINDOW - 1)))
        else:
            values = [sum(part) / scale for part in zip(*[iter(values)] * scale, strict=False)]
        r, depth = autocorrelation(values, len(values) // 2, FLAT)
        if side := held // 2:
            r = [fmean(r[max(0, lag - side) : lag + side + 1]) for lag in range(len(r))]
        if scale == 1:
            self._flat = depth < FLAT
        one = _period(r, held)
        seconds = self._spacing * scale
        self._windows[scale].append(one and one._replace(length=one.length * seconds))

    def _reading(self) -> PulseReading:
        if not self._windows[1]:
            return PulseReading()
        if self._flat:
            return PulseReading(reason=Reason.FLAT)
        for scale, windows in self._windows.items():
            found = _agreed([one for one in windows if one])
            if found is not None and found.resolved:
                lag = 2 * WINDOW * scale * self._spacing
                return PulseReading(found.length, found.strength, None, lag=lag)
            if found is not None and scale == 1:
                return PulseReading(reason=Reason.TOO_SHORT)
            if sum(map(bool, windows)) >= AGREEING:
                break  # irregular steps: an occasional period does not count
        enough = self._arrived >= 8 * WINDOW  # before that, the steps may be long
        return PulseReading(reason=Reason.IRREGULAR if enough else Reason.NOT_ENOUGH)


def _agreed(windows: Sequence[Period]) -> Period | None:
    """Return the period on which most windows agree, or None if fewer than AGREEING agree."""
    best: list[Period] = []
    for one in windows:
        like = (other for other in windows if other.resolved == one.resolved)
        near = [other for other in like if abs(other.length / one.length - 1) <= ALIKE]
        best = near if len(near) >= len(best) else best
    if len(best) < AGREEING or fmean([one.strength for one in best]) < STRONG:
        return None
    length = fmean([one.length for one in best[-AGREEING:]])
    return Period(length, fmean([one.strength for one in best]), best[-1].resolved)


def _even(times: Sequence[float], watts: Sequence[float]) -> tuple[Sequence[float], float]:
    """Return samples resampled to equal intervals, and the interval in seconds. The intervals of
    the original samples vary by a millisecond, and some samples are lost."""
    first, last = times[0], times[-1]
    mean = (last - first) / (len(times) - 1)
    apart = list(map(sub, times[1:], times))
    if min(apart) > mean / 2 and max(apart) < mean * 3 / 2:  # no sample was lost
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
    """Yield the lag, interpolated between samples, and the height of each peak near `lags`."""
    for lag in lags:
        before, top, after = r[lag - 1], r[lag], r[lag + 1]
        if before < top >= after:
            shift = (before - after) / (2 * (before - 2 * top + after))
            yield lag + shift, top - (before - after) * shift / 4


def _period(r: Sequence[float], held: int) -> Period | None:
    """Return the period (in lags) in the autocorrelation `r`, or None if there is none. `held` is
    the number of samples for which the driver repeats each value."""
    longest = len(r) - 2
    peaks = [*_peaks(r, range(2, longest // 2 + 1))]
    highest = max((height for _, height in peaks), default=0.0)
    if highest < WEAK:
        return None
    period, height = next(peak for peak in peaks if peak[1] >= STRONG * highest)
    weighted, weights = period * height, height
    for multiple in range(2, int(longest / period) + 1):  # the tenth multiple has 1/10 of the error
        near, off = round(multiple * period), max(1, int(period / 5))
        lags = range(max(2, near - off), min(longest, near + off) + 1)
        place, high = max([(0.0, 0.0), *_peaks(r, lags)], key=itemgetter(1))  # only peaks above 0
        weighted, weights = weighted + multiple * place * high, weights + multiple**2 * high
        period = weighted / weights
    shown = r[1 : round(int(longest / period) * period) + 1]
    turn = 2 * pi / period
    wave = 2 * fmean([value * cos(turn * lag) for lag, value in enumerate(shown, 1)])
    alias = held == 1 and (r[1] < 0 or (period >= 8 and wave >= PURE * height))
    resolved = period >= SHORTEST * held and not alias
    return Period(period, min(1.0, height), resolved)
