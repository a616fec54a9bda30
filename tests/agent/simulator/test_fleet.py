"""Simulated fleets: who is in them, and what each node reports as its own."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from aiohttp import ServerDisconnectedError
from aiohttp.test_utils import TestClient, TestServer

from agent.errors import BadInput
from agent.simulator.scenarios import RACK, SLOW_NODE, WAITS_FOR_NODE, plan
from exporters.fleet import FleetPages, node_page
from tests.support.exposition import ExpositionBench

PAGE = b"""\
# HELP dgx_gpu_info GPU-hours are seconds / 3600.
# TYPE dgx_gpu_info gauge
dgx_gpu_info{architecture="volta",gpu="0",serial="1320000000007",uuid="GPU-aaaa1111-x"} 1
dgx_gpu_power_watts{gpu="0",uuid="GPU-aaaa1111-x"} 250.0
"""


@pytest.mark.parametrize("number", [4, 8, 16, 124, 1000])
def test_every_node_has_a_name_of_its_own_and_a_place_in_a_rack(number: int) -> None:
    nodes = plan(number)
    assert len({node.name for node in nodes}) == number
    assert max(Counter(node.rack for node in nodes).values()) == RACK
    assert Counter(node.scenario for node in nodes)["gpu-lost"] <= 1


@pytest.mark.parametrize("number", [8, 16, 124])
def test_one_node_of_the_largest_job_is_slow(number: int) -> None:
    kinds = Counter(node.scenario for node in plan(number) if node.job_id == "4711")
    assert kinds == {SLOW_NODE: 1, WAITS_FOR_NODE: min(16, number // 2) - 1}


@pytest.mark.parametrize("number", [0, 3, 1001])
def test_a_fleet_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(BadInput, match="4 to 1000 nodes"):
        plan(number)


def test_identities_and_the_job_are_the_nodes_own() -> None:
    one = plan(16)[1]
    page = node_page(one, PAGE)
    assert 'power_watts{gpu="0",uuid="GPU-00021111-x"} 250.0' in page
    assert 'serial="0002000000007"' in page
    assert "GPU-hours" in page
    (job,) = (line for line in page.splitlines() if line.startswith("dgx_gpu_job_info{"))
    assert 'gpu="0",job_id="4711"' in job
    assert 'runtime="slurm",user="ada",uuid="GPU-00021111-x"} 1' in job
    assert "dgx_gpu_job_info" not in node_page(replace(one, user=""), PAGE)


def test_a_fleet_lists_its_nodes_and_those_without_power_do_not_answer() -> None:
    bench, nodes = ExpositionBench(), plan(4)
    clients: list[str] = []
    setattr(bench.exposition.default, "answered", clients.append)  # noqa: B010
    pages = FleetPages(nodes, {node.scenario: bench.exposition for node in nodes}, str)
    metrics = f"/{nodes[3].name}/metrics"

    async def asked() -> tuple[list[str], str]:
        async with TestClient(TestServer(pages.app)) as client:
            texts = []
            for path in (metrics, "/", "/targets"):
                async with client.get(path) as answer:
                    assert answer.status == 200
                    texts.append(await answer.text())
                pages.dark = {nodes[3].rack}
            with pytest.raises(ServerDisconnectedError):
                await client.get(metrics)
            assert (await client.get("/nobody/metrics")).status == 404
            return texts, f"127.0.0.1:{client.port}"

    (page, listed, targets), address = asyncio.run(asked())
    assert page.startswith("# HELP")
    assert {one.split()[-1] for one in clients} == {nodes[3].name}, "new series were answered"
    assert listed == targets
    (found,) = (one for one in json.loads(targets) if one["labels"]["node"] == nodes[3].name)
    assert (found["targets"], found["labels"]["__metrics_path__"]) == ([address], metrics)
