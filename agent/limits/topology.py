"""The NVLinks found, compared with the system's graph: pairs of GPUs and their number of links."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from agent.model import GpuKey, Labels
from agent.ranges import pci_address
from agent.series import SampleStore
from agent.sources import gpu, nvlink, system
from agent.specs.sheets import LinkGraph, SystemSpec

Weights = tuple[tuple[int, ...], ...]  # Links between every two nodes, as a symmetric matrix


class WrongPair(NamedTuple):
    """Two GPUs, by index, whose number of links differs from the system's graph."""

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
    """Return the differences under the best matching of two graphs with as many nodes; none if they
    are equal.

    The search is depth first: nodes of `found` take places of `expected` in turn, and it leaves a
    branch that is no better than the best so far. Each node's own number is tried first, so that of
    equally good matchings the usual numbering is named. It is meant for eight nodes: 8! placings at
    worst.
    """
    size, best = len(found), tuple(range(len(found)))
    most = size**2 * max(map(max, (*found, *expected)), default=0) + 1
    links = [(sum(one), sum(other)) for one, other in zip(found, expected, strict=True)]

    def place(taken: tuple[int, ...], cost: int) -> None:
        """Place the next node at every place that fits, its own number first."""
        nonlocal best, most
        node = len(taken)
        if node == size:
            best, most = taken, cost
            return

        def unlikeness(where: int) -> tuple[int, bool, int]:
            return abs(links[node][0] - links[where][1]), node != where, where

        for where in sorted(set(range(size)).difference(taken), key=unlikeness):
            apart = (abs(found[node][a] - expected[where][b]) for a, b in enumerate(taken))
            after = cost + sum(apart)  # links by which it differs from those placed before
            if after < most:
                place((*taken, where), after)

    place((), 0)
    return tuple(
        WrongPair(a, b, found[a][b], expected[best[a]][best[b]])
        for a in range(size)
        for b in range(a + 1, size)
        if found[a][b] != expected[best[a]][best[b]]
    )


class LinkEnd(NamedTuple):
    """The far end of a link that is up: its kind, and the index of a GPU of this machine."""

    link: str
    remote: str
    gpu: int | None


Ends = Mapping[GpuKey, list[LinkEnd]]  # The far ends of the links of every GPU


class StrayLinks(NamedTuple):
    """Links of a GPU that end at another kind of device than the links of this system do."""

    gpu: GpuKey
    remote: str
    expected: str
    links: tuple[str, ...]


def wiring(samples: SampleStore, spec: SystemSpec | None) -> list[StrayLinks] | list[WrongPair]:
    """Return the differences between the graph of links and the system's graph. Other faults report
    links that are down and GPUs that are gone; a link that does not report its far end cannot be
    checked."""
    graph = spec.nvlink_graph if spec else None
    if spec is None or graph is None or not whole(samples, spec.gpus):
        return []
    ends = far_ends(samples)
    counts = {gpu: sum(end.remote != "unknown" for end in found) for gpu, found in ends.items()}
    if any(counts[_key(labels)] != up for labels, up in samples.all(nvlink.LINKS).items()):
        return []
    strays = list(_strays(ends, "gpu" if graph.pairs else "switch"))
    return strays if strays or not graph.pairs else _differences(ends, graph)


def _key(labels: Labels) -> GpuKey:
    return GpuKey(int(labels[0]), labels[1])


def whole(samples: SampleStore, gpus: int) -> bool:
    links = samples.all(nvlink.LINKS)
    up = all(n >= (samples.value(nvlink.LINKS_EXPECTED, *key) or 0) for key, n in links.items())
    return samples.value(system.GPUS) == gpus == len(links) and up


def far_ends(samples: SampleStore) -> Ends:
    """Return the far end of every link that is up, as each GPU reports it."""
    by_address = {
        where: int(labels["gpu"])
        for labels in samples.labelled(gpu.INFO)
        if (where := pci_address(labels["pci_bus_id"]))
    }
    ends: dict[GpuKey, list[LinkEnd]] = {_key(gpu): [] for gpu in samples.all(nvlink.LINKS)}
    for labels in samples.labelled(nvlink.LINK_INFO):
        index, link, remote = labels["gpu"], labels["link"], labels["remote"]
        if not samples.value(nvlink.LINK_UP, index, labels["uuid"], link):
            continue
        peer = by_address.get(pci_address(labels["remote_pci_bus_id"]))
        known = remote != "gpu" or peer is not None  # a guest may see addresses of its host
        gpu_key = GpuKey(int(index), labels["uuid"])
        ends.setdefault(gpu_key, []).append(LinkEnd(link, remote if known else "unknown", peer))
    return ends


def _strays(ends: Ends, wanted: str) -> Iterator[StrayLinks]:
    """Links that end at another kind of device than this system's do, by GPU and kind."""
    for key, found in sorted(ends.items()):
        for kind in sorted({end.remote for end in found if end.remote != wanted}):
            links = tuple(end.link for end in found if end.remote == kind)
            yield StrayLinks(key, kind, wanted, links)


def _differences(ends: Ends, graph: LinkGraph) -> list[WrongPair]:
    """The pairs that differ under the best matching. A link counts as often as both its ends report
    it."""
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
