"""The agent's HTTP server: metrics, health, the snapshot as JSON, and a page that links them."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from gzip import compress

from aiohttp import hdrs, web

from agent import __version__
from agent.clock import Clock
from agent.model import Snapshot
from exporters import landing
from exporters.negotiation import accepts_gzip
from exporters.prometheus import GZIP_LEVEL, Exposition
from exporters.snapshot_json import document

LARGEST_REQUEST = 16 * 1024  # bytes of body: no route reads one
KEEP_ALIVE = 75.0  # s: longer than any usual scrape interval
FAREWELL = 3.0  # s that requests in flight get when the agent ends


def nothing() -> str:
    """The answer of a probe that has nothing to complain of."""
    return ""


@dataclass(frozen=True, slots=True)
class Agent:
    """What the handlers may ask of the agent; the two probes answer "" or one sentence."""

    exposition: Exposition
    latest: Callable[[], Snapshot]
    clock: Clock
    awaited: Callable[[], str]
    ailing: Callable[[], str]
    version: str


AGENT = web.AppKey("agent", Agent)


def application(
    exposition: Exposition,
    latest: Callable[[], Snapshot],
    clock: Clock,
    *,
    awaited: Callable[[], str] = nothing,
    ailing: Callable[[], str] = nothing,
    version: str = __version__,
) -> web.Application:
    """All routes. `awaited` names what is missing until ready, `ailing` what is beyond repair."""
    app = web.Application(client_max_size=LARGEST_REQUEST)
    app[AGENT] = Agent(exposition, latest, clock, awaited, ailing, version)
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", root)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/api/v1/snapshot", snapshot)
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; the caller ends it with `cleanup()`. Raises OSError where it cannot listen."""
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=KEEP_ALIVE, shutdown_timeout=FAREWELL
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """What every answer says, errors included."""
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers[hdrs.SERVER] = f"dgx-telemetry/{request.app[AGENT].version}"


async def root(request: web.Request) -> web.Response:
    headers = {
        "Content-Security-Policy": landing.policy(),
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }
    page = landing.page(request.app[AGENT].version)
    return web.Response(text=page, content_type="text/html", headers=headers)


async def metrics(request: web.Request) -> web.Response:
    exposition = request.app[AGENT].exposition
    accept = ",".join(request.headers.getall(hdrs.ACCEPT, ()))
    gzip = wants_gzip(request)
    answer = exposition.cached(accept, gzip=gzip)
    if answer is None:
        answer = await asyncio.to_thread(exposition.render, accept, gzip=gzip)
    body, content_type = answer
    return coded(body, content_type, gzip=gzip, vary="Accept, Accept-Encoding")


async def healthy(request: web.Request) -> web.Response:
    return verdict(request.app[AGENT].ailing(), "ok")


async def ready(request: web.Request) -> web.Response:
    return verdict(request.app[AGENT].awaited(), "ready")


async def snapshot(request: web.Request) -> web.Response:
    agent = request.app[AGENT]
    gzip = wants_gzip(request)

    def written() -> bytes:
        content = document(agent.latest(), agent.clock.monotonic())
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        return compress(body, GZIP_LEVEL, mtime=0) if gzip else body

    body = await asyncio.to_thread(written)
    return coded(body, "application/json; charset=utf-8", gzip=gzip, vary="Accept-Encoding")


def wants_gzip(request: web.Request) -> bool:
    return accepts_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def verdict(complaint: str, praise: str) -> web.Response:
    """200 with `praise`, or 503 with the complaint."""
    return web.Response(text=f"{complaint or praise}\n", status=503 if complaint else 200)


def coded(body: bytes, content_type: str, *, gzip: bool, vary: str) -> web.Response:
    """A body that is already compressed where `gzip` says so."""
    headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: vary}
    if gzip:
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    return web.Response(body=body, headers=headers)
