"""NVLinks of a simulated system: which link of which GPU ends where."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.backends.simulated.systems import System


@dataclass(slots=True)
class Link:
    """One link of one GPU. `peer` and `peer_link` are its far end, None behind an NVSwitch."""

    number: int
    peer: int | None = None
    peer_link: int | None = None
    cut: bool = False
    errors: float = 0.0  # replays per second; CRC errors come half as often again


def wire(system: System) -> list[list[Link]]:
    """The links of every GPU, by number; for GPUs without NVLink an empty list each."""
    layout: Callable[[System], list[list[Link]]] = _switched if system.switched else _meshed
    return layout(system)


def _switched(system: System) -> list[list[Link]]:
    count = system.model.links.number if system.model.links else 0
    return [[Link(number) for number in range(count)] for _ in system.buses]


def _meshed(system: System) -> list[list[Link]]:
    links: list[list[Link]] = [[] for _ in system.buses]
    for (a, b), count in sorted(system.graph.items()):
        for _ in range(count):
            here, there = len(links[a]), len(links[b])
            links[a].append(Link(here, b, there))
            links[b].append(Link(there, a, here))
    return links
