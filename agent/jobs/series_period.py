"""The period of any series, the step of a GPU out of several, and the one that GPUs agree on.

Series other than power are GPM windows, NVLink bytes a second, NCCL collectives a second. They tell
steps longer than the power samples reach back, or shorter than these resolve. Where power speaks it
is believed: in GPM windows of 0.3 s, steps of 0.335 s looked like ones of 2.88 s.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import NamedTuple

from agent.jobs.autocorrelation import autocorrelation
from agent.jobs.periodicity import MOST_PARTS, find_lag, lag_near
from agent.jobs.pulse import NoPulse, PulseReading

FEWEST = 40
"""Values below which nothing is told."""

MOST = 1024
"""Values, the newest, that are used: 3 ms of CPU time."""

STRONG, STRONG_IN_HALVES = 0.6, 0.4
"""Autocorrelation at the period of the whole series, and of each half."""

AGREE = 0.02
"""How far periods of one job may differ, in parts: of two halves, and of its GPUs."""


LONGEST_IN_POWER = 20.0
"""Seconds of the longest step that power samples 20 ms apart can tell."""

MISREAD = 0.06
"""How wrong power may read steps with fewer than five samples, in parts: 4 % was seen."""


class Period(NamedTuple):
    """A period in seconds, with its strength: the autocorrelation there, 0 to 1."""

    seconds: float
    strength: float


def periodicity(times: Sequence[float], values: Sequence[float]) -> Period | None:
    """The period of a series of values at times in seconds, in order; None where there is none.

    The times may scatter. At least four periods must have been seen, of five values each, and both
    halves of the series must show the same one.
    """
    even, spacing = _evenly(times[-MOST:], values[-MOST:])
    if len(even) < FEWEST:
        return None
    whole = find_lag(autocorrelation(even, len(even) // 2).at_lag)
    if whole is None or not whole.resolved or whole.strength < STRONG:
        return None
    middle = len(even) // 2
    for half in (even[:middle], even[middle:]):
        lag = lag_near(autocorrelation(half, len(half) * 3 // 4).at_lag, whole.samples)
        if lag.strength < STRONG_IN_HALVES or abs(lag.samples / whole.samples - 1) > AGREE:
            return None
    return Period(whole.samples * spacing, whole.strength)


def step_of(power: PulseReading | None, others: Iterable[Period]) -> Period | None:
    """The step of one GPU out of its power, and of other series as far as power leaves it open.

    Another series is believed where it shows the short step that power cannot resolve, where its
    period is longer than power can tell, or where power is not sampled (`power` is None).
    """
    strongest = sorted(others, key=lambda period: -period.strength)
    if power is None:
        return next(iter(strongest), None)
    if power.step_seconds is not None:
        return Period(power.step_seconds, power.confidence)
    if power.reason is NoPulse.TOO_SHORT:
        short = power.short_seconds
        finer = (p for p in strongest if short and abs(p.seconds / short - 1) <= MISREAD)
        return next(finer, None)
    return next((period for period in strongest if period.seconds > LONGEST_IN_POWER), None)


def agree(periods: Iterable[Period | None]) -> Period | None:
    """The period of a job from those that its GPUs tell; None where they contradict each other.

    More than half of those that tell one must agree on it. Where as many tell a part of it, as a
    GPU may that sees no difference between accumulated gradients, the longer one is the step's.
    """
    told = sorted(period for period in periods if period is not None)
    groups = [[p for p in told if abs(p.seconds / one.seconds - 1) <= AGREE] for one in told]
    if not groups:
        return None
    most = max(len(group) for group in groups)
    largest = [group for group in groups if len(group) == most]
    longest = largest[-1]
    step = median(period.seconds for period in longest)
    rivals = [group for group in largest if not _is_part(group[0].seconds, step)]
    if rivals or (2 * most <= len(told) and not _all_parts(told, step)):
        return None
    return Period(step, mean(period.strength for period in longest))


def _all_parts(told: Sequence[Period], step: float) -> bool:
    return all(_is_part(period.seconds, step) for period in told)


def _is_part(seconds: float, step: float) -> bool:
    """Whether a step is that long, or a few times that long."""
    parts = round(step / seconds)
    return 1 <= parts <= MOST_PARTS and abs(parts * seconds / step - 1) <= AGREE


def _evenly(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], float]:
    """The values at even times, as far apart as most are, and how far; between values by a line."""
    if len(times) < 2:
        return [], 0.0
    spacing = median(after - before for before, after in pairwise(times))
    if spacing <= 0:
        return [], 0.0
    even: list[float] = []
    i = 0
    at = times[0]
    while at <= times[-1] and len(even) < MOST:
        while times[i + 1] < at:
            i += 1
        span = times[i + 1] - times[i]
        share = (at - times[i]) / span if span > 0 else 0.0
        even.append(values[i] + share * (values[i + 1] - values[i]))
        at += spacing
    return even, spacing
