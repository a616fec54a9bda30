"""The pulse of one GPU: how long the steps of its job take, read from samples of its power.

What power alone cannot say: more than eight accumulated gradients from so many steps; a burst of
batches that loaders bring together from one step; two jobs on one GPU whose steps have a common
multiple from one job of that step; steps almost as long as the samples are apart, if very regular,
from slow ones, unless the sensor rounds them to a sine. Who knows of loaders and processes judges.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from agent.jobs.periodicity import SHORTEST, Lag
from agent.jobs.sample_grid import SampleGrid
from agent.jobs.step_count import StepCount
from agent.jobs.timescales import (
    BLOCK,
    PHASES,
    REMEMBERED,
    STRIDE,
    WEAKEST,
    WINDOW,
    ShownPeriod,
    Timescale,
    Timescales,
    alike,
)

HELD, HELD_PART = 0.45, 0.6
"""Autocorrelation at the period that keeps a pulse; to begin with it takes more. Of one that began
weaker, part of what it began with."""

CHANGED = 0.03
"""A step longer or shorter by this part in two windows running is another speed."""

ENOUGH = 8 * WINDOW
"""Samples without a period after which it is not for want of samples: 41 s of 20 ms each."""

SHOWN = 2 * STRIDE + WINDOW // 2
"""Values after which a change shows: it must fill half of the first of three windows."""

PAUSE = 12 * WINDOW
"""Samples after which steps of the same length are taken for another job's: a minute."""


class NoPulse(StrEnum):
    """Why a GPU has no pulse."""

    NOT_ENOUGH = "not_enough"  # samples, so far or since a gap
    TOO_SHORT = "too_short"  # steps, for samples as far apart as these
    IRREGULAR = "irregular"
    FLAT = "flat"  # power hardly varies: at rest, or spinning evenly


class PulseReading(NamedTuple):
    """What is known of the steps on a GPU after its newest sample."""

    step_seconds: float | None
    confidence: float
    """0 to 1: the autocorrelation of the power at the period; 0 without one."""
    steps: int
    """Steps found one by one since the first sample, while there was a period."""
    reason: NoPulse | None
    """Why there is no period."""
    since: float | None
    """When steps began to take as long as they do now, to about a window of samples."""
    last_step: float | None
    """When the newest step that was found began."""
    short_seconds: float | None = None
    """Without a period: how long steps too short for the samples seem; it may be an alias."""


class _Claim:
    """A period that is reported. Times are samples since the first."""

    def __init__(self, found: ShownPeriod, now: int) -> None:
        self.timescale = found.timescale
        self.samples = self.speed = found.samples
        self.strength = found.lag.strength
        self.held = min(HELD, HELD_PART * self.strength)
        self.confirmed = now
        self.since = 0.0
        self._recent: deque[Lag] = deque(maxlen=3)
        self._deviating: float | None = None

    def confirm(self, samples: float, strength: float, now: int) -> None:
        """A window has shown the period again."""
        self.confirmed = now
        self._recent.append(Lag(samples, strength, resolved=True))
        self.samples = sum(lag.samples for lag in self._recent) / len(self._recent)
        self.strength = sum(lag.strength for lag in self._recent) / len(self._recent)
        if abs(samples / self.speed - 1) <= CHANGED:
            self._deviating = None
            self.speed += 0.1 * (samples - self.speed)
        elif self._deviating is None:
            self._deviating = now - WINDOW * self.timescale.step / 2
        else:
            self.since, self._deviating = self._deviating, None
            self.speed = samples

    def same_speed(self, other: "_Claim") -> bool:
        return abs(self.samples / other.speed - 1) <= CHANGED


class Pulse:
    """The pulse of one GPU. Feed it the samples as they come; their times are in seconds.

    Pulses of different `phase` do most of their work at different samples.
    """

    def __init__(self, phase: int = 0) -> None:
        self._phase = phase % PHASES
        self._grid = SampleGrid()
        self._waiting: list[float] = []
        self._timescales = Timescales(self._phase)
        self._claim: _Claim | None = None
        self._former: _Claim | None = None
        self._too_short = False
        self._count: StepCount | None = None
        self._counted = self._timescales.first
        self._before = 0  # steps of counts that ended

    def feed(self, samples: Iterable[tuple[float, float]]) -> PulseReading:
        """Take in (seconds, watts) in order of time; what was seen before may come again."""
        for number, values in enumerate(self._grid.place(samples)):
            if number:
                self._begin()
            self._take(values)
        return self._reading()

    def missed_beats(self, now: float) -> int:
        """How many steps in a row are missing by `now`, as far as samples have come.

        A step is missing where power stays even instead: a validation misses none. When steps are
        missing for long, the period is no longer shown, but they are counted on until power varies.
        """
        if self._count is None or not self._grid.spacing:  # none is known yet after a gap
            return 0
        sample = self._sample(min(now, self._grid.latest))
        return self._count.missed((sample - self._counted.offset) / self._counted.step)

    @property
    def depth(self) -> float:
        """The range of the newest window's samples over their mean; 0 before the first."""
        results = self._timescales.first.results
        return results[-1].depth if results else 0.0

    @property
    def lag(self) -> float:
        """Seconds after which a change of the period shows: it must fill half of the first of three
        windows."""
        step = self._claim.timescale.step if self._claim else 1
        return SHOWN * step * self._grid.spacing

    def _begin(self) -> None:
        """Nothing before a gap says how steps go on after it."""
        self._waiting.clear()
        self._timescales = Timescales(self._phase)
        self._claim = self._former = None
        self._stop_counting()
        self._counted = self._timescales.first

    def _take(self, values: Sequence[float]) -> None:
        waiting = self._waiting
        waiting += values
        for start in range(0, len(waiting) - BLOCK + 1, BLOCK):
            complete = list(self._timescales.extend(waiting[start : start + BLOCK]))
            self._follow()
            for timescale in complete:
                self._judge(timescale)
        del waiting[: len(waiting) // BLOCK * BLOCK]

    def _follow(self) -> None:
        if self._count:
            new = self._counted.arrived - self._count.seen
            self._count.extend(list(self._counted.values)[-new:] if new else ())

    def _judge(self, timescale: Timescale) -> None:
        """After a window of one resolution: which period is distinguished from now on."""
        found, claim, now = self._timescales.period(), self._claim, self._timescales.first.arrived
        self._too_short = found is not None and not self._resolves(found)
        if found and not self._too_short:
            if claim and alike(found.samples, claim.samples, 1.0):
                claim.timescale = found.timescale
            else:
                claim = self._tell(found, now)
        if claim and timescale is claim.timescale and (lag := _shown_again(claim)):
            claim.confirm(lag.samples * timescale.step, lag.strength, now)
            if self._count:
                self._count.retime(claim.samples / self._counted.step)
        if claim and now - claim.confirmed > WINDOW * claim.timescale.step:
            self._claim = None
        if self._claim is None and self._count and self._count.strange:
            self._stop_counting()

    def _tell(self, found: ShownPeriod, now: int) -> _Claim:
        claim, former, step = _Claim(found, now), self._former, found.timescale.step
        if former and now - former.confirmed <= PAUSE and claim.same_speed(former):
            claim.since, claim.speed = former.since, former.speed
        else:
            seen = SHOWN if self._claim else 2 * WINDOW
            claim.since = max(0, now - seen * step)
        self._claim = self._former = claim
        self._stop_counting()
        timescale = self._counted = found.timescale
        self._count = StepCount(found.lag.samples, tuple(timescale.values), timescale.arrived)
        return claim

    def _stop_counting(self) -> None:
        if self._count:
            self._before += self._count.steps
        self._count = None

    def _resolves(self, found: ShownPeriod) -> bool:
        return found.lag.resolved and found.samples >= SHORTEST * self._timescales.alike_values()

    def _time(self, sample: float) -> float:
        """When this sample was taken, counted from the first of the series."""
        newest = self._timescales.first.arrived + len(self._waiting) - 1
        return self._grid.latest - (newest - sample) * self._grid.spacing

    def _sample(self, time: float) -> float:
        newest = self._timescales.first.arrived + len(self._waiting) - 1
        return newest - (self._grid.latest - time) / self._grid.spacing

    def _reading(self) -> PulseReading:
        claim, count = self._claim, self._count
        steps, last = self._before, None
        if count:
            steps += count.steps
            last = self._time(count.last * self._counted.step + self._counted.offset)
        if claim is None:
            short = self._short_seconds()
            return PulseReading(None, 0.0, steps, self._reason(), None, last, short)
        seconds, since = claim.samples * self._grid.spacing, self._time(claim.since)
        return PulseReading(seconds, claim.strength, steps, None, since, last, None)

    def _reason(self) -> NoPulse:
        newest = [timescale.results[-1] for timescale in self._timescales.all if timescale.results]
        if not newest:
            return NoPulse.NOT_ENOUGH
        if all(result.flat for result in newest):
            return NoPulse.FLAT
        if self._too_short or self._short_seconds() is not None:
            return NoPulse.TOO_SHORT
        enough = self._timescales.first.arrived >= ENOUGH
        return NoPulse.IRREGULAR if enough else NoPulse.NOT_ENOUGH

    def _short_seconds(self) -> float | None:
        """The period that most windows show and that has too few samples, as it reads."""
        lags = [result.lag for result in self._timescales.first.results if result.lag]
        short = [lag.samples for lag in lags if lag.strength >= WEAKEST and not lag.resolved]
        return median(short) * self._grid.spacing if len(short) > REMEMBERED / 2 else None


def _shown_again(claim: _Claim) -> Lag | None:
    """The period that is reported, in the newest window of its resolution."""
    newest = claim.timescale.results[-1]
    if newest.flat:
        return None
    samples = claim.samples / claim.timescale.step
    lag = newest.peaks.lag_near(samples)
    return lag if lag.strength >= claim.held and alike(lag.samples, samples, 1.0) else None
