"""The graph of NVLinks found against the system's: any numbering will do, no other graph will."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.faults.findings import Search
from agent.limits.topology import Weights, differences, weights
from agent.sources import nvlink
from agent.specs.sheets import SystemSpec, load
from agent.status.words import finding_text
from tests.support.machine_controls import change_answer
from tests.support.machines import AgentBench, simulated

MESHED = ("dgx-1-p100", "dgx-1-v100", "dgx-station-v100")
SYSTEMS = load().systems


def expected(name: str) -> Weights:
    graph = SYSTEMS[name].nvlink_graph
    assert graph is not None
    return weights(SYSTEMS[name].gpus, {(a, b): n for a, b, n in graph.pairs})


def crossed(graph: Weights, a: int, b: int, c: int, d: int) -> Weights:
    """One link of a-b and one of c-d become a-c and b-d: every GPU keeps its number of links."""
    changed = [list(row) for row in graph]
    for one, other, more in ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)):
        changed[one][other] += more
        changed[other][one] += more
    return tuple(map(tuple, changed))


@pytest.mark.parametrize("name", MESHED)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_any_numbering_of_a_system_is_that_system(name: str, seed: int) -> None:
    graph = expected(name)
    order = list(range(len(graph)))
    random.Random(seed).shuffle(order)
    renumbered = tuple(tuple(graph[a][b] for b in order) for a in order)
    assert differences(renumbered, graph) == ()


def test_crossed_links_are_reported_by_pair() -> None:
    graph = expected("dgx-1-v100")
    wrong = differences(crossed(graph, 0, 3, 1, 2), graph)
    assert {tuple(d) for d in wrong} == {(0, 3, 1, 2), (1, 2, 1, 2), (0, 1, 2, 1), (2, 3, 3, 2)}


def shown(bench: AgentBench, name: str) -> list[str]:
    """Findings about the graph, from a snapshot of the bench."""
    system: SystemSpec = SYSTEMS[name]
    found = map(finding_text, Search().findings(bench.latest, system))
    return [text for text in found if "topology" in text]


@pytest.mark.parametrize("name", [*MESHED, "dgx-a100", "dgx-h100", "dgx-h200"])
def test_a_healthy_system_has_its_graph(name: str) -> None:
    bench = simulated(f"{name}:training").run(3)
    assert bench.samples.all(nvlink.LINK_INFO)
    assert shown(bench, name) == []


def cross(bench: AgentBench, one: tuple[int, int], other: tuple[int, int]) -> None:
    """Swap the far ends of one link of each of two pairs of GPUs."""
    gpus = bench.machine.gpus
    a, b = (next(x for x in gpus[here].links if x.peer == far) for here, far in (one, other))
    far_a, far_b = gpus[a.peer].links[a.peer_link], gpus[b.peer].links[b.peer_link]
    (a.peer, a.peer_link), (b.peer, b.peer_link) = (b.peer, b.peer_link), (a.peer, a.peer_link)
    far_a.peer, far_a.peer_link = other[0], b.number
    far_b.peer, far_b.peer_link = one[0], a.number


@pytest.mark.parametrize("name", MESHED)
def test_another_graph_is_found_and_its_pairs_are_named(name: str) -> None:
    bench = simulated(f"{name}:training")
    cross(bench, (0, 1), (2, 3))
    (sentence,) = shown(bench.run(3), name)
    assert "gpu0-gpu1 has no links, expected 1" in sentence
    found = map(finding_text, Search().findings(bench.latest, None))
    assert not any("topology" in text for text in found), "no system, nothing to compare"


@pytest.mark.parametrize("scenario", ["nvlink-down", "gpu-lost"])
def test_what_is_down_is_reported_once(scenario: str) -> None:
    bench = simulated(f"dgx-station-v100:{scenario}").run(5).skip(60).run(25)
    spec = SYSTEMS["dgx-station-v100"]
    every = list(map(finding_text, Search().findings(bench.latest, spec)))
    assert every
    assert not any("topology" in finding for finding in every)


def test_a_link_between_gpus_behind_switches_is_found() -> None:
    bench = simulated("dgx-h100:training")
    name = "nvmlDeviceGetNvLinkRemoteDeviceType"
    change_answer(bench.machine.nvml, name, lambda right, _, link: 1 if link == 3 else right)
    sentences = shown(bench.run(3), "dgx-h100")
    assert "NVLink topology: 1 link to a npu instead of a switch (3)" in sentences


def test_far_ends_that_are_not_reported_are_not_judged() -> None:
    bench = simulated("dgx-1-v100:training")
    bench.machine.driver.fail("nvmlDeviceGetNvLinkRemotePciInfo", 3)
    assert shown(bench.run(3), "dgx-1-v100") == []
    ends = bench.samples.labelled(nvlink.LINK_INFO)
    assert len(ends) == 48
    assert {labels["remote_pci_bus_id"] for labels in ends} == {""}


def test_addresses_that_are_of_no_gpu_here_are_not_judged() -> None:
    bench = simulated("dgx-1-v100:training")

    def of_the_host(info: Any, *_: Any) -> Any:
        info.busId = info.busId.replace("00000000:", "000000F0:").encode()
        return info

    change_answer(bench.machine.nvml, "nvmlDeviceGetNvLinkRemotePciInfo", of_the_host)
    assert shown(bench.run(3), "dgx-1-v100") == []
    ends = bench.samples.labelled(nvlink.LINK_INFO)
    assert {labels["remote_pci_bus_id"][:8] for labels in ends} == {"000000F0"}


def test_a_link_that_only_one_of_its_ends_reports_does_not_count() -> None:
    bench = simulated("dgx-1-v100:training")
    link = next(x for x in bench.machine.gpus[3].links if x.peer == 0)
    link.peer = 1  # GPU 0 still reports two links to GPU 3
    (sentence,) = shown(bench.run(3), "dgx-1-v100")
    assert "gpu0-gpu3 has 1 link, expected 2" in sentence
