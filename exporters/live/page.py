"""The static files of the live page, and the stream of events at `/api/v1/stream`: first the
history, and then the status of each tick."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import hdrs, web

from agent.model import Snapshot
from agent.status.build import StatusBoard


def event(name: str, data: bytes) -> bytes:
    """Return a server-sent event in its wire format."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


@dataclass(slots=True, eq=False)
class Client:
    """An open page, and which second of the history and which tick it received last. Events are
    created only when the page can receive them, so a slow page has no growing queue."""

    second: int | None = None  # last second of history that was sent
    tick: int = -1


@dataclass(slots=True, eq=False)
class Feed:
    """Provides events for all pages. The poller calls it on every tick, after the status board."""

    board: StatusBoard
    keepalive: float = 5.0  # s without a tick before a keepalive is sent
    deadlines: float = 30.0  # s within which a page must read its data
    closed: bool = False
    clients: set[Client] = field(default_factory=set)  # open pages
    _ticked: asyncio.Event = field(default_factory=asyncio.Event)
    _first: tuple[int, str] = (-1, "[]")  # a tick and its initial events

    def __call__(self, _: Snapshot) -> None:
        """Wake up all streams that wait for a tick."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    def first(self) -> str:
        """Return the first events for a page as JSON that is safe in HTML: `[[name, data]]`."""
        if self._first[0] != self.board.tick:
            parts = (("history", self._history(None)), ("status", self.board.json()))
            pairs = ",".join(f'["{name}",{data.decode()}]' for name, data in parts)
            self._first = self.board.tick, f"[{pairs}]".replace("<", "\\u003c")
        return self._first[1]

    def _history(self, since: int | None) -> bytes:
        return msgspec.json.encode(self.board.history.document(since))

    async def close(self, _: object = None) -> None:
        """End all streams, so that the agent's shutdown does not wait for them."""
        self.closed = True
        self._ticked.set()

    async def ticked(self, client: Client) -> bool:
        """Wait for a tick that the client has not received. Return False after a timeout."""
        if self.closed or self.board.tick != client.tick:
            return True
        try:
            async with asyncio.timeout(self.keepalive):
                await self._ticked.wait()
        except TimeoutError:
            return False
        return True

    def news(self, client: Client) -> list[bytes]:
        """Return the events that the client has not received yet, and mark them as sent."""
        if self.board.tick == client.tick or self.board.tick < 0:
            return []
        events, newest = [], self.board.history.newest
        if client.second is None or newest is None or newest - client.second not in (0, 1):
            events.append(event("history", self._history(client.second)))
        events.append(event("status", self.board.json()))
        client.second, client.tick = newest, self.board.tick
        return events


STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PLACE = '<script type="application/json" id="first">'
"""The server inserts the first events after this HTML tag, so that the page starts with data."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def add_routes(router: web.UrlDispatcher, feed: Feed | None) -> None:
    """Add routes for the index and the other files of the page. Browsers do not cache the index."""
    index = STATIC / INDEX
    text = index.read_text(encoding="utf-8")  # now: later, a disk may hang
    router.add_get("/", partial(_serve_index, text, feed) if feed else partial(_serve_file, index))
    for path in STATIC.iterdir():
        router.add_get(f"/{path.name}", partial(_serve_file, path))


async def _serve_file(path: Path, _: web.Request) -> web.FileResponse:
    return web.FileResponse(path)


async def _serve_index(text: str, feed: Feed, _: web.Request) -> web.Response:
    text = text.replace(PLACE, f"{PLACE}{feed.first()}")
    return web.Response(text=text, content_type="text/html", headers=HEADERS)


MOST_STREAMS = 32
"""Maximum number of open event streams. A faulty client may open thousands."""

STANDING = b": no tick\n\n"
"""A server-sent comment that keeps the connection open while there are no ticks."""


async def stream(feed: Feed, request: web.Request) -> web.StreamResponse:
    """Respond with a stream of events until the client disconnects or the agent shuts down."""
    if feed.closed or len(feed.clients) >= MOST_STREAMS:
        why = "the agent ends" if feed.closed else f"{MOST_STREAMS} pages are open, and no more may"
        return web.Response(text=f"{why}\n", status=503, headers={hdrs.RETRY_AFTER: "5"})
    response = web.StreamResponse()
    response.content_type, response.charset = "text/event-stream", "utf-8"
    response.headers["X-Accel-Buffering"] = "no"  # proxies must not buffer events
    client = Client()
    await response.prepare(request)
    if request.transport is not None:  # the kernel's buffer is sufficient
        request.transport.set_write_buffer_limits(high=0)
    if request.method == hdrs.METH_HEAD:
        return response
    try:
        await response.write(b"retry: 1000\n\n")  # ms after which a browser reconnects
        feed.clients.add(client)
        await send(feed, client, response)
    except (ConnectionError, TimeoutError):
        pass  # the client disconnected or does not read
    finally:
        feed.clients.discard(client)
    return response


async def send(feed: Feed, client: Client, page: web.StreamResponse) -> None:
    """Send new events when there are any. Raise TimeoutError if the client reads them too late."""
    while not feed.closed:
        events = feed.news(client)
        if not events and await feed.ticked(client):
            continue
        async with asyncio.timeout(feed.deadlines):
            await page.write(b"".join(events) or STANDING)
