"""The agent's HTTP server: metrics, health, the snapshot as JSON, the live page and its stream."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from gzip import compress

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from agent import __version__
from agent.jobs.job import WatchedJobs
from agent.model import Snapshot
from exporters.dcgm import OFF, DcgmExposition
from exporters.job_words import jobs_document
from exporters.live import page, stream
from exporters.live.feed import Feed
from exporters.negotiation import accepts_gzip
from exporters.prometheus import GZIP_LEVEL, Exposition
from exporters.scrapes import Scrapes
from exporters.snapshot_json import document

SOFTWARE = f"dgx-telemetry/{__version__}"
"""What answers call the agent: neither Python nor its version."""

JSON = "application/json; charset=utf-8"
LARGEST_REQUEST = 16 * 1024  # bytes of body: no route reads one


@dataclass(frozen=True, slots=True)
class AgentView:
    """What the handlers may ask of the agent; `awaited` answers "" or one sentence."""

    scrapes: Scrapes
    latest: Callable[[], Snapshot]
    awaited: Callable[[], str]
    jobs: Callable[[], WatchedJobs]
    hours: Callable[[], bytes]
    dcgm: Scrapes | None


AGENT = web.AppKey("agent", AgentView)


def application(
    exposition: Exposition,
    latest: Callable[[], Snapshot],
    *,
    awaited: Callable[[], str] = str,
    feed: Feed | None = None,
    jobs: Callable[[], WatchedJobs] = WatchedJobs,
    hours: Callable[[], bytes] = lambda: b'{"hours":[]}',
    dcgm: DcgmExposition | None = None,
    middlewares: Iterable[Middleware] = (),
) -> web.Application:
    """All routes. `awaited` names what is missing until ready."""
    app = web.Application(client_max_size=LARGEST_REQUEST, middlewares=middlewares)
    others = Scrapes(dcgm) if dcgm else None
    app[AGENT] = AgentView(Scrapes(exposition), latest, awaited, jobs, hours, others)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/metrics/dcgm", dcgm_handler)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/snapshot", snapshot)
    app.router.add_get("/api/v1/jobs", jobs_handler)
    app.router.add_get("/api/v1/hours", hours_handler)
    page.add_routes(app.router)
    if feed is not None:
        app[stream.FEED] = feed
        app.router.add_get("/api/v1/stream", stream.stream)
        app.on_shutdown.append(stream.close)
    app.router.add_get("/api{rest:.*}", no_such_address)
    return app


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """What every answer says, errors included."""
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers[hdrs.SERVER] = SOFTWARE


async def metrics(request: web.Request) -> web.Response:
    accept = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
    gzip = wants_gzip(request)
    body, content_type = await request.app[AGENT].scrapes.answer(accept, gzip=gzip)
    return coded(body, content_type, gzip=gzip, vary="Accept, Accept-Encoding")


async def dcgm_handler(request: web.Request) -> web.Response:
    """The names of dcgm-exporter, always in the oldest text format."""
    scrapes = request.app[AGENT].dcgm
    if scrapes is None or not scrapes.exposition.enabled:
        return web.Response(text=OFF, status=404)
    gzip = wants_gzip(request)
    body, content_type = await scrapes.answer("", gzip=gzip)
    return coded(body, content_type, gzip=gzip, vary="Accept-Encoding")


async def no_such_address(request: web.Request) -> web.Response:
    """404 with the addresses that there are."""
    found = sorted(one.canonical for one in request.app.router.resources())
    there = ", ".join(address for address in found if address.startswith("/api/"))
    return web.Response(text=f"no such address; there are {there}\n", status=404)


async def healthy(_: web.Request) -> web.Response:
    """Who answers lives: whether the machine does well is reported by metrics and alerts."""
    return web.Response(text="ok\n")


async def ready(request: web.Request) -> web.Response:
    """503 with what is missing until every read has run."""
    missing = request.app[AGENT].awaited()
    return web.Response(text=f"{missing or 'ready'}\n", status=503 if missing else 200)


async def snapshot(request: web.Request) -> web.Response:
    agent = request.app[AGENT]
    now = agent.scrapes.exposition.now
    return await answered(request, "snapshot", lambda: as_json(document(agent.latest(), now())))


async def jobs_handler(request: web.Request) -> web.Response:
    jobs = request.app[AGENT].jobs()
    return await answered(request, "jobs", lambda: as_json(jobs_document(jobs)))


async def hours_handler(request: web.Request) -> web.Response:
    """Where the GPU-seconds of the last 7 days went, hour by hour."""
    hours = request.app[AGENT].hours()
    return await answered(request, "hours", lambda: hours)


async def answered(request: web.Request, key: str, write: Callable[[], bytes]) -> web.Response:
    """JSON that is written once for all who ask at the same time, on the thread that renders."""
    gzip = wants_gzip(request)

    def written() -> bytes:
        return compress(write(), GZIP_LEVEL, mtime=0) if gzip else write()

    body = await request.app[AGENT].scrapes.work.of((key, gzip), written)
    return coded(body, JSON, gzip=gzip, vary="Accept-Encoding")


def as_json(content: object) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def wants_gzip(request: web.Request) -> bool:
    return accepts_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def coded(body: bytes, content_type: str, *, gzip: bool, vary: str) -> web.Response:
    """A body that is already compressed where `gzip` says so."""
    headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: vary}
    if gzip:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=body, headers=headers)
