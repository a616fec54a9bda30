"""The files of the live page, and `/api/v1/stream`: the feed as server-sent events."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aiohttp import hdrs, web

from exporters.live.feed import Client, Feed

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PLACE = '<script type="application/json" id="first">'
"""Place in the index for the first events: the page is complete without waiting."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Kinds of files that may be served; all others are not."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def files(folder: Path = STATIC) -> Mapping[str, Path]:
    """Every file of the page by its address; `/` is the index."""
    served = (path for path in sorted(folder.iterdir()) if path.suffix in TYPES)
    return {"/" if path.name == INDEX else f"/{path.name}": path for path in served}


def add_routes(router: web.UrlDispatcher, feed: Feed | None) -> None:
    """A route for each file: a file without a route is not served."""
    for address, path in files().items():
        kind = HEADERS | {hdrs.CONTENT_TYPE: TYPES[path.suffix]}
        if address == "/" and feed is not None:
            router.add_get("/", partial(_serve_index, path.read_text(encoding="utf-8"), feed, kind))
        else:  # asked for each time: the answer is mostly 304
            headers = kind | {hdrs.CACHE_CONTROL: "no-cache"}
            router.add_get(address, partial(_serve_file, path, headers))


async def _serve_index(
    text: str, feed: Feed, headers: Mapping[str, str], _: web.Request
) -> web.Response:
    whole = text.replace(PLACE, f"{PLACE}{feed.first()}")
    return web.Response(body=whole.encode(), headers=headers)  # never stored


async def _serve_file(path: Path, headers: Mapping[str, str], _: web.Request) -> web.FileResponse:
    return web.FileResponse(path, headers=headers)


MOST_STREAMS = 32
"""Streams open at once; each costs next to nothing, but a mistake may open thousands."""

RETRY_LINE = b"retry: 1000\n\n"
"""Milliseconds after which a browser tries again."""

STANDING = b": no tick\n\n"
"""A comment that shows a live connection while the clock stands."""

FEED = web.AppKey("feed", Feed)

STREAM_HEADERS = {
    hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8",
    hdrs.CACHE_CONTROL: "no-store",
    "X-Accel-Buffering": "no",  # proxies must not hold events back
}


async def stream(request: web.Request) -> web.StreamResponse:
    """Send events until the page is closed or the agent ends."""
    feed = request.app[FEED]
    if feed.closed or feed.pages >= MOST_STREAMS:
        why = "the agent ends" if feed.closed else f"{MOST_STREAMS} pages are open, and no more may"
        return web.Response(text=f"{why}\n", status=503, headers={hdrs.RETRY_AFTER: "5"})
    response = web.StreamResponse(headers=STREAM_HEADERS)
    client = Client(feed.back(request.headers.get("Last-Event-ID", "")))
    await response.prepare(request)
    if request.transport is not None:  # the kernel's buffer is room enough
        request.transport.set_write_buffer_limits(high=0)
    if request.method == hdrs.METH_HEAD:
        return response
    try:
        await response.write(RETRY_LINE)
        feed.join(client)
        await send(feed, client, response)
    except (ConnectionError, TimeoutError):
        pass  # it went away, or does not read
    finally:
        feed.leave(client)
    return response


async def send(feed: Feed, client: Client, page: web.StreamResponse) -> None:
    """Send new events to a page each time that it is ready for more; raises TimeoutError if it
    stays unready for too long."""
    while not feed.closed:
        events = feed.news(client)
        if not events and await feed.ticked(client):
            continue
        async with asyncio.timeout(feed.deadlines):
            await page.write(b"".join(events) or STANDING)


async def close(app: web.Application) -> None:
    """End all streams, so that the server need not wait for them."""
    app[FEED].close()
