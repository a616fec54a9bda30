"""Confidence of a verdict: the share of similar verdicts on test loads that were correct.

Verdicts are similar if they have the same properties (`Likeness`). `confidence.toml` contains the
numbers of similar verdicts. `python -m tests.hardware.confidence TAPE ...` generates the file from
recordings of test loads with known time shares. A verdict is correct if the measured share of its
state and cause is within ten percentage points of the known share.
"""

from functools import cache
from typing import NamedTuple

from agent.metrics import beside
from agent.model import Cause, Pair, SignalQuality, State


class Likeness(NamedTuple):
    """The properties of a verdict that determine its confidence."""

    signals: SignalQuality
    several: bool  # the job has several GPUs
    pair: Pair


class Trials(NamedTuple):
    """Results of similar verdicts on test loads. Of the `of` verdicts, `right` were correct. The
    agent counted `counted` seconds for the state, and the GPUs really spent `true` seconds in it.
    The overlap is `both` seconds."""

    right: int
    of: int
    counted: float
    true: float
    both: float

    @property
    def confidence(self) -> float:
        """Probability (0-1) that the next verdict is correct, by Laplace's rule of succession."""
        return (self.right + 1) / (self.of + 2)

    @property
    def is_doubtful(self) -> bool:
        """Whether the GPUs really were in a different state for most of the `counted` seconds."""
        return self.of > 0 and 2 * self.both < self.counted


@cache
def trials() -> dict[Likeness, Trials]:
    """Return the results on test loads from `confidence.toml`, by properties of the verdicts."""
    return {
        Likeness(
            SignalQuality(row.pop("signals")),
            row.pop("several"),
            (State(row.pop("state")), Cause(row.pop("cause"))),
        ): Trials(**row)
        for row in beside(__file__)["verdicts"]
    }


def similar(likeness: Likeness) -> Trials:
    """Return the results of similar verdicts. Without results, the confidence is 0.5."""
    return trials().get(likeness, Trials(0, 0, 0.0, 0.0, 0.0))
