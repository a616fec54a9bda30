"""The period of a regular series, out of how alike it is to itself one or more periods later.

Any even series will do: the 20 ms power samples of a GPU, its activity in GPM windows, the rate of
bytes on its NVLinks. What is shown is the shortest period that explains the series: not a multiple
of it, and not a part either where the parts differ, as with accumulated gradients.
"""

from collections.abc import Sequence
from math import cos, pi
from statistics import median
from typing import NamedTuple

SHORTEST = 5.0
"""Samples a period needs: with four, a step of 77 ms was read 4 % wrong."""

WEAK = 0.3
"""Peaks of the autocorrelation below this are noise."""

AS_HIGH = 0.8
"""A peak at this part of the highest one may be the first of its multiples."""

AS_HIGH_WITHIN = 0.85
"""The same for parts of a period: all of them must be this high for the part to be the period."""

MOST_PARTS = 8
"""Equal parts of a step that are still distinguished: gradients accumulated 8 times. A rarer
event (a line logged each 10 steps, a validation each 50) is no step."""

MULTIPLES = 2 * MOST_PARTS
"""Multiples of a period that are used."""

CONTRAST = 0.04
"""How much more alike a series must be to itself after a whole step than after a part of it."""


FEW = 8.0
"""Samples a period needs for a second harmonic of its own to be seen."""

PURE = 0.955
"""Part of a sine in the autocorrelation above which it is an alias: in samples 20 ms apart,
steps of 18.6 ms looked like a sine of 0.26 s (0.97 to 0.99), as the sensor rounds off what is
shorter than a sample. Longer steps have edges (at most 0.94)."""

MANY_LAGS = 64
"""Lags over which that is taken, as far as they are whole periods."""

TRIED = 4
"""Whole periods after which parts of a period are tried."""

UNDERSAMPLED = 0.2
"""Autocorrelation from one sample to the next below which what varies is narrower than a sample."""

PART_SHOWN, PART_SHOWN_AT_LEAST = 0.2, 0.1
"""Part of a period's autocorrelation that such a series shows after each part of the period, in the
mean and at least, where the part is the period: samples meet the narrow peak of one step and miss
that of the next. Steps of 69 ms read as five and as seven of them, of 85 ms as two, of 155 ms as
eight; the mean was 0.25 to 0.8 of it, and at most 0.1 where the period was right."""

SHOWN = 0.3
"""Samples from a place to a lag that shows how high the autocorrelation is there."""

NARROW = 2.0
"""By how much what falls between two lags may be more than both show: half of it may be missed."""


class Lag(NamedTuple):
    """A period in samples, with its strength: the autocorrelation there, at most 1."""

    samples: float
    strength: float
    resolved: bool  # enough samples a period, so that it is no alias of a shorter one


class _Seen(NamedTuple):
    height: float
    at_most: float
    weight: float  # 1 at a lag, next to nothing between two


class Peaks:
    """The autocorrelation of a window, between and at its lags, and the periods that it shows.

    Between lags the coefficients are not known. A series that changes much from sample to sample
    can be far more alike to itself at lag 11.7 than at 11 and 12: `possible` says how much at most.
    """

    def __init__(self, at_lag: Sequence[float]) -> None:
        """`at_lag` holds coefficients for lags 0, 1, 2, ...; periods up to half of the longest are
        found."""
        self.at_lag = at_lag
        self.longest = len(at_lag) - 2
        self.best = max(at_lag[2 : self.longest + 1], default=0.0)
        self.floor = median(at_lag)
        self.fall = max(0.0, self.best - at_lag[1])  # from a peak to one sample beside it

    def lag(self) -> Lag | None:
        """The period that is shown; also one that is too short to be trusted."""
        first = self.first()
        if first is None:
            return None
        period = self.refined(first)
        period = self.refined(period / self.parts_in(period))
        return self._lag(self.refined(period * self.parts_of_a_step(period)))

    def lag_near(self, samples: float) -> Lag:
        """The period about as long as this one, with its strength, whichever is shown best."""
        if not 1 < samples <= self.longest:
            return Lag(samples, 0.0, resolved=False)
        return self._lag(self.refined(samples))

    def _lag(self, period: float) -> Lag:
        strength = self.strength(period)
        return Lag(period, strength, self.resolves(period, strength))

    def explains_better(self, whole: float, part: float) -> bool:
        """Whether the series is more alike to itself after `whole` samples than after any `part`
        ones."""
        parts = [self.seen(part * number) for number in range(1, int(whole / part - 0.5) + 1)]
        return self.near(whole)[1] >= _mean(parts, -1) + CONTRAST

    def first(self) -> float | None:
        """The first peak that is about as high as the highest, in samples."""
        r = self.at_lag
        last = self.longest // 2
        peaks = [lag for lag in range(2, last + 1) if r[lag - 1] <= r[lag] > r[lag + 1]]
        highest = max((r[lag] for lag in peaks), default=0.0)
        if highest < WEAK:
            return None
        return float(next(lag for lag in peaks if r[lag] >= AS_HIGH * highest))

    def near(self, place: float) -> tuple[float, float]:
        """Where the top of the peak at this lag is, and how high."""
        r = self.at_lag
        lag = int(place + 0.5)
        top = r[lag]
        if r[lag + 1] > top and lag < self.longest:
            lag += 1
        elif r[lag - 1] > top and lag > 2:
            lag -= 1
        before, top, after = r[lag - 1], r[lag], r[lag + 1]
        bend = before - 2 * top + after
        if bend >= 0 or before > top or after > top:
            return place, r[int(place + 0.5)]
        shift = (before - after) / (2 * bend)
        return lag + shift, top - (before - after) * shift / 4

    def refined(self, period: float) -> float:
        """The period out of the places of its multiples: the tenth has a tenth of the error."""
        weighted = weights = 0.0
        place, height = self.near(period)
        lowest = max(WEAK, height + WEAK) / 2
        for multiple in range(1, MULTIPLES + 1):
            expected = multiple * period
            if expected > self.longest:
                break
            place, height = self.near(expected)
            if height >= lowest and abs(place - expected) <= max(1.0, 0.1 * period):
                weighted += multiple * place * height
                weights += multiple * multiple * height
                period = weighted / weights
        return period

    def possible(self, place: float, height: float) -> float:
        """How high the autocorrelation, that near this place, may well be between two lags."""
        off = abs(place - int(place + 0.5))
        return height + self.fall * (1 - cos(pi * off))

    def beside(self, place: float) -> float:
        """How high it can be by what the lags on both sides show.

        What is narrower than a sample shows at both, a part of it at each.
        """
        lag = int(place)
        return self.floor + NARROW * (self.at_lag[lag] + self.at_lag[lag + 1] - 2 * self.floor)

    def parts_in(self, period: float) -> int:
        """Into how many equal parts the period falls that are as alike as whole periods."""
        wholes = [
            self.near(period * number)[1]
            for number in range(1, TRIED + 1)
            if period * number <= self.longest
        ]
        for parts in range(int(period / 2), 1, -1):
            # Parts too short for the samples need only be possible: then nothing is reported.
            long_enough = period / parts >= SHORTEST
            if all(
                self._is_part(period, n / parts, wholes, long_enough=long_enough)
                for n in range(1, parts)
            ):
                return parts
        return 1

    def _is_part(
        self, period: float, part: float, wholes: Sequence[float], *, long_enough: bool
    ) -> bool:
        """Whether the series is alike after this part of a period, wherever a lag shows it."""
        offs = []
        for number, whole in enumerate(wholes):
            place = period * (number + part)
            height = self.possible(place, self.near(place)[1])
            if long_enough:
                height = min(height, self.beside(place))
            offs.append((abs(place - int(place + 0.5)), height >= AS_HIGH_WITHIN * whole))
        return all(high for off, high in offs if off <= SHOWN) and min(offs)[1]

    def parts_of_a_step(self, period: float) -> int:
        """How many such periods make a step: the number after which the series is most alike."""
        count = min(MULTIPLES, int(self.longest / period))
        seen = [self.seen(period * number) for number in range(1, count + 1)]
        found, most = 1, CONTRAST
        for parts in range(2, min(MOST_PARTS, count // 2) + 1):
            contrast = min(
                seen[whole].height - _mean(seen[whole - parts + 1 : whole + parts], parts - 1)
                for whole in range(parts - 1, count, parts)
            )
            if contrast > most + 0.01:  # of about equal ones the smaller number
                found, most = parts, contrast
        return found

    def seen(self, place: float) -> _Seen:
        """The autocorrelation at a place between two lags, as far as it can be seen."""
        off, height = abs(place - int(place + 0.5)), self.near(place)[1]
        at_most = max(self.possible(place, height), min(self.best, self.beside(place)))
        return _Seen(height, at_most, 0.01 + (1 - 2 * off) ** 2)

    def strength(self, period: float) -> float:
        """The autocorrelation at the period: of its first multiples, those near a lag foremost."""
        heights = weights = 0.0
        for multiple in (1, 2, 3, 4):
            place = period * multiple
            if place <= self.longest:
                weight = (1.02 - 2 * abs(place - round(place))) ** 2
                heights += weight * self.near(place)[1]
                weights += weight
        return min(1.0, max(0.0, heights / weights)) if weights else 0.0

    def resolves(self, period: float, strength: float) -> bool:
        """Whether the samples are close enough for a period of this strength not to be an alias."""
        if period < FEW:
            return period >= SHORTEST
        if self.at_lag[1] < UNDERSAMPLED and self._may_be_several(period, strength):
            return False
        whole = max(1, min(MANY_LAGS, self.longest) // period)
        shown = self.at_lag[1 : min(round(period * whole), self.longest) + 1]
        turn = 2 * pi / period
        wave = 2 * sum([r * cos(turn * lag) for lag, r in enumerate(shown, 1)]) / len(shown)
        return wave < PURE * strength

    def _may_be_several(self, period: float, strength: float) -> bool:
        """Whether some part of a period is seen as far as narrow peaks between lags can be."""
        for parts in range(2, int(period / 2) + 1):
            places = [period * number / parts for number in range(1, parts)]
            beside = [(place, int(place + 0.5)) for place in places]
            heights = [self.at_lag[lag] for place, lag in beside if abs(place - lag) <= SHOWN]
            if (
                heights
                and min(heights) >= PART_SHOWN_AT_LEAST * strength
                and sum(heights) >= PART_SHOWN * strength * len(heights)
            ):
                return True
        return False


def _mean(seen: Sequence[_Seen], but: int) -> float:
    """The mean of what all but one may be at most, of those near a lag foremost."""
    total = weights = 0.0
    for number, (_, at_most, weight) in enumerate(seen):
        if number != but:
            total += at_most * weight
            weights += weight
    return total / weights
