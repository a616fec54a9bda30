"""`python -m tests.hardware.share_replay STEM ... [--only LOAD]`: judge tapes of share trials.

STEM.tape and STEM.json come from `python -m tests.hardware.share_trials --tape STEM`.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence, Set
from itertools import groupby, pairwise
from math import inf
from pathlib import Path

from agent.cli.assembly import taped_hardware
from agent.config.settings import Settings
from agent.replay.reading import Tape
from tests.hardware.bench import Watcher
from tests.hardware.share_comparison import (
    SIGNALS,
    Judged,
    TrueSpan,
    booked,
    read_truth,
    shown,
    summary,
)
from tests.hardware.without_gpm import without_gpm
from tests.support.frozen_clock import FrozenClock

APART = 0.3
"""Seconds without an answer between two ticks of a tape."""


class Replay:
    """A watcher that ticks at the moments of the tape: what the agent looks for now and then, such
    as new threads, it finds in both at the same tick."""

    def __init__(self, stem: Path, signals: str = "gpm") -> None:
        path, clock = stem.with_suffix(".tape"), FrozenClock()
        hardware = taped_hardware(path, clock)
        hardware = hardware if signals == "gpm" else without_gpm(hardware)
        self.watcher = Watcher(hardware, Settings(), clock)
        self._clock, self._start = clock, clock.monotonic()
        answers = (a for section in Tape.load(path).series.values() for a in section.values())
        times = sorted({at / 1000 for series in answers for at in series.times})
        self._ends = [at for at, after in pairwise([*times, inf]) if after - at > APART]

    def until(self, end: float) -> None:
        """Play the ticks up to this second of the tape."""
        while self._ends and self._ends[0] <= end:
            self._clock.advance(self._start + self._ends.pop(0) - self._clock.monotonic())
            asyncio.run(self.watcher.tick())


def replayed(stem: Path, signals: str) -> Iterator[Judged]:
    """Return the reports of the present agent on each load of a tape."""
    spans = sorted(read_truth(stem.with_suffix(".json")), key=lambda s: s.since)
    replay = Replay(stem, signals)
    for (since, until), group in groupby(spans, key=lambda s: (s.since, s.until)):
        replay.until(since)
        before = booked(replay.watcher)
        replay.until(until)
        after = booked(replay.watcher)
        yield from (shown(span, signals, replay.watcher, before, after) for span in group)


def played(stem: Path, loads: Set[str]) -> Iterator[tuple[TrueSpan, Watcher]]:
    """The GPUs of these loads, each with a watcher that has just seen the load's steady phase."""
    replay = Replay(stem)
    for span in sorted(read_truth(stem.with_suffix(".json")), key=lambda s: s.since):
        if span.load in loads:
            replay.until(span.until)
            yield span, replay.watcher


def main(arguments: Sequence[str]) -> int:
    """Print a line a GPU and load, as the trial did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stems", nargs="+", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    found = []
    for stem in given.stems:
        for signals in SIGNALS:
            for one in replayed(stem, signals):
                if given.only in one.span.load:
                    print(one, flush=True)
                    found.append(one)
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
