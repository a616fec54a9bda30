"""Patterns in the driver's 20 ms power samples of a GPU's second, which may have two levels.

A kernel that waits or that moves data between GPUs draws 125 to 330 W, dense work 600 to 750
(measured on H200s). A job that does both in turn has two levels; a job that never waits has one
broad level, whose lower part stays above 0.7 of the upper.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

FEWEST = 20
"""Samples below which the levels are unknown; one of so many at each end is an outlier. With 60 no
load of the tapes is decided otherwise."""

APART = 0.62
"""Mean of the lower level over that of the upper, at most, for two levels to be distinguished.
Measured: 0.31 to 0.53 if a job waits or communicates in turn, 0.76 and more if not. With 0.78, five
fewer of the 180 GPUs on the tapes are right."""


@dataclass(frozen=True, slots=True)
class PowerLevels:
    """Two levels of power (W), and the share of the time spent at the lower one, 0-1.

    `distinct` says whether they are two: otherwise the samples are one level, cut in the middle.
    """

    lower: float
    upper: float
    lower_share: float
    distinct: bool
    sums: Sequence[float] = field(default=(0.0,), repr=False, compare=False)
    """Sums of the samples in order of size: of none, the least, the two least, and so on."""

    def depth(self, share: float, rests: float) -> float | None:
        """The mean of this share of the samples, the lowest but for those of the rests, over the
        median of those above; None if either set is empty."""
        count = len(self.sums) - 1
        start, end = round(rests * count), round((rests + share) * count)
        if not start < end < count:
            return None
        middle = (end + count) // 2
        mean = (self.sums[end] - self.sums[start]) / (end - start)
        return mean / (self.sums[middle + 1] - self.sums[middle])


def power_levels(watts: Sequence[float]) -> PowerLevels | None:
    """The two levels that explain most of the variance; None for too few samples.

    The cut is the mean of the two levels, found by moving it until it rests (two means in one
    dimension, from the 5th and 95th percentile).
    """
    count = len(watts)
    if count < FEWEST:
        return None
    ordered = sorted(watts)
    cut = (ordered[count // FEWEST] + ordered[-1 - count // FEWEST]) / 2
    sums = list(accumulate(ordered, initial=0.0))
    mean = sums[-1] / count
    for _ in range(16):
        below = bisect_left(ordered, cut)
        if below in (0, count):
            return PowerLevels(mean, mean, 0.0, distinct=False)
        lower = sums[below] / below
        upper = (sums[-1] - sums[below]) / (count - below)
        moved = (lower + upper) / 2
        if abs(moved - cut) < 1e-3 * upper:
            break
        cut = moved
    share = below / count
    return PowerLevels(lower, upper, share, lower <= APART * upper, sums)
