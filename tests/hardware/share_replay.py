"""`python -m tests.hardware.share_replay [STEM ...] [--only LOAD]`: judge tapes of share trials.

STEM.tape and STEM.json come from `python -m tests.hardware.traced.trial --out DIR`. Without STEM it
judges all tapes of `tests/tapes/shares`, in minutes.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from pathlib import Path

from agent.cli.assembly import taped_hardware
from agent.config.settings import Settings
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
from tests.support.repository import TAPES

TAPED = sorted(path.with_suffix("") for path in (TAPES / "shares").glob("*.tape"))

LATE = 0.25
"""Seconds by which a tick of the replay comes after that of the tape, which takes time."""


def replayed(stem: Path, signals: str) -> Iterator[Judged]:
    """Return the reports of the present agent on each load of a tape."""
    spans = sorted(read_truth(stem.with_suffix(".json")), key=lambda s: s.since)
    clock = FrozenClock()
    hardware = taped_hardware(stem.with_suffix(".tape"), clock)
    watcher = Watcher(hardware if signals == "gpm" else without_gpm(hardware), Settings(), clock)
    clock.advance(LATE)
    for (since, until), group in groupby(spans, key=lambda s: (s.since, s.until)):
        _until(watcher, clock, since)
        before = booked(watcher)
        _until(watcher, clock, until)
        after = booked(watcher)
        yield from (shown(span, signals, watcher, before, after) for span in group)


def played(stem: Path, loads: Set[str]) -> Iterator[tuple[TrueSpan, Watcher]]:
    """The GPUs of these loads, each with a watcher that has just seen the load's steady phase."""
    clock = FrozenClock()
    watcher = Watcher(taped_hardware(stem.with_suffix(".tape"), clock), Settings(), clock)
    clock.advance(LATE)
    for span in sorted(read_truth(stem.with_suffix(".json")), key=lambda s: s.since):
        if span.load in loads:
            _until(watcher, clock, span.until)
            yield span, watcher


def _until(watcher: Watcher, clock: FrozenClock, end: float) -> None:
    while clock.monotonic() <= end:
        now = clock.monotonic()
        asyncio.run(watcher.tick())
        clock.advance(now + 1.0 - clock.monotonic())


def main(arguments: Sequence[str]) -> int:
    """Print a line a GPU and load, as the trial did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stems", nargs="*", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args(arguments)
    found = []
    for stem in given.stems or TAPED:
        for signals in SIGNALS:
            for one in replayed(stem, signals):
                if given.only in one.span.load:
                    print(one, flush=True)
                    found.append(one)
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
