"""The stream over real HTTP: reconnecting, slow and many pages, a clock that stands, the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.web import StreamResponse

from agent.model import Snapshot
from exporters.http import AgentPages
from exporters.live.page import MOST_STREAMS, STANDING, Client, Feed, send
from exporters.prometheus import Exposition
from exporters.server import Server, serve
from tests.support.patience import PATIENCE
from tests.support.statuses import Shown, shown


class Event(NamedTuple):
    """One server-sent event, or a comment."""

    name: str
    data: dict[str, Any]


@dataclass
class Page:
    """A reader of the stream."""

    response: ClientResponse
    events: list[Event] = field(default_factory=list)
    comments: int = 0

    async def next(self) -> Event:
        """The next event; comments are counted on the way."""
        fields: dict[str, str] = {}
        while True:
            line = await asyncio.wait_for(self.response.content.readline(), PATIENCE)
            assert line, "the stream ended"
            text = line.decode().rstrip("\n")
            if not text and "data" in fields:
                break
            name, _, value = text.partition(": ")
            self.comments += text.startswith(":")
            fields[name] = value
        event = Event(fields["event"], json.loads(fields["data"]))
        self.events.append(event)
        return event

    async def until(self, name: str) -> Event:
        while (event := await self.next()).name != name:
            pass
        return event


@dataclass
class LivePageBench:
    """A server with a feed whose ticks the test plays."""

    machine: Shown
    feed: Feed
    server: Server
    session: ClientSession
    address: str
    last: Snapshot
    opened: list[ClientResponse] = field(default_factory=list)

    def play(self, ticks: int = 1) -> Snapshot:
        """So many ticks in which nothing new was read; the last of them."""
        for _ in range(ticks):
            self.last = after(self.last)
            self.hear(self.last)
        return self.last

    def hear(self, snapshot: Snapshot) -> None:
        """Let the board take in a tick, then the feed."""
        self.machine.board(snapshot)
        self.feed(snapshot)

    async def open(self) -> Page:
        response = await self.session.get(f"{self.address}/api/v1/stream")
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        self.opened.append(response)
        return Page(response)

    async def pages(self, number: int) -> None:
        """Wait until so many pages are open."""
        async with asyncio.timeout(PATIENCE):
            while len(self.feed.clients) != number:  # noqa: ASYNC110, no one reports
                await asyncio.sleep(0.005)


def after(snapshot: Snapshot) -> Snapshot:
    """The same readings a second later: fresh enough for a while."""
    return Snapshot(snapshot.tick + 1, snapshot.at + 1, snapshot.wall + 1, snapshot.readings)


@asynccontextmanager
async def bench(name: str = "k40:training", **feed_of: Any) -> AsyncIterator[LivePageBench]:
    machine = await asyncio.to_thread(lambda: shown(name).run(5))
    last = await asyncio.to_thread(machine.tick)
    feed = Feed(machine.board, **{"keepalive": 0.1, **feed_of})  # who is gone is found by writing
    poller, clock = machine.bench.agent.poller, machine.bench.clock
    exposition = Exposition(lambda: poller.latest, clock.monotonic, process=False)
    app = AgentPages(exposition, lambda: poller.latest, feed=feed).application()
    server = await serve(app, "127.0.0.1:0")
    port = server.addresses[0][1]
    try:
        async with ClientSession() as session:
            feed(last)
            there = LivePageBench(machine, feed, server, session, f"http://127.0.0.1:{port}", last)
            yield there
            for response in there.opened:
                response.close()
    finally:
        await server.cleanup()


async def test_a_page_gets_all_at_once_and_then_each_tick() -> None:
    async with bench() as there:
        page = await there.open()
        assert [(await page.next()).name for _ in range(2)] == ["history", "status"]
        history, tick = page.events
        assert history.data["whole"]
        assert history.data["newest"] == tick.data["second"] == 5
        assert tick.data["gpus"][0]["state"] == "busy"
        for _ in range(3):
            played_tick = there.play().tick
            event = await page.next()
            assert (event.name, event.data["tick"]) == ("status", played_tick)


async def test_a_page_that_is_slow_skips_ticks_and_then_has_its_history() -> None:
    async with bench() as there:
        slow, quick, also = clients = Client(), Client(), Client()
        for client in clients:
            there.feed.clients.add(client)
            there.feed.news(client)
        for _ in range(20):
            there.play()
            assert there.feed.news(quick) == there.feed.news(also)
        events = [event.split(b"\n")[0] for event in there.feed.news(slow)]
        assert events == [b"event: history", b"event: status"]
        assert there.feed.news(slow) == []


async def test_a_page_that_does_not_read_delays_nothing_else() -> None:
    async with bench("dgx-1-v100:training") as there:
        _, port = there.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port), limit=1024)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await there.pages(1)
        page = await there.open()
        await page.until("status")
        for _ in range(50):
            tick = there.play().tick
            assert (await page.until("status")).data["tick"] == tick
        assert len(there.feed.clients) == 2
        writer.close()


class Stuck(StreamResponse):
    """A page whose buffers are full until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.taken = asyncio.Event(), list[bytes]()

    async def write(self, data: bytes) -> None:  # type: ignore[override]
        self.taken.append(data)
        await self.free.wait()


def names_of(data: bytes) -> list[str]:
    lines = data.decode().splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


async def test_nothing_is_kept_for_a_page_that_does_not_read() -> None:
    async with bench() as there:
        client, page = Client(), Stuck()
        there.feed.clients.add(client)
        sending = asyncio.create_task(send(there.feed, client, page))
        for _ in range(100):
            there.play()
            await asyncio.sleep(0)
        assert [names_of(data) for data in page.taken] == [["history", "status"]]
        page.free.set()
        async with asyncio.timeout(PATIENCE):
            while len(page.taken) < 2:  # noqa: ASYNC110, no one reports
                await asyncio.sleep(0)
        first, *_, last = names_of(page.taken[1])
        assert (first, last) == ("history", "status")
        assert names_of(page.taken[1]).count("status") == 1
        assert f'"tick":{there.last.tick},'.encode() in page.taken[1]
        await there.feed.close()
        await asyncio.wait_for(sending, PATIENCE)


async def test_a_page_that_never_reads_is_given_up() -> None:
    async with bench(deadlines=0.01) as there:
        client = Client()
        there.feed.clients.add(client)
        with pytest.raises(TimeoutError):
            await send(there.feed, client, Stuck())


async def test_pages_are_bounded_in_number() -> None:
    async with bench() as there:
        pages = [await there.open() for _ in range(MOST_STREAMS)]
        await there.pages(MOST_STREAMS)
        for page in pages:
            await page.until("status")
        async with there.session.get(f"{there.address}/api/v1/stream") as refused:
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "5"
            assert str(MOST_STREAMS) in await refused.text()
        tick = there.play().tick
        assert {(await page.next()).data["tick"] for page in pages} == {tick}
        for page in pages[1:]:
            page.response.close()
        there.play()  # who is gone is found out when written to
        await there.pages(1)
        await (await there.open()).until("status")


async def test_a_clock_that_stands_is_reported_by_a_heartbeat() -> None:
    async with bench() as there:
        page = await there.open()
        await page.until("status")
        async with asyncio.timeout(PATIENCE):
            while (await page.response.content.readline()) != b": no tick\n":
                pass
        there.play()
        await page.until("status")


async def test_the_end_of_the_agent_ends_every_stream_at_once() -> None:
    async with bench() as there:
        pages = [await there.open() for _ in range(3)]
        for page in pages:
            await page.until("status")
        there.server._shutdown_timeout = 600.0  # were it to wait for the streams
        async with asyncio.timeout(PATIENCE):
            await there.server.cleanup()
        for page in pages:
            rest = await page.response.content.read()  # ends; a comment may have been on its way
            assert rest.replace(STANDING, b"") == b""
        assert len(there.feed.clients) == 0


async def test_an_index_has_what_the_stream_sends_first() -> None:
    async with bench() as there:
        there.play()
        text = there.feed.first()
        assert [name for name, _ in json.loads(text)] == ["history", "status"]
        assert there.feed.first() is text, "made once a tick"
        assert len(there.feed.clients) == 0


async def test_news_is_shown_within_ten_ticks() -> None:
    async with bench() as there:
        page = await there.open()
        tick = (await page.until("status")).data
        assert (tick["level"], tick["findings"]) == ("good", [])
        there.machine.bench.machine.driver.xid(0, 48)
        first = there.machine.board.tick
        async with asyncio.timeout(PATIENCE):
            while not tick["findings"]:
                there.feed(await asyncio.to_thread(there.machine.tick))
                tick = (await page.until("status")).data
        assert tick["level"] == "critical"
        assert tick["tick"] - first < 10


async def test_a_page_that_opens_before_the_first_tick_waits_for_it() -> None:
    machine, client = shown("k40:training"), Client()
    early = Feed(machine.board)
    early.clients.add(client)
    assert early.news(client) == []
    await asyncio.to_thread(machine.tick)
    assert len(early.news(client)) == 2


async def test_asking_for_the_head_opens_nothing() -> None:
    async with bench() as there:
        async with there.session.head(f"{there.address}/api/v1/stream") as response:
            assert response.status == 200
        assert len(there.feed.clients) == 0
