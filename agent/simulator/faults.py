"""What can break in a simulated machine, and its repair.

After any of these the machine lets its counters follow (`Machine.apply`).
"""

from collections.abc import Sequence

from agent.simulator.driver import SimulatedDriver
from agent.simulator.gpu import LANES, SimulatedGpu
from agent.simulator.traffic import SimulatedTraffic

ECC_XID, HALT_XID, LOST_XID = 48, 62, 79
"""Double-bit error; micro-controller halt (for GPUs without ECC); fell off the bus."""


class SimulatedFaults:
    """Breaks and repairs GPUs, links, ports and the driver."""

    def __init__(
        self, gpus: Sequence[SimulatedGpu], traffic: SimulatedTraffic, driver: SimulatedDriver
    ) -> None:
        self._gpus = gpus
        self._traffic = traffic
        self._driver = driver

    def lose(self, index: int) -> None:
        """The GPU falls off the bus, with XID 79; links to it go down."""
        self._driver.xid(index, LOST_XID)
        self._gpus[index].lost = True
        for gpu in self._others(index):
            gpu.cut_peers.add(index)

    def restore(self, index: int) -> None:
        """The GPU is back, and so are its links."""
        self._gpus[index].lost = False
        for gpu in self._others(index):
            gpu.cut_peers.discard(index)

    def _others(self, index: int) -> list[SimulatedGpu]:
        return [gpu for gpu in self._gpus if gpu.index != index]

    def cut_link(self, index: int, number: int) -> None:
        """One link goes down, at both ends where both are GPUs."""
        link = self._gpus[index].links[number]
        link.cut = True
        if link.peer is not None and link.peer_link is not None:
            self._gpus[link.peer].links[link.peer_link].cut = True

    def cut_first_link(self) -> None:
        self.cut_link(0, 2)

    def lose_one(self) -> None:
        """The third GPU, or the last of fewer."""
        self.lose(min(2, len(self._gpus) - 1))

    def spoil_link(self) -> None:
        self._gpus[0].links[1].errors = 2.0

    def narrow_slot(self) -> None:
        self._gpus[0].width = LANES // 2

    def slow_port(self) -> None:
        self._traffic.slow_port = True

    def report_xid(self) -> None:
        self._driver.xid(0, ECC_XID if self._gpus[0].model.ecc else HALT_XID)

    def flip_bits(self) -> None:
        self._gpus[0].flipping = True

    def fail_remapping(self) -> None:
        self._gpus[0].remap_failed = True

    def hang_driver(self) -> None:
        self._driver.hang(on=True)

    def mend(self) -> None:
        """Everything is whole again."""
        self._driver.hang(on=False)
        self._traffic.slow_port = False
        for gpu in self._gpus:
            gpu.lost = gpu.remap_failed = gpu.flipping = False
            gpu.width = LANES
            gpu.cut_peers.clear()
            for link in gpu.links:
                link.cut, link.errors = False, 0.0
