"""`python -m tests.hardware.share_trials [SLOT ...] [--until S] [--tape STEM]`: shown against true.

Plays labelled loads on real GPUs while two agents watch, one of them without GPM, and compares the
shares that each booked with what the load's own clock says of the same seconds. A slot is a load,
or two loads of one GPU joined by `+` beside each other. Steps are compared with the true ones.

With --tape all that both agents were shown goes to STEM.tape, and what was true to STEM.json, from
which `python -m tests.hardware.share_replay STEM` reports it again by the rules of that day.
"""

import argparse
import asyncio
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agent.cli.assembly import real_hardware, recorded
from agent.config.settings import Settings
from tests.hardware.bench import MachineClock, Watcher
from tests.hardware.labelled_loads.playing import Failed, PlayedLoad
from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.share_comparison import Judged, TrueSpan, booked, shown, summary, write_truth
from tests.hardware.without_gpm import without_gpm

SECONDS = 12.0
"""Seconds of the steady phase that count, where no others are asked for."""

LATEST = 15.0
"""Seconds at the end of a span whose steps are compared with the step reported last."""

AHEAD = 3  # slots whose loads have imported their libraries already
WARM_UP = 40.0  # s at most


def _settled(slot: str) -> float:
    """Seconds of the steady phase of a slot that do not count."""
    return max(LOADS[name].settles for name in slot.split("+"))


async def _tick(watchers: Sequence[Watcher], until: float) -> None:
    due = time.monotonic()
    while due < until:
        for watcher in watchers:
            await watcher.tick()
        due += 1.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))


class Trials:
    """All slots of one call; two agents live through all of them."""

    def __init__(self, until: float, gpus: int = 2, seconds: float = SECONDS) -> None:
        """Loads of several GPUs get all of `gpus`, or each of those of one slot its part; of each
        so many `seconds` count at least."""
        self._gpus, self._least = gpus, seconds
        clock = MachineClock()
        hardware, self._recorder = recorded(real_hardware(), clock)
        self._start = time.monotonic()  # the first question comes now: the tape's time begins
        with_gpm = Watcher(hardware, Settings(), clock)
        no_gpm = Watcher(without_gpm(hardware), Settings(), clock)
        self.watchers = {"gpm": with_gpm, "nvml": no_gpm}
        for watcher in self.watchers.values():
            watcher.agent.nccl.start()
        self.spans: list[TrueSpan] = []  # CLOCK_MONOTONIC
        self._end = time.monotonic() + until
        self._ready: dict[str, list[PlayedLoad]] = {}

    def run(self, slots: Sequence[str]) -> Iterator[Judged]:
        """Play them as long as there is time."""
        for place, slot in enumerate(slots):
            for later in slots[place : place + AHEAD]:
                self._prepare(later)
            if self._end - time.monotonic() < self._seconds(slot) + 10:
                print(f"no time left for {slot}", flush=True)
                continue
            try:
                yield from self._play(slot)
            except (Failed, OSError, ValueError, KeyError, StopIteration):
                print(f"FAILED {slot}", flush=True)
                traceback.print_exc()
            finally:
                for load in self._ready.pop(slot, []):
                    load.stop()
        for loads in self._ready.values():
            for load in loads:
                load.stop()

    def write(self, stem: Path) -> None:
        """The tape, and what was true, in seconds of the tape."""
        self._recorder.write(stem.with_suffix(".tape"))
        start = self._start
        write_truth(
            stem.with_suffix(".json"),
            (replace(s, since=s.since - start, until=s.until - start) for s in self.spans),
        )

    def _seconds(self, slot: str) -> float:
        """Seconds of its steady phase."""
        return max(_settled(slot) + self._least, *(LOADS[n].seconds for n in slot.split("+")))

    def _prepare(self, slot: str) -> None:
        if slot not in self._ready:
            names = slot.split("+")
            part = max(1, self._gpus // len(names))
            self._ready[slot] = [
                PlayedLoad(name, self._seconds(slot) + 60, number * part % self._gpus, part)
                for number, name in enumerate(names)
            ]

    def _play(self, slot: str) -> Iterator[Judged]:
        loads, watchers = self._ready[slot], list(self.watchers.values())
        for load in loads:
            load.go()
        end = time.monotonic() + WARM_UP
        while not all(len(load.truths()) == load.load.gpus for load in loads):
            if time.monotonic() > end or any(load.process.poll() is not None for load in loads):
                raise Failed(f"{slot}: {[load.errors() for load in loads]}")
            asyncio.run(_tick(watchers, time.monotonic() + 1.0))
        settled = _settled(slot)
        seconds = self._seconds(slot) - settled
        asyncio.run(_tick(watchers, time.monotonic() + settled))
        since = time.monotonic()
        before = {signals: booked(w) for signals, w in self.watchers.items()}
        asyncio.run(_tick(watchers, since + seconds))
        until = time.monotonic()
        after = {signals: booked(w) for signals, w in self.watchers.items()}
        for load in loads:
            load.await_truth(until, 5.0)
        for load in loads:
            for truth in load.truths().values():
                latest = max(since, until - LATEST)
                lengths = truth.lengths(latest, until) if load.load.pulse else ()
                # A validation or a checkpoint between two steps is no part of one.
                step = statistics.median(lengths) if lengths else None
                shares = truth.shares(since, until)
                span = TrueSpan(load.name, truth.gpu, since, until, shares, step)
                self.spans.append(span)
                for signals, watcher in self.watchers.items():
                    yield shown(span, signals, watcher, before[signals], after[signals])


def main(arguments: Sequence[str]) -> int:
    """Print a line a GPU and load, and how many are as near to the truth as they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slots", nargs="*", default=[*LOADS])
    parser.add_argument("--until", type=float, default=520.0)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each that count")
    parser.add_argument("--tape", type=Path, metavar="STEM")
    given = parser.parse_args(arguments)
    unknown = [n for slot in given.slots for n in slot.split("+") if n not in LOADS]
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}")
    found = []
    trials = Trials(given.until, given.gpus, given.seconds)
    try:
        for one in trials.run(given.slots):
            print(one, flush=True)
            found.append(one)
    finally:
        if given.tape:
            trials.write(given.tape)
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
