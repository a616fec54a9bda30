"""Recorded power of GPUs under labelled loads: `tests/agent/jobs/traces`, as samples.

Each file holds one GPU: the differences of its times (0.1 ms) and of its power (0.1 W), and from
when on which step took how long by the load's own clock (seconds; null where it has no regular
steps, or steps too short for the samples).
"""

import gzip
import json
from itertools import accumulate
from typing import NamedTuple

from tests.support.power_signals import Samples
from tests.support.repository import ROOT

FOLDER = ROOT / "tests/agent/jobs/traces"


class Trace(NamedTuple):
    """Samples of one GPU, and the true steps: from a time on, so long."""

    samples: Samples
    steps: list[tuple[float, float | None]]

    def step_at(self, time: float) -> float | None:
        """The true step at a time."""
        return [step for since, step in self.steps if since <= time][-1]


def trace(name: str) -> Trace:
    """The trace of this name."""
    text = gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())
    read = json.loads(text)
    times = (tenths / 1e4 for tenths in accumulate(read["tenths_of_ms"]))
    watts = (tenths / 10 for tenths in accumulate(read["deciwatts"]))
    steps = [(float(since), step) for since, step in read["steps"]]
    return Trace(list(zip(times, watts, strict=True)), steps)
