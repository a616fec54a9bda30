"""Finds the advice that applied to most of the time that a GPU lost in the last 15 minutes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from math import exp

from agent.diagnosis.advice import advised
from agent.diagnosis.division import TimeSplit
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.inactive_share import doubts
from agent.model import Cause, Pair

ADVICE_SECONDS = 900.0
"""Time constant of the exponential decay of lost time, in seconds. The last second alone may not be
typical. For example, a checkpoint reads data in its last second."""


def _no_time() -> defaultdict[Pair, defaultdict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


@dataclass(slots=True)
class AdviceSeconds:
    """Seconds that the current processes of a GPU lost, by state and cause, and by advice."""

    lost: defaultdict[Pair, defaultdict[str, float]] = field(default_factory=_no_time)
    _came: float | None = None  # when the current processes appeared

    def take(self, e: Evidence, split: TimeSplit, seconds: float) -> None:
        """Add the lost time in a tick that lasted `seconds` seconds."""
        if e.history.came != self._came:
            self._came = e.history.came
            self.lost.clear()
        fade = exp(-seconds / ADVICE_SECONDS)
        for fitted in self.lost.values():
            for one in fitted:
                fitted[one] *= fade
        for pair, part in split.parts.items():
            hidden = doubts(e) if pair[1] is Cause.UNKNOWN and part else ()
            if part and (fits := advised(pair, split.found.get(pair, ()), hidden)):
                self.lost[pair][fits] += part * seconds


def most_fitting(accounts: Iterable[AdviceSeconds]) -> dict[Pair, str]:
    """Return, for each state and cause, the advice that applied to most of the lost time."""
    sums: defaultdict[Pair, defaultdict[str, float]] = _no_time()
    for pair, fitted in chain.from_iterable(one.lost.items() for one in accounts):
        for advice, seconds in fitted.items():
            sums[pair][advice] += seconds
    return {pair: max(fitted, key=fitted.__getitem__) for pair, fitted in sums.items()}
