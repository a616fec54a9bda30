"""A soak: an agent lives through months of trouble in minutes, and must not grow.

    python -m tests.benchmarks.soak --ticks 100000

The machine is simulated, its clock stands still between ticks. Rounds of faults (GPUs lost and
back, links that flap, processes and devices that come and go) end in calm, and what the agent
holds is measured there: memory, files, threads, and the series that it shows.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from agent import simulator as simulation
from agent.cli.options import board_of
from agent.config.settings import Settings
from agent.diagnosis.accounting import WAITS_FOR
from agent.model import Kind, Metric, Snapshot
from agent.sources.allocation import AllocationConfig
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from exporters.documents import document
from exporters.live.page import Client, Feed
from exporters.prometheus import Exposition
from tests.support.frozen_clock import FrozenClock
from tests.support.hotplug import Hotplug
from tests.support.machine_controls import reload_driver, set_mig
from tests.support.machines import OPENMETRICS, TEXT, AgentBench, watched
from tests.support.random_faults import CALM, XIDS, HostileSlurm, RandomFaults

ROUND = 280
"""Ticks of one round: random faults, then calm until the slowest reads have run and what went away
has expired."""
STORMY = 80
CHECK_EVERY = 50
"""Ticks between two scrapes and snapshots as JSON."""
PAGE_OPENS, PAGE_CLOSES = STORMY - 20, STORMY + 40
WARM_UP = 4 * ROUND
"""Ticks at least; a long soak takes a tenth of it: what is gone is kept for an hour."""
MOST_GROWTH = 2_000_000
"""Bytes that an agent may grow by after it has warmed up."""
MOST_BLOCKS = 4_000
"""Objects that an agent may hold more than it did, of some 250,000: how many differs by where in
its reads it is checked."""

Series = frozenset[tuple[str, ...]]


def megabytes(count: int) -> str:
    return f"{count / 1e6:9.3f}" if count else "        -"


@dataclass(frozen=True, slots=True)
class Measure:
    """State of the process in the calm after so many ticks: `blocks` are objects that Python has
    allocated, `traced` their bytes (0 unless traced); of the series those that are new or missing
    since the soak began."""

    ticks: int
    seconds: float  # of CPU time so far
    rss: int
    traced: int
    blocks: int
    files: int
    threads: int
    new: Series
    missing: Series

    def __str__(self) -> str:
        memory = f"{megabytes(self.rss)} {megabytes(self.traced)} {self.blocks:9}"
        series = f"{len(self.new):4} {len(self.missing):8}"
        ran = f"{self.ticks:8} {self.seconds:8.1f}"
        return f"{ran} {memory} {self.files:6} {self.threads:8} {series}"


@dataclass(slots=True)
class Soak:
    """An agent, its clock, and what befalls its machine."""

    bench: AgentBench
    random_faults: RandomFaults
    exposition: Exposition
    feed: Feed
    whole: Series
    """Series of the machine in calm."""
    ticks: int = 0
    rendered: int = 0  # bytes
    _libc: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None))

    def rounds(self, ticks: int) -> Iterator[Measure]:
        """Play so many ticks in whole rounds; a measure after each."""
        while self.ticks < ticks:
            asyncio.run(self._round())
            yield self._measure()

    async def _round(self) -> None:
        page = Client()
        for tick in range(ROUND):
            if tick == PAGE_OPENS:
                self.feed.clients.add(page)
            elif tick == PAGE_CLOSES:
                self.feed.clients.discard(page)
            if tick < STORMY and tick % 2 == 0:
                self.random_faults.strike()
            elif tick == STORMY:
                self.random_faults.heal()
            await self._tick()
            if PAGE_OPENS <= tick < PAGE_CLOSES:
                await asyncio.sleep(0)  # what the page waits for is made beside the ticks
                self.rendered += sum(map(len, self.feed.news(page)))
            if tick % CHECK_EVERY == CHECK_EVERY - 1:
                self._refresh()

    async def _tick(self) -> None:
        await self.bench.agent.poller.tick()
        self.bench.agent.watch.poll(0)
        self.bench.clock.advance(1.0)
        self.ticks += 1

    def _refresh(self) -> None:
        """Read what Prometheus and API clients read."""
        for accept in (TEXT, OPENMETRICS):
            self.rendered += len(self.exposition.page(accept).zipped)
        said = document(self.bench.latest, self.bench.clock.monotonic())
        self.rendered += len(json.dumps(said, allow_nan=False))

    def _measure(self) -> Measure:
        shown = series_of(self.bench.latest)
        new, missing = shown - self.whole, self.whole - shown
        del shown
        gc.collect()
        with suppress(AttributeError):  # of glibc: give back what is free
            self._libc.malloc_trim(0)
        return Measure(
            ticks=self.ticks,
            seconds=time.process_time(),
            rss=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            traced=tracemalloc.get_traced_memory()[0],
            blocks=sys.getallocatedblocks(),
            files=len(list(Path("/proc/self/fd").iterdir())),
            threads=threading.active_count(),
            new=new,
            missing=missing,
        )


def series_of(snapshot: Snapshot) -> Series:
    """Return the series for Prometheus; the names of jobs are dropped, and so is whom a GPU has
    waited for: such a series comes with the first wait, at most one a pair."""
    return frozenset(
        (metric.name, *named(metric, labels))
        for metric, labels, _ in snapshot.samples(snapshot.at)
        if metric.kind is not Kind.INTERNAL and metric is not WAITS_FOR
    )


def named(metric: Metric, labels: tuple[str, ...]) -> Iterator[str]:
    for name, label in zip(metric.labels, labels, strict=True):
        yield "any" if name in ("pid", "job", "job_id") else label


def build(system: str, gpus: int | None = None, config: Settings | None = None) -> Soak:
    """A soak of a simulated system, or of one with fewer GPUs, that has been in calm for a while
    and has seen each XID, and MIG."""
    clock = FrozenClock()
    parsed = simulation.parse(f"{system}:{CALM}")
    smaller = structs.replace(parsed.system, buses=parsed.system.buses[:gpus])
    machine = simulation.SimulatedSystem(structs.replace(parsed, system=smaller), clock)
    plugs = Hotplug(machine.host)
    slurm = HostileSlurm()
    host = replace(plugs.wrapped(), schedulers=slurm)
    bench = watched(machine, clock, config, host).run(3)
    agent = bench.agent
    for gpu in machine.gpus:
        for code in XIDS:
            machine.driver.xid(gpu.index, code)
    set_mig(machine, 0, on=True)
    bench.run(20).skip(ROUND - STORMY).run(20)
    reload_driver(machine)
    set_mig(machine, 0, on=False)
    bench.run(20).skip(ROUND - STORMY).run(20)
    exposition = Exposition(lambda: agent.poller.latest, clock.monotonic)
    feed = Feed(board_of(agent, bench.hardware))
    agent.poller.listeners.append(feed)
    random_faults = RandomFaults(machine, plugs, agent, agent.settings, slurm)
    return Soak(bench, random_faults, exposition, feed, series_of(agent.poller.latest))


SLURM = AllocationConfig(slurm=True)
WITH_PROCESSES = Settings(ProcessConfig(series=4), JobConfig(info=True), SLURM)
CONFIGS: Mapping[str, Settings] = {"default": Settings(SLURM), "processes": WITH_PROCESSES}


def main() -> int:
    """Play, print a line now and then, and say whether the agent has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description=__doc__)
    parser.add_argument("--ticks", type=int, default=100_000)
    parser.add_argument("--system", default="dgx-h100", choices=simulation.SYSTEMS)
    parser.add_argument("--gpus", type=int, help="only the first so many of a switched system")
    parser.add_argument("--config", default="default", choices=CONFIGS)
    parser.add_argument("--trace", action="store_true", help="by tracemalloc; five times slower")
    parser.add_argument("--lines", type=int, default=20, help="how many to print")
    given = parser.parse_args()
    logging.disable()
    if given.trace:
        tracemalloc.start()
    soak = build(given.system, given.gpus, CONFIGS[given.config])
    every = max(1, given.ticks // ROUND // given.lines)
    print("   ticks    CPU s    RSS MB traced MB    blocks  files  threads  new  missing series")
    warm_up = max(WARM_UP, given.ticks // 10 // ROUND * ROUND)
    warm: Measure | None = None
    traced = None
    odd: Series = frozenset()
    for number, measure in enumerate(soak.rounds(given.ticks + warm_up), 1):
        if measure.ticks == warm_up:
            warm = measure
            traced = tracemalloc.take_snapshot() if given.trace else None
        if number % every == 0 or measure is warm:
            print(measure, flush=True)
        odd |= measure.new | measure.missing
    assert warm is not None
    if traced:
        for line in tracemalloc.take_snapshot().compare_to(traced, "lineno")[:15]:
            print(line)
    print(f"struck: {soak.random_faults.struck}; {soak.rendered / 1e6:.0f} MB rendered")
    faults = grown(warm, measure, odd)
    print("\n".join(faults) or "it has not grown")
    return 1 if faults else 0


def grown(warm: Measure, last: Measure, odd: Series) -> list[str]:
    """Return the differences from the warm agent, a sentence each; `odd` are the series that were
    new or missing in any calm."""
    found = {
        f"{last.rss - warm.rss} bytes more": last.rss - warm.rss >= MOST_GROWTH,
        f"{last.traced - warm.traced} bytes traced": last.traced - warm.traced >= MOST_GROWTH,
        f"{last.blocks - warm.blocks} objects more": last.blocks - warm.blocks >= MOST_BLOCKS,
        f"{last.files} files open, {warm.files} before": last.files != warm.files,
        f"{last.threads} threads, {warm.threads} before": last.threads != warm.threads,
        f"series were new or missing: {sorted({name for name, *_ in odd})}": bool(odd),
    }
    return [sentence for sentence, bad in found.items() if bad]


if __name__ == "__main__":
    sys.exit(main())
