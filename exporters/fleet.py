"""A simulated fleet over HTTP. Each node has its own loopback address; the port is the same.

A node exposes the metrics of a simulated agent that runs the scenario of the node, with its own
device identities and job. `/` and `/targets` list the nodes for Prometheus' HTTP service discovery.
"""

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import hdrs, web

from agent.model import Sample
from agent.simulator.fleet import CLUSTER, NodePlan
from agent.sources.workload import JOB_INFO
from exporters.http import JSON, add_headers, as_json
from exporters.prometheus import PLAIN, Exposition, ExpositionLines, by_metric

UUID, SERIAL = re.compile(rb'"GPU-[0-9a-f]{4}'), re.compile(rb'serial="\d{4}')
GPU = re.compile(r'^dgx_gpu_info\{.*gpu="(\d+)".*uuid="([^"]+)"', re.MULTILINE)


def node_page(node: NodePlan, page: bytes) -> str:
    """Return the agent's metrics page with the device identities and the job of the node."""
    page = SERIAL.sub(b'serial="%04d' % node.number, page)
    text = UUID.sub(b'"GPU-%04d' % node.number, page).decode()
    job = node.job_id, node.user, "slurm", "gpu", node.user, "", "", ""
    gpus = GPU.findall(text) if node.user else ()
    jobs = (Sample(JOB_INFO, (*gpu, *job), 1.0) for gpu in gpus)
    return text + ExpositionLines(openmetrics=False).write(by_metric(jobs))


class FleetServer:
    """Serves the nodes. `pages` contains an exposition per scenario, and `awaited` returns the
    pending reads until all agents are ready. Nodes in `dark` drop connections, as without power."""

    def __init__(
        self,
        nodes: Sequence[NodePlan],
        pages: Mapping[str, Exposition],
        awaited: Callable[[], str],
        port: int,
    ) -> None:
        self.dark: set[str] = set()
        self.nodes = {node.address: node for node in nodes}
        self._pages = pages
        self._awaited = awaited
        self._port = port
        self.app = web.Application()
        self.app.on_response_prepare.append(add_headers)
        for path, handler in (
            *(("/", self._targets), ("/metrics", self._metrics)),
            *(("/targets", self._targets), ("/-/ready", self._ready)),
        ):
            self.app.router.add_get(path, handler)
        self._runner = web.AppRunner(self.app, access_log=None)

    async def start(self, host: str) -> None:
        """Listen on the addresses of the fleet and its nodes. Raise OSError if listening fails."""
        await self._runner.setup()
        for address in (host, *self.nodes):
            listening = socket.create_server((address, self._port))
            await web.SockSite(self._runner, listening).start()

    async def end(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        transport = request.transport
        address = transport.get_extra_info("sockname")[0] if transport else ""
        if transport and address in self.dark:
            transport.abort()
        node = self.nodes.get(address)
        if node is None:
            raise web.HTTPNotFound
        exposition = self._pages[node.scenario]
        page = exposition.page(PLAIN.content_type).plain
        exposition.answered(f"{request.remote} {node.name}")
        headers = {hdrs.CONTENT_TYPE: PLAIN.content_type}
        return web.Response(body=node_page(node, page).encode(), headers=headers)

    async def _targets(self, _: web.Request) -> web.Response:
        found: list[dict[str, Any]] = [
            {
                "targets": [f"{address}:{self._port}"],
                "labels": {
                    "instance": f"{node.name}:9935",  # the same format as for real nodes
                    "cluster": CLUSTER,
                    "rack": node.rack,
                    "node": node.name,
                },
            }
            for address, node in self.nodes.items()
        ]
        return web.Response(body=as_json(found), headers={hdrs.CONTENT_TYPE: JSON})

    async def _ready(self, _: web.Request) -> web.Response:
        missing = self._awaited()
        return web.Response(text=f"{missing or 'ready'}\n", status=503 if missing else 200)
