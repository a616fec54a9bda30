"""The routes of the agent's HTTP server: metrics, health, JSON, live page, and stream."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from gzip import compress
from typing import Any, TypeVar

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from msgspec.json import encode

from agent import __version__
from agent.errors import BadInput
from agent.jobs.job import WatchedJobs
from agent.model import Snapshot
from exporters.access_control import AccessControl
from exporters.dcgm import DCGM_OFF, DcgmExposition
from exporters.documents import document, jobs_document
from exporters.live import page
from exporters.live.page import Feed
from exporters.prometheus import GZIP_LEVEL, Exposition, accepts, negotiate

SOFTWARE = f"dgx-telemetry/{__version__}"
"""Value of the Server header, without the version of Python."""

T = TypeVar("T")
JSON = "application/json; charset=utf-8"


@dataclass(eq=False)
class AgentPages:
    """The handlers of all routes, and the data that they serve. `awaited` returns the names of the
    reads that have not run yet, or an empty string."""

    exposition: Exposition
    latest: Callable[[], Snapshot]
    _: KW_ONLY
    awaited: Callable[[], str] = str
    status: Callable[[], bytes] | None = None
    feed: Feed | None = None
    jobs: Callable[[], WatchedJobs] = WatchedJobs
    hours: Callable[[], bytes] = lambda: b'{"hours":[]}'
    dcgm: DcgmExposition | None = None
    thread: ThreadPoolExecutor = field(  # a single thread for all clients, because of the GIL
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")
    )

    def application(self, middlewares: Iterable[Middleware] = ()) -> web.Application:
        app = web.Application(middlewares=middlewares)
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/dcgm", self._dcgm)
        app.router.add_get("/-/healthy", _healthy)
        app.router.add_get("/-/ready", partial(ready, self.awaited))
        latest, now = self.latest, self.exposition.now
        snapshot = self._written(lambda: latest, lambda of: encode(document(of(), now())))
        app.router.add_get("/api/v1/snapshot", snapshot)
        if self.status is not None:
            app.router.add_get("/api/v1/status", self._written(self.status, bytes))
        jobs = self._written(self.jobs, lambda jobs: encode(jobs_document(jobs)))
        app.router.add_get("/api/v1/jobs", jobs)
        app.router.add_get("/api/v1/hours", self._written(self.hours, bytes))
        if self.feed is not None:
            app.router.add_get("/api/v1/stream", partial(page.stream, self.feed))
            app.on_shutdown.append(self.feed.close)
        app.router.add_get("/api{rest:.*}", _no_such_address)
        page.add_routes(app.router, self.feed)
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
        answer = await self._exposed(request, self.exposition, accept, "Accept, Accept-Encoding")
        agent = request.headers.get(hdrs.USER_AGENT)
        self.exposition.default.answered(f"{request.remote} {agent}")
        return answer

    async def _dcgm(self, request: web.Request) -> web.Response:
        """Serve metrics with the names of dcgm-exporter, always in Prometheus text format."""
        if self.dcgm is None or not self.dcgm.enabled:
            return web.Response(text=DCGM_OFF, status=404)
        return await self._exposed(request, self.dcgm, "", "Accept-Encoding")

    async def _exposed(
        self, request: web.Request, exposition: Exposition, accept: str, vary: str
    ) -> web.Response:
        """Return a response with this tick's exposition, which is rendered once for all clients."""
        found = await self._rendered(partial(exposition.page, accept))
        gzip = wants_gzip(request)
        body = found.zipped if gzip else found.plain
        return coded(body, negotiate(accept), gzip=gzip, vary=vary)

    async def _rendered(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    def _written(self, take: Callable[[], T], write: Callable[[T], bytes]) -> Handler:
        """Return a handler that calls `take` in the event loop, the only thread that may read
        samples. The handler then encodes the result with `write` on the rendering thread."""

        async def answer(request: web.Request) -> web.Response:
            gzip = wants_gzip(request)
            body = await self._rendered(partial(write, take()))
            if gzip:
                body = await self._rendered(partial(compress, body, GZIP_LEVEL, mtime=0))
            return coded(body, JSON, gzip=gzip, vary="Accept-Encoding")

        return answer


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, web.FileResponse):  # revalidated on every load, usually with status 304
        response.headers.update({**page.HEADERS, hdrs.CACHE_CONTROL: "no-cache"})
    if response.content_type.startswith("text/") and not response.charset:
        response.charset = "utf-8"
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers[hdrs.SERVER] = SOFTWARE


async def _healthy(_: web.Request) -> web.Response:
    """Respond with `ok` as long as the agent runs, even if the machine has faults."""
    return web.Response(text="ok\n")


async def ready(awaited: Callable[[], str], _: web.Request) -> web.Response:
    """Respond with status 503 until all reads have run once, and list those that have not."""
    missing = awaited()
    return web.Response(text=f"{missing or 'ready'}\n", status=503 if missing else 200)


async def _no_such_address(request: web.Request) -> web.Response:
    found = sorted(one.canonical for one in request.app.router.resources())
    there = ", ".join(address for address in found if address.startswith("/api/"))
    return web.Response(text=f"no such address; there are {there}\n", status=404)


def wants_gzip(request: web.Request) -> bool:
    return accepts(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())), "gzip")


def coded(body: bytes, content_type: str, *, gzip: bool, vary: str) -> web.Response:
    """Return a response with these headers. If `gzip` is true, `body` is already compressed."""
    headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: vary}
    if gzip:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=body, headers=headers)


def target_application(
    read: Callable[[], list[dict[str, Any]]], access: AccessControl
) -> web.Application:
    """Return an application that serves targets for Prometheus' `http_sd` at `/targets`. Each
    request calls `read` on a separate thread. If `read` raises BadInput, the response has status
    503 and contains the reason. Prometheus then keeps its previous targets."""
    reading = asyncio.Lock()  # clients wait, so at most one command can hang

    async def answer(_: web.Request) -> web.Response:
        async with reading:
            try:
                found = await asyncio.to_thread(read)
            except BadInput as error:
                return web.Response(text=f"{error}\n", status=503)
        return web.Response(body=encode(found), headers={hdrs.CONTENT_TYPE: "application/json"})

    app = web.Application(middlewares=[access.admit])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/targets", answer)
    return app
