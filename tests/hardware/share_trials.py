"""`python -m tests.hardware.share_trials [SLOT ...] [--until S] [--json FILE]`: told against true.

Plays labelled loads on real GPUs while two agents watch, one of them without GPM, and compares the
shares that each booked with what the load's own clock says of the same seconds. A slot is a load,
or two loads of one GPU joined by `+` beside each other. Pulses are compared with the true steps.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.cli.assembly import real_hardware
from agent.config.settings import Settings
from agent.model import PAIRS
from tests.hardware.bench import Watcher
from tests.hardware.labelled_loads.table import LOADS
from tests.hardware.raw_traces.__main__ import SLOTS, WARM_UP
from tests.hardware.raw_traces.running import Failed, PlayedLoad
from tests.hardware.without_gpm import without_gpm

SETTLED = 7.0
"""Seconds of the steady phase that do not count: power and means look back 6 s."""

SECONDS = 12.0
"""Seconds of the steady phase that count."""

AHEAD = 3
WITHIN = {"gpm": 0.05, "nvml": 0.10}
LOST = ("starved", "hung", "throttled")


@dataclass(frozen=True, slots=True)
class Told:
    """One GPU under one load: true and told shares by label, and how far they are apart."""

    load: str
    gpu: int
    signals: str
    true: dict[str, float]
    told: dict[str, float]
    error: float
    right_cause: float | None  # of the seconds told as lost those with a true cause
    step: float | None = None
    told_step: float | None = None

    def __str__(self) -> str:
        labels = sorted({*self.true, *self.told}, key=lambda k: -self.true.get(k, 0.0))
        parts = " ".join(
            f"{label} {self.true.get(label, 0):.3f}/{self.told.get(label, 0):.3f}"
            for label in labels
            if max(self.true.get(label, 0), self.told.get(label, 0)) >= 0.01
        )
        mark = "" if self.error <= WITHIN[self.signals] else " OFF"
        cause = "" if self.right_cause is None else f" cause {self.right_cause:.2f}"
        head = f"{self.load:26} gpu{self.gpu} {self.signals:4} err {self.error:.3f}"
        return f"{head}{mark}{cause} | {parts}"


def label(state: str, cause: str) -> str:
    """As the loads' clocks name it: `busy`, `hung`, `starved/disk`."""
    return state if cause == "none" else f"{state}/{cause}"


def booked(watcher: Watcher) -> dict[int, dict[str, float]]:
    """Seconds by label of every GPU, so far."""
    diagnosis = watcher.agent.diagnosis
    return {
        one.index: {
            label(*(part.value for part in pair)): diagnosis.accounts[one.uuid].booked.seconds[pair]
            for pair in PAIRS
        }
        for one in watcher.agent.gpus.inventory.gpus
        if one.uuid in diagnosis.accounts
    }


def compared(
    load: str, gpu: int, signals: str, true: dict[str, float], seconds: dict[str, float]
) -> Told:
    """True shares against told seconds. What a GPU rests counts alike whatever it is called by the
    load's own clock (idle or starved by nothing known)."""
    total = sum(seconds.values()) or 1.0
    told = {name: s / total for name, s in seconds.items() if s}
    names = {*true, *told}
    error = max(abs(true.get(n, 0.0) - told.get(n, 0.0)) for n in names)
    lost = {n: s for n, s in told.items() if n.split("/")[0] in LOST}
    right = sum(min(s, true.get(n, 0.0) + 0.03) for n, s in lost.items())
    whole = sum(lost.values())
    return Told(load, gpu, signals, true, told, error, right / whole if whole > 0.05 else None)


async def _tick(watchers: Sequence[Watcher], until: float) -> None:
    due = time.monotonic()
    while due < until:
        for watcher in watchers:
            await watcher.tick()
        due += 1.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))


class Trials:
    """All slots of one call; two agents live through all of them."""

    def __init__(self, until: float) -> None:
        hardware = real_hardware()
        with_gpm = Watcher(hardware, Settings())
        no_gpm = Watcher(without_gpm(hardware), Settings())
        self.watchers = {"gpm": with_gpm, "nvml": no_gpm}
        self._end = time.monotonic() + until
        self._ready: dict[str, list[PlayedLoad]] = {}

    def run(self, slots: Sequence[str]) -> Iterator[Told]:
        """Play them as long as there is time."""
        for place, slot in enumerate(slots):
            for later in slots[place : place + AHEAD]:
                self._prepare(later)
            if self._end - time.monotonic() < SETTLED + SECONDS + 10:
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

    def _prepare(self, slot: str) -> None:
        if slot not in self._ready:
            self._ready[slot] = [
                PlayedLoad(name, SETTLED + SECONDS + 60, number % 2)
                for number, name in enumerate(slot.split("+"))
            ]

    def _play(self, slot: str) -> Iterator[Told]:
        loads, watchers = self._ready[slot], list(self.watchers.values())
        for load in loads:
            load.go()
        end = time.monotonic() + WARM_UP
        while not all(len(load.truths()) == load.load.gpus for load in loads):
            if time.monotonic() > end or any(load.process.poll() is not None for load in loads):
                raise Failed(f"{slot}: {[load.errors() for load in loads]}")
            asyncio.run(_tick(watchers, time.monotonic() + 1.0))
        asyncio.run(_tick(watchers, time.monotonic() + SETTLED))
        since = time.monotonic()
        before = {signals: booked(w) for signals, w in self.watchers.items()}
        asyncio.run(_tick(watchers, since + SECONDS))
        until = time.monotonic()
        after = {signals: booked(w) for signals, w in self.watchers.items()}
        for load in loads:
            load.await_truth(until, 5.0)
        for load in loads:
            for truth in load.truths().values():
                lengths = truth.lengths(since, until)
                step = statistics.fmean(lengths) if lengths else None
                for signals in self.watchers:
                    seconds = {
                        name: after[signals][truth.gpu][name] - before[signals][truth.gpu][name]
                        for name in after[signals][truth.gpu]
                    }
                    found = compared(
                        load.name, truth.gpu, signals, truth.shares(since, until), seconds
                    )
                    yield Told(**{**asdict(found), "step": step})


def main(arguments: Sequence[str]) -> int:
    """Print a line a GPU and load; 0 where the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slots", nargs="*", default=[s for s in SLOTS if s != "ras"])
    parser.add_argument("--until", type=float, default=520.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    unknown = [n for slot in given.slots for n in slot.split("+") if n not in LOADS]
    if unknown:
        parser.error(f"no such load: {', '.join(unknown)}")
    found = []
    for told in Trials(given.until).run(given.slots):
        print(told, flush=True)
        found.append(told)
    for signals, bound in WITHIN.items():
        mine = [t for t in found if t.signals == signals]
        within = sum(t.error <= bound for t in mine)
        print(f"{signals}: {within} of {len(mine)} within {bound:.0%}")
    if given.json:
        given.json.write_text(json.dumps([asdict(t) for t in found]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
