"""Which advice fits the losses of one GPU, over the last quarter of an hour."""

from collections import defaultdict
from dataclasses import dataclass, field
from math import exp

from agent.diagnosis.advice import Advice, advised
from agent.diagnosis.division import TimeSplit
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.inactive_share import doubts
from agent.model import Cause, Pair

ADVICE_SECONDS = 900.0
"""Seconds over which lost time fades: the second in which a checkpoint ends is one that reads."""


@dataclass(slots=True)
class AdviceSeconds:
    """Seconds lost by state and cause, and by the advice that fitted them; those of earlier
    processes are forgotten."""

    _lost: defaultdict[Pair, dict[Advice, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    _came: float | None = None  # when the processes of these seconds came

    def take(self, e: Evidence, split: TimeSplit, seconds: float) -> None:
        """Add one tick of so many seconds."""
        if e.history.came != self._came:
            self._came = e.history.came
            self._lost.clear()
        fade = exp(-seconds / ADVICE_SECONDS)
        for fitted in self._lost.values():
            for one in fitted:
                fitted[one] *= fade
        for pair, part in split.parts.items():
            hidden = doubts(e) if pair[1] is Cause.UNKNOWN and part else ()
            if part and (fits := advised(pair, split.found.get(pair, ()), hidden)):
                self._lost[pair][fits] += part * seconds

    def most(self) -> dict[Pair, Advice]:
        """Return the advice that fitted most of each loss."""
        return {pair: max(fitted, key=fitted.__getitem__) for pair, fitted in self._lost.items()}
