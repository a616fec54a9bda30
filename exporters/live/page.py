"""The files of the live page."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aiohttp import hdrs, web

from exporters.live.feed import Feed

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PLACE = '<script type="application/json" id="first">'
"""Where the index holds what the stream would send first, so that it is whole without waiting."""

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
"""Kinds of files that may be served; all others are not."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
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
    """A route for each file: what has no route cannot be asked for."""
    for address, path in files().items():
        if address == "/" and feed is not None:
            router.add_get(address, partial(_serve_index, path.read_text(encoding="utf-8"), feed))
        else:
            router.add_get(address, partial(_serve_file, path))


async def _serve_index(text: str, feed: Feed, _: web.Request) -> web.Response:
    whole = text.replace(PLACE, f"{PLACE}{await feed.first()}")
    return web.Response(body=whole.encode(), headers=_headers(Path(INDEX)))  # never stored


async def _serve_file(path: Path, _: web.Request) -> web.FileResponse:
    again = {hdrs.CACHE_CONTROL: "no-cache"}  # asked for each time: the answer is mostly 304
    return web.FileResponse(path, headers=_headers(path) | again)


def _headers(path: Path) -> dict[str, str]:
    return {**HEADERS, hdrs.CONTENT_TYPE: TYPES[path.suffix]}
