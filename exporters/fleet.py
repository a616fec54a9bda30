"""Many machines from one process: each with an address of its own on loopback, at one port.

A machine that is off has no listening socket, so that who asks is refused as by one without
power. `/targets` lists those that there are, as Prometheus' `http_sd` takes them.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry

from agent.model import Sample
from exporters.http import add_headers, as_json
from exporters.prometheus import OPEN, ExpositionLines, negotiate

NOTHING = CollectorRegistry()
"""End of an exposition without families, by format."""

Read = Callable[[], Iterable[Sample]]
Document = Sequence[dict[str, Any]]


LIST = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Simulated fleet</title>'
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em}td,th{text-align:left;"
    "padding:0 1em}</style><h1>Simulated fleet</h1><p>Prometheus and Grafana show the fleet; its "
    "nodes have no page of their own, and their targets are at <a href=/targets>/targets</a>.<p>"
)


@dataclass(slots=True, eq=False)
class MachinePage:
    """The exposition of one machine, written at each scrape."""

    read: Read
    forms: dict[str, ExpositionLines] = field(default_factory=dict)

    def write(self, accept: str) -> tuple[bytes, str]:
        form = negotiate(accept)
        lines = self.forms.setdefault(
            form.content_type, ExpositionLines(form is OPEN, lambda *_: True)
        )
        return lines.write(self.read()).encode() + form.encode(NOTHING), form.content_type


class FleetServer:
    """Serves the machines that are on, by address."""

    def __init__(self, targets: Callable[[], Document], awaited: Callable[[], str]) -> None:
        self._targets = targets
        self._awaited = awaited
        self._pages: dict[str, MachinePage] = {}
        self._sites: dict[str, web.SockSite] = {}
        app = web.Application()
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/", self._list)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/targets", self._listed)
        app.router.add_get("/-/ready", self._ready)
        self._runner = web.AppRunner(app, access_log=None)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen where the fleet itself is asked; raises OSError where that cannot be."""
        await self._runner.setup()
        listening = socket.create_server((host, port))
        self.port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening).start()

    async def turn_on(self, address: str, read: Read) -> None:
        self._pages[address] = MachinePage(read)
        self._sites[address] = site = web.SockSite(
            self._runner, socket.create_server((address, self.port))
        )
        await site.start()

    async def turn_off(self, address: str) -> None:
        """Let it answer no more; who has a connection loses it at the next request."""
        del self._pages[address]
        await self._sites.pop(address).stop()

    async def end(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        transport = request.transport
        page = transport and self._pages.get(transport.get_extra_info("sockname")[0])
        if not page:
            if transport:
                transport.abort()
            raise web.HTTPNotFound
        body, content_type = page.write(",".join(request.headers.getall(hdrs.ACCEPT, ())))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _list(self, _: web.Request) -> web.Response:
        rows = []
        for node in self._targets():
            (address,), labels = node["targets"], node["labels"]
            on = address.rpartition(":")[0] in self._pages
            shown = f'<a href="http://{address}/metrics">{address}</a>' if on else "does not answer"
            rows.append(f"<tr><td>{labels['node']}<td>{labels['rack']}<td>{shown}")
        body = (
            f"{LIST}{len(rows)} nodes<table><tr><th>node<th>rack<th>metrics{''.join(rows)}</table>"
        )
        return web.Response(text=body, content_type="text/html")

    async def _listed(self, _: web.Request) -> web.Response:
        body = as_json(self._targets())
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: "application/json"})

    async def _ready(self, _: web.Request) -> web.Response:
        missing = self._awaited()
        return web.Response(text=f"{missing or 'ready'}\n", status=503 if missing else 200)
