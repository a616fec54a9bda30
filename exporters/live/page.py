"""The static files of the live page, and the stream of events at `/api/v1/stream`."""

import asyncio
from functools import partial
from pathlib import Path

from aiohttp import hdrs, web

from exporters.live.feed import Client, Feed

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
