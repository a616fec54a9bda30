"""NVLinks of a simulated system: which link of which GPU ends where."""

from dataclasses import dataclass

from agent.simulator.system_models import SystemModel


@dataclass(slots=True)
class SimulatedLink:
    """One link of one GPU. `peer` and `peer_link` are its far end, None behind an NVSwitch."""

    number: int
    peer: int | None = None
    peer_link: int | None = None
    cut: bool = False
    errors: float = 0.0  # replays per second; CRC errors come half as often again


def wire(system: SystemModel) -> list[list[SimulatedLink]]:
    """The links of every GPU, by number; for GPUs without NVLink an empty list each."""
    model = system.model.links
    switched = model.number if model and system.switched else 0
    links = [[SimulatedLink(number) for number in range(switched)] for _ in system.buses]
    for (a, b), count in sorted(system.graph.items()):
        for _ in range(count):
            here, there = len(links[a]), len(links[b])
            links[a].append(SimulatedLink(here, b, there))
            links[b].append(SimulatedLink(there, a, here))
    return links
