"""`/api/v1/stream`: the feed as server-sent events."""

import asyncio
from typing import Protocol

from aiohttp import hdrs, web

from exporters.live.feed import Client, Feed

MOST_STREAMS = 32
"""Streams open at once; each costs next to nothing, but a mistake somewhere opens thousands."""

RETRY = b"retry: 1000\n\n"
"""Milliseconds after which a browser tries again."""

STANDING = b": no tick\n\n"
"""A comment: the connection lives, and the clock stands."""

FEED = web.AppKey("feed", Feed)

HEADERS = {
    hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8",
    hdrs.CACHE_CONTROL: "no-store",
    "X-Accel-Buffering": "no",  # proxies must not hold events back
}


async def stream(request: web.Request) -> web.StreamResponse:
    """Events until the page is closed or the agent ends."""
    feed = request.app[FEED]
    if feed.closed or feed.pages >= MOST_STREAMS:
        why = "the agent ends" if feed.closed else f"{MOST_STREAMS} pages are open, and no more may"
        return web.Response(text=f"{why}\n", status=503, headers={hdrs.RETRY_AFTER: "5"})
    response = web.StreamResponse(headers=HEADERS)
    client = Client(feed.back(request.headers.get("Last-Event-ID", "")))
    await response.prepare(request)
    if request.transport is not None:  # what the kernel holds is room enough
        request.transport.set_write_buffer_limits(high=0)
    if request.method == hdrs.METH_HEAD:
        return response
    try:
        await response.write(RETRY)
        await feed.join(client)
        await send(feed, client, response)
    except (ConnectionError, TimeoutError):
        pass  # it went away, or does not read
    finally:
        feed.leave(client)
    return response


class Writer(Protocol):
    """Protocol of the target of events."""

    async def write(self, data: bytes) -> None:
        """Send, and wait until there is room for more."""


async def send(feed: Feed, client: Client, page: Writer) -> None:
    """Send new events to a page each time that it is ready for more; raises TimeoutError if it is
    not for too long."""
    while not feed.closed:
        events = feed.news(client)
        if not events and await feed.ticked(client):
            continue
        async with asyncio.timeout(feed.deadlines):
            await page.write(b"".join(events) or STANDING)


async def close(app: web.Application) -> None:
    """End all streams, so that the server need not wait for them."""
    app[FEED].close()
