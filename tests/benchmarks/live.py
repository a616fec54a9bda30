"""Cost of the live page for the agent, in CPU ms a tick: `python -m tests.benchmarks.live`.

A simulated machine, its ticks played to the feed as the poller does, and pages that read the stream
over HTTP: none, one, and more. What the poller itself and the readers do is not counted.
"""

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from aiohttp import web

from agent.cli.assembly import Hardware
from agent.cli.options import view_of
from agent.model import Snapshot
from exporters.live.feed import Feed
from exporters.live.findings_document import findings_document
from exporters.live.page import FEED, stream
from tests.support import machines
from tests.support.machines import AgentBench

WARM_UP = 65  # s: every read has run
TICKS = 60
PAGES = 9
SYSTEMS = ("k40", "dgx-station-v100", "dgx-1-v100", "dgx-h100")
GOAL, GOAL_AT_REST = 1.0, 0.1  # ms a tick, with a page open and without


class Cost(NamedTuple):
    """CPU milliseconds a tick; `quiet` is the cheapest tenth of the ticks, in which no one else
    took the caches and the cores of this machine."""

    unwatched: float  # no page open: the history alone
    quiet_unwatched: float
    page: float  # with one page, its share of the refreshes included
    quiet_page: float
    further: float  # each further page


def feed_of(bench: AgentBench) -> Feed:
    """A feed over a simulated machine; it hears of no tick by itself."""
    hardware = Hardware(lambda: bench.machine.nvml, bench.machine.host, simulated=True)
    return Feed(view_of(bench.agent, hardware))


def tick_of(bench: AgentBench) -> Snapshot:
    """Play one tick; what was read in it."""
    heard: list[Snapshot] = []
    bench.agent.poller.listeners[:] = [heard.append]
    bench.run(1)
    return heard[0]


@dataclass
class Pages:
    """Pages that read whatever they are sent, on a thread of their own."""

    port: int
    sockets: list[socket.socket] = field(default_factory=list)
    readers: list[threading.Thread] = field(default_factory=list)

    def open(self, number: int) -> None:
        for _ in range(number):
            page = socket.create_connection(("127.0.0.1", self.port))
            page.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: bench\r\n\r\n")
            self.sockets.append(page)
            self.readers.append(threading.Thread(target=drain, args=(page,), daemon=True))
            self.readers[-1].start()

    def close(self) -> None:
        for page, reader in zip(self.sockets, self.readers, strict=True):
            page.shutdown(socket.SHUT_RDWR)
            reader.join()


def drain(page: socket.socket) -> None:
    room = bytearray(1 << 16)
    with page, contextlib.suppress(OSError):
        while page.recv_into(room):
            pass


async def play(bench: AgentBench, feed: Callable[[Snapshot], None], ticks: int) -> list[float]:
    """Milliseconds that the loop's thread worked in each tick; refreshes run on others."""
    loop, costs = asyncio.get_running_loop(), []
    for _ in range(ticks):
        snapshot = await loop.run_in_executor(None, tick_of, bench)
        began = time.thread_time()
        feed(snapshot)
        await asyncio.sleep(0.02)  # so that the streams are written
        costs.append((time.thread_time() - began) * 1e3)
    return costs


async def measure(name: str, ticks: int, warm_up: int) -> Cost:
    """All cases of one machine."""
    loop = asyncio.get_running_loop()
    bench = await loop.run_in_executor(None, lambda: machines.simulated(name).run(warm_up))
    feed = feed_of(bench)
    app = web.Application()
    app[FEED] = feed
    app.router.add_get("/api/v1/stream", stream)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    pages = Pages(runner.addresses[0][1])
    bare = await play(bench, lambda _: None, ticks)  # what the bench itself costs
    idle = await play(bench, feed, ticks)
    pages.open(1)
    await opened(feed, 1)
    before = feed.refreshes
    one = await play(bench, feed, ticks)
    refreshes = (feed.refreshes - before) / ticks * look_cost(feed)
    pages.open(PAGES - 1)
    await opened(feed, PAGES)
    many = await play(bench, feed, ticks)
    pages.close()
    feed.close()
    await runner.cleanup()
    return Cost(
        median(idle) - median(bare),
        cheap(idle) - cheap(bare),
        median(one) - median(bare) + refreshes,
        cheap(one) - cheap(bare) + refreshes,
        (median(many) - median(one)) / (PAGES - 1),
    )


def cheap(costs: list[float]) -> float:
    """The cheapest tenth."""
    return sorted(costs)[len(costs) // 10]


async def opened(feed: Feed, number: int) -> None:
    while feed.pages < number:  # noqa: ASYNC110, no one says when a page is open
        await asyncio.sleep(0.01)


def look_cost(feed: Feed) -> float:
    """Milliseconds of one refresh."""
    costs = []
    for _ in range(10):
        began = time.thread_time()
        findings_document(feed.view)
        costs.append((time.thread_time() - began) * 1e3)
    return median(costs)


def lines(systems: Iterable[str], ticks: int = TICKS, warm_up: int = WARM_UP) -> Iterator[str]:
    """The table, a machine a line."""
    heads = f"{'no page':>9}{'(quiet)':>9}{'one page':>10}{'(quiet)':>9}{'further':>9}"
    yield f"{'CPU ms a tick':18}{heads}"
    for name in systems:
        cost = asyncio.run(measure(name, ticks, warm_up))
        unwatched = f"{cost.unwatched:9.3f}{cost.quiet_unwatched:9.3f}"
        yield f"{name:18}{unwatched}{cost.page:10.3f}{cost.quiet_page:9.3f}{cost.further:9.3f}"
    yield f"{'goal':18}{GOAL_AT_REST:9.3f}{'':9}{GOAL:10.3f}"


if __name__ == "__main__":
    for line in lines(sys.argv[1:] or SYSTEMS):
        print(line, flush=True)
