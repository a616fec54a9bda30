"""Compares the detected NVLinks with the spec sheet: the number of links between each two GPUs."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations, permutations
from typing import NamedTuple

from agent.model import GpuKey, Labels
from agent.ranges import pci_address
from agent.series import SampleStore
from agent.sources import gpu, nvlink, system
from agent.specs.sheets import LinkGraph, SystemSpec

Weights = tuple[tuple[int, ...], ...]  # Links between nodes, as a symmetric matrix


class WrongPair(NamedTuple):
    """Two GPUs that are not connected by the number of links in the spec sheet."""

    one: int
    other: int
    found: int
    expected: int


def weights(nodes: int, pairs: Mapping[tuple[int, int], int]) -> Weights:
    return tuple(
        tuple(pairs.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in range(nodes))
        for a in range(nodes)
    )


@lru_cache(maxsize=8)
def differences(found: Weights, expected: Weights) -> tuple[WrongPair, ...]:
    """Return the differences in the best matching of two graphs with the same number of nodes. If
    the graphs are isomorphic, there are none. Of equally good matchings, the usual numbering comes
    first. The 40,320 matchings of eight nodes take 0.1 s, which `lru_cache` spends only once."""
    if found == expected:
        return ()
    pairs = tuple(combinations(range(len(found)), 2))

    def cost(order: tuple[int, ...]) -> int:
        return sum(abs(found[a][b] - expected[order[a]][order[b]]) for a, b in pairs)

    best = min(permutations(range(len(found))), key=cost)
    ends = ((a, b, found[a][b], expected[best[a]][best[b]]) for a, b in pairs)
    return tuple(WrongPair(*end) for end in ends if end[2] != end[3])


class LinkEnd(NamedTuple):
    """The remote end of an active link: its kind and, if it is a GPU of this machine, its index."""

    link: str
    remote: str
    gpu: int | None


Ends = Mapping[GpuKey, list[LinkEnd]]  # Remote ends of the links of each GPU


class StrayLinks(NamedTuple):
    """Links of a GPU whose remote ends are not of the kind in the spec sheet (GPU or switch)."""

    gpu: GpuKey
    remote: str
    expected: str
    links: tuple[str, ...]


def wiring(samples: SampleStore, spec: SystemSpec | None) -> list[StrayLinks] | list[WrongPair]:
    """Return the differences between the detected links and the spec sheet. Return none if remote
    ends are unknown, or if links are inactive or GPUs are missing, which other faults report."""
    graph = spec.nvlink_graph if spec else None
    if spec is None or graph is None or not whole(samples, spec.gpus):
        return []
    ends = far_ends(samples)
    counts = {gpu: sum(end.remote != "unknown" for end in found) for gpu, found in ends.items()}
    if any(counts[_key(labels)] != up for labels, up in samples.all(nvlink.LINKS).items()):
        return []
    wanted = "gpu" if graph.pairs else "switch"
    strays = [
        StrayLinks(key, kind, wanted, tuple(end.link for end in found if end.remote == kind))
        for key, found in sorted(ends.items())
        for kind in sorted({end.remote for end in found if end.remote != wanted})
    ]
    return strays if strays or not graph.pairs else _differences(ends, graph)


def _key(labels: Labels) -> GpuKey:
    return GpuKey(int(labels[0]), labels[1])


def whole(samples: SampleStore, gpus: int) -> bool:
    links = samples.all(nvlink.LINKS)
    up = all(n >= (samples.value(nvlink.LINKS_EXPECTED, *key) or 0) for key, n in links.items())
    return samples.value(system.GPUS) == gpus == len(links) and up


def gpus_by_address(samples: SampleStore) -> dict[tuple[int, ...], int]:
    """Return the index of each GPU by its PCI address."""
    infos = samples.labelled(gpu.INFO)
    known = {pci_address(labels["pci_bus_id"]): int(labels["gpu"]) for labels in infos}
    return {where: index for where, index in known.items() if where}


def far_ends(samples: SampleStore) -> Ends:
    """Return the remote ends of each GPU's active links, as the GPU reports them."""
    by_address = gpus_by_address(samples)
    ends: dict[GpuKey, list[LinkEnd]] = {_key(gpu): [] for gpu in samples.all(nvlink.LINKS)}
    for index, uuid, link, remote, address in samples.all(nvlink.LINK_INFO):
        if not samples.value(nvlink.LINK_UP, index, uuid, link):
            continue
        peer = by_address.get(pci_address(address))
        known = remote != "gpu" or peer is not None  # a VM may see addresses of its host
        gpu_key = GpuKey(int(index), uuid)
        ends.setdefault(gpu_key, []).append(LinkEnd(link, remote if known else "unknown", peer))
    return ends


def _differences(ends: Ends, graph: LinkGraph) -> list[WrongPair]:
    """Return the GPU pairs whose numbers of links differ from `graph` in the best matching. If the
    GPUs of a pair report different numbers of links, use the smaller number."""
    indices = sorted(key.index for key in ends)
    counts = Counter((key.index, end.gpu) for key in ends for end in ends[key])
    found = {
        (a, b): min(counts[one, other], counts[other, one])
        for a, one in enumerate(indices)
        for b, other in enumerate(indices)
        if a < b
    }
    expected = {(one, other): links for one, other, links in graph.pairs}
    wrong = differences(weights(len(indices), found), weights(len(indices), expected))
    return [pair._replace(one=indices[pair.one], other=indices[pair.other]) for pair in wrong]
