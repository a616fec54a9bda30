"""The NVLinks found against the system's graph: who is joined to whom, by how many links."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.look import Look
from agent.sources import gpu, nvlink, system
from agent.specs import Graph, SystemSpec
from agent.specs.graph import differences, weights

MOST_TOLD = 4
"""Pairs that one sentence names; a machine wired wrong altogether has more."""


class End(NamedTuple):
    """The far end of a link that is up: its kind, and the index of a GPU of this machine."""

    link: str
    remote: str
    gpu: int | None


Ends = Mapping[int, list[End]]
"""The far ends of the links of every GPU, by its index."""


def wiring(look: Look, spec: SystemSpec | None) -> Iterator[str]:
    """A sentence where the graph of links is not the system's; links that are down and GPUs that
    are gone are told elsewhere, and what does not tell its far end cannot be judged."""
    graph = spec.nvlink_graph if spec else None
    if spec is None or graph is None or not whole(look, spec.gpus):
        return
    ends = far_ends(look)
    told = {index: sum(end.remote != "unknown" for end in found) for index, found in ends.items()}
    if any(told[int(index)] != up for (index, _), up in look.all(nvlink.LINKS).items()):
        return
    strays = list(_strays(ends, "gpu" if graph.pairs else "switch"))
    yield from strays
    if graph.pairs and not strays:
        yield from _differences(ends, graph)


def whole(look: Look, gpus: int) -> bool:
    """Whether every GPU of the system is there and every link of it up."""
    links = look.all(nvlink.LINKS)
    up = all(n >= (look.value(nvlink.LINKS_EXPECTED, *key) or 0) for key, n in links.items())
    return look.value(system.GPUS) == gpus == len(links) and up


def far_ends(look: Look) -> Ends:
    """What is at the end of every link that is up, as each GPU tells it."""
    by_address = {
        where: int(labels["gpu"])
        for labels in look.labelled(gpu.INFO)
        if (where := address(labels["pci_bus_id"]))
    }
    ends: dict[int, list[End]] = {int(index): [] for index, _ in look.all(nvlink.LINKS)}
    for labels in look.labelled(nvlink.LINK_INFO):
        index, link, remote = labels["gpu"], labels["link"], labels["remote"]
        if not look.value(nvlink.LINK_UP, index, labels["uuid"], link):
            continue
        peer = by_address.get(address(labels["remote_pci_bus_id"]))
        known = remote != "gpu" or peer is not None  # a guest may see addresses of its host
        ends.setdefault(int(index), []).append(End(link, remote if known else "unknown", peer))
    return ends


def address(text: str) -> tuple[int, ...]:
    """A PCI address as numbers, however many digits its domain is written with."""
    try:
        return tuple(int(part, 16) for part in text.replace(".", ":").split(":"))
    except ValueError:
        return ()


def _strays(ends: Ends, wanted: str) -> Iterator[str]:
    """Links that end at another kind of device than this system's do, by GPU and kind."""
    for index, found in sorted(ends.items()):
        kinds = Counter(end.remote for end in found if end.remote != wanted)
        for kind, number in sorted(kinds.items()):
            names = ", ".join(end.link for end in found if end.remote == kind)
            links = _links(number)
            yield f"NVLink graph: gpu{index} has {links} to a {kind}, expected a {wanted} ({names})"


def _differences(ends: Ends, graph: Graph) -> Iterator[str]:
    """One sentence with the pairs that differ under the best matching.

    A link counts as often as both its ends tell of it.
    """
    indices = sorted(ends)
    told = Counter((index, end.gpu) for index in indices for end in ends[index])
    found = {
        (a, b): min(told[one, other], told[other, one])
        for a, one in enumerate(indices)
        for b, other in enumerate(indices)
        if a < b
    }
    expected = {(one, other): links for one, other, links in graph.pairs}
    wrong = differences(weights(len(indices), found), weights(len(indices), expected))
    if not wrong:
        return
    told_first = [
        f"gpu{indices[d.one]}-gpu{indices[d.other]} has {_links(d.found)}, expected {d.expected}"
        for d in wrong[:MOST_TOLD]
    ]
    more = [f"{len(wrong) - MOST_TOLD} more pairs differ"] if len(wrong) > MOST_TOLD else []
    yield f"NVLink graph: {'; '.join([*told_first, *more])}"


def _links(number: int) -> str:
    return f"{number or 'no'} link{'' if number == 1 else 's'}"
