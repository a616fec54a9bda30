"""Serves the metrics of a simulated fleet over HTTP. Each node has its own path.

A node exposes the metrics of the simulated agent that runs the node's scenario, but with its own
device identities and job. `/` and `/targets` list the nodes for Prometheus' HTTP service discovery.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aiohttp import hdrs, web
from msgspec.json import encode

from agent.model import Sample
from agent.simulator.scenarios import CLUSTER, NodePlan
from agent.sources.workload import JOB_INFO
from exporters.http import JSON, add_headers, ready
from exporters.prometheus import PLAIN, Exposition, by_metric, written

UUID, SERIAL = re.compile(rb'"GPU-[0-9a-f]{4}'), re.compile(rb'serial="\d{4}')
GPU = re.compile(r'^dgx_gpu_info\{.*gpu="(\d+)".*uuid="([^"]+)"', re.MULTILINE)


def node_page(node: NodePlan, page: bytes) -> str:
    """Return the agent's metrics page with its devices and job replaced by those of the node."""
    page = SERIAL.sub(b'serial="%04d' % node.number, page)
    text = UUID.sub(b'"GPU-%04d' % node.number, page).decode()
    job = node.job_id, node.user, "slurm", "gpu", node.user, "", "", ""
    gpus = GPU.findall(text) if node.user else ()
    jobs = (Sample(JOB_INFO, (*gpu, *job), 1.0) for gpu in gpus)
    return text + written(by_metric(jobs), set())


class FleetPages:
    """The metrics pages of all nodes. `expositions` contains an exposition per scenario. `awaited`
    returns the names of the reads that have not run yet, or an empty string. Nodes in the racks in
    `dark` close connections without a response, as if they had no power."""

    def __init__(
        self,
        nodes: Sequence[NodePlan],
        expositions: Mapping[str, Exposition],
        awaited: Callable[[], str],
    ) -> None:
        self.dark: set[str] = set()
        self._nodes = {node.name: node for node in nodes}
        self._expositions = expositions
        self.app = web.Application()
        self.app.on_response_prepare.append(add_headers)
        for path in ("/", "/targets"):
            self.app.router.add_get(path, self._targets)
        self.app.router.add_get("/-/ready", partial(ready, awaited))
        self.app.router.add_get("/{node}/metrics", self._metrics)

    async def _metrics(self, request: web.Request) -> web.Response:
        node = self._nodes.get(request.match_info["node"])
        if node is None:
            raise web.HTTPNotFound
        if node.rack in self.dark and request.transport:
            request.transport.abort()
        exposition = self._expositions[node.scenario]
        page = exposition.page(PLAIN).plain
        exposition.default.answered(f"{request.remote} {node.name}")
        headers = {hdrs.CONTENT_TYPE: PLAIN}
        return web.Response(body=node_page(node, page).encode(), headers=headers)

    async def _targets(self, request: web.Request) -> web.Response:
        found = []
        for node in self._nodes.values():
            labels = {
                "__metrics_path__": f"/{node.name}/metrics",
                "instance": f"{node.name}:9935",  # the same format as for real nodes
                "cluster": CLUSTER,
                "rack": node.rack,
                "node": node.name,
            }
            found.append({"targets": [request.host], "labels": labels})
        return web.Response(body=encode(found), headers={hdrs.CONTENT_TYPE: JSON})
