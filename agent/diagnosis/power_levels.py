"""Detects whether the driver's 20 ms power samples of a GPU have two levels.

An H200 draws 125 to 330 W for a kernel that waits or moves data between GPUs, and 600 to 750 W for
dense work. If a job alternates between the two, the samples have two levels. If a job never waits,
they have a single broad level, whose lower part is above 0.7 of its upper part.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

FEWEST = 20
"""Minimum number of samples. In addition, one in FEWEST samples at each end of the range counts as
an outlier."""

APART = 0.62
"""Maximum ratio of the lower to the upper level at which the levels are distinct. In recordings,
the ratio is 0.31 to 0.53 if a job works only part of the time, and at least 0.76 otherwise."""


@dataclass(frozen=True, slots=True)
class PowerLevels:
    """Two power levels (W), and the share of time (0-1) spent at the lower level.

    `distinct` is false if the samples form a single level that was split in the middle.
    """

    lower: float
    upper: float
    lower_share: float
    distinct: bool


def power_levels(watts: Sequence[float]) -> PowerLevels | None:
    """Return the two levels that explain most of the variance, or None if there are too few
    samples. The method is one-dimensional two-means clustering, which starts from the 5th and 95th
    percentiles. The mean of the two levels separates the samples until it no longer changes."""
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
    return PowerLevels(lower, upper, share, lower <= APART * upper)
