"""Confidence of a verdict: the share of similar verdicts that were correct on test loads.

`confidence.toml` contains the numbers of verdicts, grouped by the available signals, by whether the
job has several GPUs, and by state and cause. `python -m tests.hardware.confidence TAPE ...`
generates the file from recordings of loads with known shares. A verdict is correct if the known
share of its state and cause is within ten percentage points of the measured share.
"""

from functools import cache
from typing import NamedTuple

from agent.metrics import beside
from agent.model import Cause, Pair, SignalQuality, State


class Likeness(NamedTuple):
    """Properties of a verdict. Verdicts with the same properties have the same confidence."""

    signals: SignalQuality
    several: bool  # the job has several GPUs
    pair: Pair


class Trials(NamedTuple):
    """Results of similar verdicts on test loads: `right` of the `of` verdicts were correct. The
    agent counted `counted` seconds for the state, the GPU was in the state for `true` seconds, and
    `both` is the overlap in seconds."""

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
        """Whether the GPU was in a different state for most of the `counted` seconds."""
        return self.of > 0 and 2 * self.both < self.counted


@cache
def trials() -> dict[Likeness, Trials]:
    """Return the results in `confidence.toml`, by the properties of the verdicts."""
    return {
        Likeness(
            SignalQuality(row.pop("signals")),
            row.pop("several"),
            (State(row.pop("state")), Cause(row.pop("cause"))),
        ): Trials(**row)
        for row in beside(__file__)["verdicts"]
    }


def similar(likeness: Likeness) -> Trials:
    """Return the results of similar verdicts. If there were none, the confidence is 0.5."""
    return trials().get(likeness, Trials(0, 0, 0.0, 0.0, 0.0))
