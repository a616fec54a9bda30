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
"""Least number of samples for two levels; a twentieth of the samples at each end are outliers. With
60 no load of the tapes is decided differently."""

APART = 0.62
"""Largest ratio of the lower level's mean to the upper level's for two distinct levels. Measured:
0.31 to 0.53 if a job waits or communicates in turn, 0.76 and more if not. With 0.78, five fewer of
the 180 GPUs on the tapes are right."""


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
    """Prefix sums of the samples in order of size."""

    def depth(self, share: float, rests: float) -> float | None:
        """Return the mean of the lowest samples of this share, without those of rests, over the
        median of the samples above; None if either set is empty."""
        count = len(self.sums) - 1
        start, end = round(rests * count), round((rests + share) * count)
        if not start < end < count:
            return None
        middle = (end + count) // 2
        mean = (self.sums[end] - self.sums[start]) / (end - start)
        return mean / (self.sums[middle + 1] - self.sums[middle])


def power_levels(watts: Sequence[float]) -> PowerLevels | None:
    """Return the two levels that explain most of the variance; None for too few samples. The cut is
    the mean of the two levels, moved until it no longer changes (two means in a dimension, from the
    5th and 95th percentile)."""
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
