"""`python -m tests.hardware.step_signal STEM ...`: what power can report of the steps on a tape.

For each load with a true step: the mean and the spread of its 20 ms power samples, how alike they
are to themselves one true step later, and the highest such value at any other lag that is no
multiple or half of it. Where the second is not above the third no estimate can find the step.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import correlation, fmean, pstdev
from typing import NamedTuple

from agent.cli.assembly import taped_hardware
from agent.config.settings import Settings
from agent.sources import power
from tests.hardware.bench import Watcher
from tests.hardware.share_comparison import TrueSpan, read_truth
from tests.hardware.share_replay import LATE
from tests.support.frozen_clock import FrozenClock

SAMPLE = 0.02  # s between two samples of power on an H200
SHORTEST, LONGEST = 0.1, 5.0  # s of the steps that are looked for
RELATED = (1 / 3, 1 / 2, 2 / 3, 1.0, 3 / 2, 2.0, 3.0, 4.0, 5.0)
NEAR = 0.12
"""Distance, as a ratio, within which a lag counts as near a related one and is left out."""


class Played(NamedTuple):
    """One load on a tape, and its power samples (W)."""

    span: TrueSpan
    watts: Sequence[float]


def played(stem: Path) -> Iterator[Played]:
    """The loads of a tape that have a step."""
    clock = FrozenClock()
    watcher = Watcher(taped_hardware(stem.with_suffix(".tape"), clock), Settings(), clock)
    clock.advance(LATE)
    spans = sorted(read_truth(stem.with_suffix(".json")), key=lambda one: one.since)
    for (since, until), beside in groupby(spans, key=lambda one: (one.since, one.until)):
        watts: dict[int, list[float]] = {}
        while clock.monotonic() <= until:
            asyncio.run(watcher.tick())
            if clock.monotonic() >= since:
                for gpu, values in newest(watcher):
                    watts.setdefault(gpu, []).extend(values)
            clock.advance(1.0)
        for span in beside:
            if span.step and SHORTEST <= span.step <= LONGEST:
                yield Played(span, watts[span.gpu])


def newest(watcher: Watcher) -> Iterator[tuple[int, Sequence[float]]]:
    """Return the values of the last tick, by the number of the GPU."""
    snapshot = watcher.snapshots[-1]
    for reading in snapshot.readings.values():
        for series in reading.series:
            if reading.at == snapshot.at and series.metric is power.SAMPLES:
                yield int(series.labels[0]), series.values


def alike(watts: Sequence[float], lag: int) -> float:
    """Pearson's coefficient of the samples with those `lag` later."""
    return correlation(watts[:-lag], watts[lag:])


def described(one: Played) -> str:
    """A line."""
    step, watts = one.span.step or 0.0, one.watts
    at_step = max(alike(watts, int(step / SAMPLE) + more) for more in (0, 1))
    others = [
        alike(watts, lag)
        for lag in range(round(SHORTEST / SAMPLE), min(len(watts) // 3, round(LONGEST / SAMPLE)))
        if all(abs(lag * SAMPLE / (step * part) - 1) > NEAR for part in RELATED)
    ]
    spread = pstdev(watts) / fmean(watts)
    return (
        f"{one.span.load:24} gpu{one.span.gpu} {fmean(watts):4.0f} W, spread {spread:.3f}; "
        f"step {step:.3f} s: alike {at_step:5.2f}, elsewhere at most {max(others):5.2f}"
    )


def main(arguments: Sequence[str]) -> int:
    """Print a line a load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stems", nargs="+", type=Path)
    for stem in parser.parse_args(arguments).stems:
        for one in played(stem):
            print(described(one), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
