"""A hostile day: random instances of whatever is hostile, all at once, against one agent in
compressed time. Nothing may freeze, nothing may be logged with a traceback, memory stays flat.

    python -m tests.benchmarks.hostile_day --minutes 10 --seed 51

To the faults of a soak come answers of Slurm and the kubelet, lists of hosts, lines of nodes, files
that cannot be read, structures of NVML with any bits, refusals for good, web configurations,
hours on disk, configurations and clients that behave badly.
"""

import argparse
import asyncio
import ctypes
import gc
import logging
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from errno import EACCES
from pathlib import Path
from random import Random
from typing import cast

from agent import simulator as simulation
from agent.cli.assembly import Agent, Hardware
from agent.cli.options import board_of
from agent.diagnosis.hours import HourlySums
from agent.hardware.files import FileTree
from exporters.access_control import AccessControl
from exporters.http import AgentPages
from exporters.live.feed import Feed
from exporters.prometheus import Exposition
from exporters.server import serve
from exporters.web_file import WebFile
from tests.benchmarks.soak import PAGE, WITH_PROCESSES, Series, series_of
from tests.support.frozen_clock import FrozenClock
from tests.support.hidden_files import HiddenFiles
from tests.support.hostile_faults import NOTHING, USERS, HostileFaults, with_bits
from tests.support.hotplug import Hotplug
from tests.support.machines import AgentBench
from tests.support.random_faults import CALM, XIDS, HostileSlurm

GPUS, STORMY, ROUND, WARM_UP = 2, 120, 320, 16
ASLEEP = 5400.0
"""Seconds for which the machine sleeps after each round: windows of a day are full when the agent
is warm."""

MOST_GROWTH = 0.01
"""Share by which the memory may grow a day: the slope after the warm-up, less twice its error."""


class Tracebacks(logging.Handler):
    """Keeps what was logged with a traceback, and counts all lines."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        if record.exc_info or "Traceback" in record.getMessage():
            self.found.append(f"{record.getMessage()} {record.exc_info}")


class MallocCounts(ctypes.Structure):
    """The answer of glibc's mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def in_use() -> int:
    """Bytes that were allocated and not freed by malloc, which has all but small Python objects;
    the pages of the process also have what is free between them."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = MallocCounts
    counts = ask()
    return int(counts.uordblks + counts.hblkhd)


@dataclass(frozen=True, slots=True)
class Calm:
    """The agent once all is well again: bytes of memory, those in use by malloc, small objects,
    threads, cases so far, and the metrics of which series are new or missing since the first calm:
    the series themselves would be most of the growth."""

    rss: int
    used: int
    blocks: int
    threads: int
    cases: int
    odd: frozenset[str]

    def __str__(self) -> str:
        return (
            f"{self.cases:7} cases, {self.rss / 1e6:7.2f} MB, {self.used / 1e6:7.3f} in use, "
            f"{self.blocks:8} objects, "
            f"{self.threads} threads, {len(self.odd)} odd metrics"
        )


class Day:
    """One agent, its clock, and what befalls it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.clock = FrozenClock()
        parsed = simulation.parse(f"dgx-h100:{CALM}")
        smaller = replace(parsed.system, buses=parsed.system.buses[:GPUS])
        machine = simulation.build(replace(parsed, system=smaller), self.clock)
        plugs, slurm = Hotplug(machine.host), HostileSlurm()
        host = plugs.wrapped()
        files = HiddenFiles(host.files, NOTHING, EACCES)
        host = replace(host, schedulers=slurm, files=cast(FileTree, files))
        hardware = Hardware(lambda: machine.nvml, host, simulated=True)
        agent = Agent(WITH_PROCESSES, hardware, self.clock, inline=True)
        self.bench = AgentBench(agent, self.clock, machine)
        self.exposition = Exposition(lambda: agent.poller.latest, self.clock.monotonic)
        self.feed = Feed(board_of(agent, hardware))
        self.hours = HourlySums(agent.diagnosis.accounts, folder)
        agent.poller.listeners += [self.feed, self.hours]
        web = folder / "web.yml"
        web.write_bytes(USERS)
        self.faults = HostileFaults(
            *(machine, plugs, agent, agent.settings, slurm),
            random=Random(seed),
            files=files,
            folder=folder,
            web=WebFile(str(web)),
        )
        with_bits(self.faults)
        self.bench.run(3)
        for gpu in machine.gpus:  # series of events that stay
            for code in XIDS:
                machine.driver.xid(gpu.index, code)
        self.whole: Series = frozenset()
        self.frozen: list[str] = []
        self.answered = 0

    async def live(self, until: float) -> list[Calm]:
        """Rounds of storm and calm until then (monotonic); the calms."""
        agent = self.bench.agent
        pages = AgentPages(self.exposition, lambda: agent.poller.latest, feed=self.feed)
        access = AccessControl(dict, tuple)
        server = await serve(pages.application([access.admit]), "127.0.0.1", 0)
        self.faults.port = server.port
        calms: list[Calm] = []
        try:
            while time.monotonic() < until or len(calms) <= WARM_UP + 1:
                await self._round()
                calms.append(self._calm())
                self.clock.advance(ASLEEP)
                print(calms[-1], flush=True)
        finally:
            started = time.monotonic()
            await server.cleanup()
            print(f"the server ended within {time.monotonic() - started:.2f} s")
        return calms

    async def _round(self) -> None:
        for tick in range(ROUND):
            if tick < STORMY:
                self.faults.strike()
            elif tick == STORMY:
                self.faults.heal()
            before = self.clock.monotonic()
            await self.bench.agent.poller.tick()
            self.bench.agent.watch.poll(0)
            if self.bench.agent.poller.latest.at < before:
                self.frozen.append(f"the tick at {before}")
            self.clock.advance(1.0)
            await asyncio.sleep(0)
            if tick % 40 == 39:
                await asyncio.wait_for(self._scrape(), 60)

    async def _scrape(self) -> None:
        """Prometheus, from another address, must be answered whatever else goes on."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.faults.port, local_addr=("127.0.0.9", 0)
        )
        with closing(writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
        if not answer.startswith(b"HTTP/1.1 200") or b"dgx_agent_last_tick" not in answer:
            self.frozen.append(f"a scrape: {answer[:60]!r}")
        self.answered += 1

    def _calm(self) -> Calm:
        shown = series_of(self.bench.agent.poller.latest)
        self.whole = self.whole or shown
        gc.collect()
        with suppress(AttributeError):  # of glibc
            ctypes.CDLL(None).malloc_trim(0)
        return Calm(
            rss=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
            used=in_use(),
            blocks=sys.getallocatedblocks(),
            threads=threading.active_count(),
            cases=sum(self.faults.struck.values()),
            odd=frozenset(name for name, *_ in shown ^ self.whole),
        )


def slope(values: Sequence[float]) -> tuple[float, float]:
    """The growth a day of values that lie a round apart (least squares), and its standard error."""
    rounds = range(len(values))
    step, begin = statistics.linear_regression(rounds, values)
    squares = sum((y - begin - step * x) ** 2 for x, y in zip(rounds, values, strict=True))
    spread = statistics.pvariance(rounds) * len(values)
    a_day = 86_400 / (ROUND + ASLEEP)
    return a_day * step, a_day * math.sqrt(squares / max(1, len(values) - 2) / spread)


def verdict(day: Day, calms: list[Calm], log: Tracebacks) -> Iterator[str]:
    warm, last = calms[WARM_UP], calms[-1]
    for what in ("rss", "used", "blocks"):
        growth, error = slope([getattr(calm, what) for calm in calms[WARM_UP:]])
        if growth - 2 * error > MOST_GROWTH * getattr(warm, what):
            yield f"{what}: {growth:,.0f} a day more, give or take {error:,.0f}"
    if last.odd and last.odd == calms[-2].odd:
        yield f"series stay new or missing: {sorted(last.odd)[:9]}"
    yield from dict.fromkeys([*day.frozen, *day.faults.wrong, *log.found])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.hostile_day")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=51)
    given = parser.parse_args()
    log = Tracebacks()
    logging.getLogger().addHandler(log)
    with tempfile.TemporaryDirectory() as folder:
        day = Day(Path(folder), given.seed)
        calms = asyncio.run(day.live(time.monotonic() + 60 * given.minutes))
        day.hours.close()
    middle = calms[len(calms) // 2]
    for name, calm in (("warm", calms[WARM_UP]), ("middle", middle), ("end", calms[-1])):
        print(f"{name:6} {calm}")
    for what in ("rss", "used", "blocks"):
        growth, error = slope([getattr(calm, what) for calm in calms[WARM_UP:]])
        print(f"{what} grows by {growth:,.0f} a day after the warm-up, standard error {error:,.0f}")
    print(f"{len(calms) * ROUND} ticks, {day.answered} scrapes, {log.lines} lines logged")
    print(dict(Counter(day.faults.struck).most_common()))
    found = list(verdict(day, calms, log))
    print("\n".join(found) or "nothing froze, nothing was opened, it has not grown")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
