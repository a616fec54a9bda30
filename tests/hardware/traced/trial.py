"""`python -m tests.hardware.traced.trial [SLOT ...] --out DIR [--until S]`: counted against true.

Plays traced loads on the GPUs of this machine while two agents watch, one of them without GPM, and
compares the shares that each counted with what the traces of the same seconds show. A slot is one
load of two GPUs, or loads of one GPU joined by `+`, each on a GPU of its own. DIR gets a tape of
all that the agents read (`trial.tape`), the truth (`trial.json`) and the lines printed.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from agent.cli.assembly import real_hardware, recorded
from agent.config.settings import Settings
from tests.hardware.bench import MachineClock, Watcher
from tests.hardware.share_comparison import (
    Judged,
    Seconds,
    TrueSpan,
    booked,
    shown,
    summary,
    write_truth,
)
from tests.hardware.traced import play, truth
from tests.hardware.traced.processes import Files, Played, tracer
from tests.hardware.without_gpm import without_gpm

AHEAD = 2  # slots whose loads have imported their libraries already
WARM_UP = 75.0  # s at most
TRACED = 2.6  # s for which each load is traced before it is judged
FEW = 4000.0
"""Kernels and copies a second up to which tracing changes nothing: it goes on while the load is
judged, else the trace before is applied to the steps of the judged time."""

FLUSHED = 0.6  # s after which a trace has been written

Truth = tuple[truth.Slice, float | None]
"""What is true of one rank, and its usual step (s)."""


def truths(files: Sequence[Files], traced: truth.Span, window: truth.Span) -> list[Truth]:
    """The truth of each rank of a load in a window, of which all or a slice was traced."""
    records = [truth.read(*one) for one in files]
    found: list[Truth] = []
    for one, record in zip(truth.shares(records, *traced), records, strict=True):
        shares = one.shares if traced == window else truth.of_window(record, one, traced, window)
        lengths = record.steps(*window)
        step = float(statistics.median(lengths)) if len(lengths) else None
        found.append((replace(one, shares=shares), step))
    return found


class Window(NamedTuple):
    """A load that was judged, its truth in the making, and what each agent had booked."""

    load: Played
    truths: Future[list[Truth]]
    since: float
    until: float
    before: dict[str, dict[int, Seconds]]
    after: dict[str, dict[int, Seconds]]


def _span(seconds: float) -> truth.Span:
    """The last so many seconds."""
    now = time.monotonic_ns()
    return now - int(seconds * 1e9), now


async def _tick(watchers: Sequence[Watcher], until: float) -> None:
    due = time.monotonic()
    while due < until:
        for watcher in watchers:
            await watcher.tick()
        due += 1.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))


class Trial:
    """All slots of one call; two agents live through all of them."""

    def __init__(
        self, until: float, library: Path, settles: float, seconds: float, few: float
    ) -> None:
        self._settles, self._seconds, self._few = settles, seconds, few
        clock = MachineClock()
        hardware, self._recorder = recorded(real_hardware(), clock)
        self._start = time.monotonic()  # the first question comes now: the tape's time begins
        self._library = library
        self.watchers = {
            "gpm": Watcher(hardware, Settings(), clock),
            "nvml": Watcher(without_gpm(hardware), Settings(), clock),
        }
        self.spans: list[TrueSpan] = []  # CLOCK_MONOTONIC
        self._end = time.monotonic() + until
        self._ready: dict[str, list[Played]] = {}
        self._windows: list[Window] = []
        # a trace of millions of kernels takes longer to read than its load to play
        self._readers = ProcessPoolExecutor(4, mp_context=get_context("fork"))
        self._port = 29600

    def run(self, slots: Sequence[str]) -> Iterator[Judged]:
        """Play them as long as there is time."""
        for place, slot in enumerate(slots):
            for later in slots[place : place + AHEAD]:
                self._prepare(later)
            loads = self._ready.pop(slot)
            try:
                if self._end - time.monotonic() < 30:
                    print(f"no time left for {slot}", flush=True)
                    continue
                self._play(loads)
                yield from self._judged(wait=False)
            finally:
                for load in loads:
                    for rank in load.ranks:
                        rank.stop()
        for loads in self._ready.values():
            for load in loads:
                for rank in load.ranks:
                    rank.stop()
        yield from self._judged(wait=True)

    def write(self, out: Path) -> None:
        """The tape, and what was true, in seconds of the tape."""
        self._recorder.write(out / "trial.tape")
        start = self._start
        spans = [replace(s, since=s.since - start, until=s.until - start) for s in self.spans]
        write_truth(out / "trial.json", spans)

    def _prepare(self, slot: str) -> None:
        if slot not in self._ready:
            self._ready[slot] = []
            for gpu, name in enumerate(slot.split("+")):
                self._port += 1
                self._ready[slot].append(Played(name, gpu, self._port, self._library))

    def _play(self, loads: Sequence[Played]) -> None:
        ranks = [rank for load in loads for rank in load.ranks]
        watchers = list(self.watchers.values())
        for rank in ranks:
            rank.go()
        left = self._await_steady(loads)
        if not left:
            return
        for rank in ranks:
            rank.trace(on=True)
        asyncio.run(_tick(watchers, time.monotonic() + TRACED))
        slice_ = _span(TRACED - 0.7)
        few = self._few
        sparse = [load for load in left if few == inf or load.records_a_second(slice_) < few]
        for load in left:
            if load not in sparse:
                load.trace(on=False)
        settles = min(self._settles, max(load.load.settles for load in left))
        asyncio.run(_tick(watchers, time.monotonic() + settles))
        since = time.monotonic()
        before = {signals: booked(w) for signals, w in self.watchers.items()}
        seconds = min(self._seconds, max(load.load.seconds for load in left))
        asyncio.run(_tick(watchers, since + seconds))
        window = _span(time.monotonic() - since)
        after = {signals: booked(w) for signals, w in self.watchers.items()}
        for load in sparse:
            load.trace(on=False)
        time.sleep(FLUSHED)
        for load in left:
            files = [rank.files() for rank in load.ranks]
            traced = window if load in sparse else slice_
            found = self._readers.submit(truths, files, traced, window)
            self._windows.append(Window(load, found, since, window[1] / 1e9, before, after))

    def _judged(self, *, wait: bool) -> Iterator[Judged]:
        """Compare what was counted with what is true, where that is known by now."""
        for one in list(self._windows):
            if not wait and not one.truths.done():
                continue
            self._windows.remove(one)
            if error := one.truths.exception():
                print(f"FAILED {one.load.name}: {error}", flush=True)
                continue
            load = one.load.load
            for rank, (true, length) in zip(one.load.ranks, one.truths.result(), strict=True):
                rank.clear()
                print(f"  {one.load.name}: {true.records:.0f} kernels and copies a second")
                if not true.records and not true.idle:
                    print(f"FAILED {one.load.name}: its GPU was not traced", flush=True)
                    continue
                step = length if load.regular else None
                span = TrueSpan(
                    *(one.load.name, rank.gpu, one.since, one.until), true.shares, step, true.doubts
                )
                self.spans.append(span)
                for signals, watcher in self.watchers.items():
                    yield shown(span, signals, watcher, one.before[signals], one.after[signals])

    def _await_steady(self, loads: Sequence[Played]) -> list[Played]:
        """The loads whose warm-up is over; those that ended or take too long are printed."""
        end = time.monotonic() + WARM_UP
        left = list(loads)
        while not all(rank.is_steady() for load in left for rank in load.ranks):
            asyncio.run(_tick(list(self.watchers.values()), time.monotonic() + 1.0))
            for load in list(left):
                ended = any(rank.process.poll() is not None for rank in load.ranks)
                if ended or time.monotonic() > end:
                    print(f"FAILED {load.name}: {load.ranks[0].errors()}", flush=True)
                    left.remove(load)
        return left


def main(arguments: Sequence[str]) -> int:
    """Print a line a GPU and load, and how many are as near to the truth as they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slots", nargs="+")
    parser.add_argument("--until", type=float, default=540.0)
    parser.add_argument("--settles", type=float, default=60.0, help="s at most of each")
    parser.add_argument("--seconds", type=float, default=60.0, help="s at most that count of each")
    parser.add_argument(
        "--whole",
        action="store_true",
        help="trace all that is judged: it slows loads of many kernels, and needs no extrapolation",
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    known = play.modules()
    unknown = [n for slot in given.slots for n in slot.split("+") if n not in known]
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}")
    given.out.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory() as room:
        few = inf if given.whole else FEW
        trial = Trial(given.until, tracer(Path(room)), given.settles, given.seconds, few)
        try:
            for one in trial.run(given.slots):
                print(one, flush=True)
                found.append(one)
        finally:
            trial.write(given.out)
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
