"""The files of the live page."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from aiohttp import hdrs, web

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"

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
    hdrs.CACHE_CONTROL: "no-cache",  # ask each time: the answer is mostly 304
}


def files(folder: Path = STATIC) -> Mapping[str, Path]:
    """Every file of the page by its address; `/` is the index."""
    served = (path for path in sorted(folder.iterdir()) if path.suffix in TYPES)
    return {"/" if path.name == INDEX else f"/{path.name}": path for path in served}


def add_routes(router: web.UrlDispatcher) -> None:
    """A route for each file: what has no route cannot be asked for."""
    for address, path in files().items():
        router.add_get(address, partial(serve_file, path))


async def serve_file(path: Path, _: web.Request) -> web.FileResponse:
    """The file, or that the browser has it."""
    return web.FileResponse(path, headers={**HEADERS, hdrs.CONTENT_TYPE: TYPES[path.suffix]})
