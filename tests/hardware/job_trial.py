"""`python -m tests.hardware.job_trial [TAPE]`: a job of two GPUs, followed over minutes.

Its steps become 5 % longer, and later one rank is stopped by a signal. Printed is when an agent
reports each, and when it says that it began. It takes four minutes. What the agent read is written
to TAPE.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from agent.cli.assembly import real_hardware, recorded
from agent.jobs.job import Job
from tests.hardware.bench import Figure, MachineClock, Watcher
from tests.hardware.labelled_loads.playing import PlayedLoad
from tests.hardware.labelled_loads.table import CHANGING

REPORTED_WITHIN = 60.0
HUNG_WITHIN = 20.0
MOST_WRONG = 10.0
"""Seconds by which the time since when a job is slower may be wrong: a value of its history."""

AFTER_HANG = 40.0


@dataclass(slots=True)
class Seen:
    """Reports of the agent, and the first time of each (CLOCK_MONOTONIC, s)."""

    step: float | None = None  # while the steps were regular, the last
    slower: float | None = None
    slower_since: float = 0.0
    hung: float | None = None
    hung_since: float = 0.0
    culprits: tuple[int | None, ...] = ()
    false_slower: int = 0  # ticks before the change
    false_hang: int = 0

    def look(self, job: Job, changed: float | None, hangs: float | None) -> None:
        """One tick; the times are those of the load, None as long as nothing changed."""
        now, wall = time.monotonic(), time.time() - time.monotonic()
        if changed is None:
            self.step = job.step or self.step
            self.false_slower += job.slower is not None
        elif job.slower is not None and self.slower is None:
            self.slower, self.slower_since = now, job.slower.since - wall
        if hangs is None:
            self.false_hang += job.hang is not None
        elif job.hang is not None and self.hung is None:
            self.hung, self.hung_since = now, job.hang.since - wall
        if job.hang is not None and job.hang.culprits:
            self.culprits = tuple(one.rank for one in job.hang.culprits)


def follow(load: PlayedLoad, watcher: Watcher) -> Iterator[Figure]:
    """Play the load to its end; a figure a line."""
    after, slow = CHANGING.parameters["after"], CHANGING.parameters["slow"]
    load.go()
    steady = load.await_steady(60.0)
    seen, changed, hangs = Seen(), None, None
    end = steady + (1.1 + CHANGING.parameters["by"]) * (after + slow) + AFTER_HANG
    due = time.monotonic()
    while time.monotonic() < end:
        asyncio.run(watcher.tick())
        truth = load.truths()[0]
        if changed is None and time.monotonic() > steady + 0.9 * after:
            changed = _changed(truth.steps, after)
        if hangs is None and truth.open is not None:
            hangs = truth.open[0]
            end = hangs + AFTER_HANG
        for job in watcher.agent.jobs.current.running:
            if len(job.receipt.gpus) == 2:
                seen.look(job, changed, hangs)
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))
    true = [length for at, length in _lengths(truth.steps) if changed and at < changed]
    yield from _figures(seen, changed or 0.0, hangs or 0.0, statistics.fmean(true))


def _lengths(steps: list[float]) -> Iterator[tuple[float, float]]:
    yield from ((later, later - earlier) for earlier, later in pairwise(steps))


def _changed(steps: list[float], after: float) -> float | None:
    """Return the time when steps began to take longer, by the load's own clock."""
    lengths = list(_lengths(steps))
    usual = statistics.median(length for at, length in lengths if at < steps[0] + 0.8 * after)
    limit = (1 + CHANGING.parameters["by"] / 2) * usual
    for place, (at, _) in enumerate(lengths[:-20]):
        if statistics.median(length for _, length in lengths[place : place + 20]) > limit:
            return at
    return None


def _figures(seen: Seen, changed: float, hangs: float, step: float) -> Iterator[Figure]:
    missing = float("nan")
    yield Figure("step reported over the true one", (seen.step or missing) / step, 0.99, 1.01, "")
    yield Figure(
        "5 % slower, reported after", (seen.slower or missing) - changed, 0, REPORTED_WITHIN, "s"
    )
    wrong = seen.slower_since - changed
    yield Figure("time since when, minus the true one", wrong, -MOST_WRONG, MOST_WRONG, "s")
    yield Figure("ticks called slower before that", seen.false_slower, 0, 0, "")
    yield Figure("hang, reported after", (seen.hung or missing) - hangs, 0, HUNG_WITHIN, "s")
    wrong = seen.hung_since - hangs
    yield Figure("time since when it hangs, minus the true one", wrong, -2, 5, "s")
    right = float(seen.culprits == (CHANGING.parameters["stopped"],))
    yield Figure("the stopped rank alone is named", right, 1, 1, "", str(seen.culprits))
    yield Figure("ticks called hung before that", seen.false_hang, 0, 0, "")


def main() -> int:
    """Print a line a figure; 1 if one is out of its bounds."""
    load = PlayedLoad(CHANGING.name, CHANGING.seconds)
    hardware, recorder = recorded(real_hardware(), MachineClock())
    watcher = Watcher(hardware)
    wrong = 0
    try:
        for figure in follow(load, watcher):
            print(figure, flush=True)
            wrong += not figure.holds
    finally:
        load.stop()
        for path in sys.argv[1:]:
            recorder.write(Path(path))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
