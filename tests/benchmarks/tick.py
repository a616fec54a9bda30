"""Cost of one tick on the agent's own thread: `python -m tests.benchmarks.tick [OTHER CHECKOUT]`.

Eight simulated GPUs under a frozen clock, diagnosis and live history on, without a page and with
one. With another checkout its rounds alternate with those of this one, each in a process of its
own, and the difference is that of neighbours in time: what else the machine does falls on both.
Counted is what the poller does once the workers have read, and what the live page's feed does with
it; reading the simulated hardware, which is most of a tick here, is not.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from agent import simulator
from agent.cli.assembly import Agent, Hardware
from agent.cli.options import board_of
from agent.config.settings import Settings
from exporters.live.page import Client, Feed
from tests.support.frozen_clock import FrozenClock

SYSTEM = "dgx-h100:training"
WARM_UP = 65  # s: every read has run
ROOT = Path(__file__).parents[2]


class TickCost(NamedTuple):
    """CPU milliseconds of a tick."""

    no_page: float
    one_page: float


class ReadFirst:
    """Between a poller and its workers: their turns are run, unmeasured, before the tick."""

    def __init__(self, worker: object) -> None:
        self._worker = worker
        self._done: asyncio.Future[None] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._worker, name)

    def read(self) -> None:
        self._done = self._worker.start_turn()  # type: ignore[attr-defined]

    def start_turn(self) -> "asyncio.Future[None] | None":
        return self._done


def machine(
    name: str, build: Callable[[FrozenClock], simulator.SimulatedSystem] | None = None
) -> tuple[Agent, Feed, FrozenClock, list[ReadFirst], simulator.SimulatedSystem]:
    """An agent whose workers read on request, and its machine: of this name, unless it is built
    otherwise."""
    clock = FrozenClock()
    built = build(clock) if build else simulator.SimulatedSystem(simulator.parse(name), clock)
    hardware = Hardware(lambda: built.nvml, built.host, simulated=True)
    agent = Agent(Settings(), hardware, clock, inline=True)
    workers = [ReadFirst(worker) for worker in agent.poller.workers]
    agent.poller.workers = workers  # type: ignore[assignment]
    feed = Feed(board_of(agent, hardware))
    agent.poller.listeners.append(feed)
    return agent, feed, clock, workers, built


async def measure(name: str, ticks: int, warm_up: int) -> TickCost:
    """Both cases on one machine."""
    agent, feed, clock, workers, _ = machine(name)

    async def play(seconds: int, client: Client | None = None) -> float:
        costs = []
        for _ in range(seconds):
            for worker in workers:
                worker.read()
            began = time.thread_time()
            await agent.poller.tick()
            if client is not None:
                feed.news(client)
            costs.append((time.thread_time() - began) * 1e3)
            clock.advance(1.0)
            await asyncio.sleep(0)  # a refresh, where one is due, runs elsewhere
        return quantiles(costs, n=4)[0]

    await play(warm_up)
    gc.collect()
    gc.freeze()  # as the agent does once it is built
    no_page = await play(ticks)
    client = Client()
    feed.clients.add(client)
    one_page = await play(ticks, client)
    return TickCost(no_page, one_page)


ONE_ROUND = """
import asyncio, json, sys
from statistics import fmean
from tests.benchmarks import tick
tick.quantiles = lambda costs, n: [fmean(sorted(costs)[: len(costs) * 19 // 20])]
name, ticks, warm_up = sys.argv[1:]
print(json.dumps(asyncio.run(tick.measure(name, int(ticks), int(warm_up)))))
"""
"""One round by the benchmark of the checkout itself, which may be older than this one. What is done
in one of five ticks counts: the mean, without the twentieth in which others took the caches."""


def elsewhere(checkout: Path, arguments: argparse.Namespace) -> TickCost:
    """One round in a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
    command = [
        sys.executable,
        "-c",
        ONE_ROUND,
        arguments.system,
        str(arguments.ticks),
        str(WARM_UP),
    ]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=True
    )
    return TickCost(*json.loads(done.stdout))


def lines(arguments: argparse.Namespace) -> Iterator[str]:
    """The medians of all rounds, a checkout a line, and the median difference of the pairs."""
    checkouts = [path for path in (ROOT, arguments.other) if path is not None]
    rounds = [[elsewhere(path, arguments) for path in checkouts] for _ in range(arguments.rounds)]
    yield f"{'CPU ms a tick, ' + arguments.system:40}{'no page':>10}{'one page':>10}"
    for place, path in enumerate(checkouts):
        columns = zip(*(one[place] for one in rounds), strict=True)
        costs = TickCost(*map(median, columns))
        yield f"{path!s:40}{costs.no_page:10.3f}{costs.one_page:10.3f}"
    if arguments.other:
        pairs = [[a - b for a, b in zip(mine, its, strict=True)] for mine, its in rounds]
        differences = TickCost(*(median(column) for column in zip(*pairs, strict=True)))
        yield f"{'difference':40}{differences.no_page:+10.3f}{differences.one_page:+10.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="another checkout to compare with")
    parser.add_argument("--system", default=SYSTEM)
    parser.add_argument("--ticks", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for line in lines(arguments):
        print(line, flush=True)


if __name__ == "__main__":
    main()
