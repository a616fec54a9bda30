"""The files of the live page, from memory: read once, checked by their digest."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
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
"""What may be served; a file of any other kind is not."""

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


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file with its type, and its digest as entity tag."""

    body: bytes
    kind: str
    tag: str

    def answer(self, request: web.Request) -> web.Response:
        """The file, or that the browser has it."""
        response = web.Response(headers={**HEADERS, hdrs.CONTENT_TYPE: self.kind})
        response.etag = self.tag
        known = request.if_none_match or ()
        if any(tag.value in (self.tag, "*") for tag in known):
            response.set_status(304)
        else:
            response.body = self.body
        return response


def load(folder: Path = STATIC) -> Mapping[str, StaticFile]:
    """Every file of the page by its address; `/` is the index."""
    files = {}
    for path in sorted(folder.rglob("*")):
        kind = TYPES.get(path.suffix)
        if kind is None or not path.is_file():
            continue
        body = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        address = "/" if name == INDEX else f"/{name}"
        files[address] = StaticFile(body, kind, sha256(body).hexdigest()[:32])
    return files


def add_routes(router: web.UrlDispatcher, files: Mapping[str, StaticFile]) -> None:
    """A route for each file: what has no route cannot be asked for."""
    for address, file in files.items():
        router.add_get(address, _handler(file))


def _handler(file: StaticFile):  # type: ignore[no-untyped-def]
    async def serve_file(request: web.Request) -> web.Response:
        return file.answer(request)

    return serve_file
