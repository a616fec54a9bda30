"""Faults of a simulated machine, and their repair.

After any of these the machine lets its counters follow (`Machine.apply`).
"""

from collections.abc import Sequence
from dataclasses import fields

from agent.simulator import odd_answers, refusals
from agent.simulator.driver import SimulatedDriver
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.gpu_models import VOLTA
from agent.simulator.health import GpuHealth, HostHealth
from agent.simulator.kernel_log import GARBAGE, SimulatedKernelLog
from agent.simulator.odd_answers import OddAnswers
from agent.simulator.traffic import SimulatedTraffic

ECC_XID, HALT_XID, LOST_XID = 48, 62, 79
"""Double-bit error; micro-controller halt (for GPUs without ECC); fell off the bus."""

SLOW = 45.0  # Seconds of a call that waits for a GPU's system processor in vain
FAILING = ("PowerUsage", "Temperature", "ClockInfo", "FieldValues")
FLOOD = 300  # Lines of each flood: garbage, and page faults of one program


class SimulatedFaults:
    """Breaks and repairs GPUs, links, ports and the driver."""

    def __init__(
        self,
        gpus: Sequence[SimulatedGpu],
        traffic: SimulatedTraffic,
        driver: SimulatedDriver,
        host: HostHealth,
        kernel_log: SimulatedKernelLog,
    ) -> None:
        self.gpus = gpus
        self.traffic = traffic
        self.host = host
        self.kernel_log = kernel_log
        self._driver = driver

    def lose(self, index: int) -> None:
        """The GPU falls off the bus, with XID 79; links to it go down."""
        self.kernel_log.fallen(self.gpus[index].bus)
        self._driver.xid(index, LOST_XID)
        self.gpus[index].lost = True
        for gpu in self._others(index):
            gpu.cut_peers.add(index)

    def restore(self, index: int) -> None:
        self.gpus[index].lost = False
        for gpu in self._others(index):
            gpu.cut_peers.discard(index)

    def _others(self, index: int) -> list[SimulatedGpu]:
        return [gpu for gpu in self.gpus if gpu.index != index]

    def cut_link(self, index: int, number: int) -> None:
        """One link goes down, at both ends where both are GPUs."""
        link = self.gpus[index].links[number]
        link.cut = True
        if link.peer is not None and link.peer_link is not None:
            self.gpus[link.peer].links[link.peer_link].cut = True

    def report_xid(self) -> None:
        self._driver.xid(0, ECC_XID if self.gpus[0].model.ecc else HALT_XID)

    def xid(self, code: int) -> None:
        """An XID error of the first GPU, with what NVML shows of it."""
        if code == LOST_XID:
            self.lose(0)
        else:
            self._driver.xid(0, code)

    def flip_bits(self) -> None:
        self.gpus[0].flipping = True

    def double_bit(self) -> None:
        gpu, older = self.gpus[0], self.gpus[0].model.architecture <= VOLTA
        gpu.flipping = True
        for code in (48, 63, 45) if older else (48, 63, 45, 154):
            self.xid(code)
        gpu.health.pages_pending, gpu.health.rows_pending = older, not older
        gpu.health.recovery = int(not older)

    def end_fabric(self) -> None:
        """Stop the Fabric Manager, without which no GPU joins."""
        self.host.fabric_service = False
        for gpu in self.gpus:
            gpu.health.fabric_state = 2

    def lose_member(self) -> None:
        array = next(a for a in self.traffic.system.arrays if not a.striped)
        self.host.lost_members = 1
        self.host.dead_disks.add(array.members[-1].name)

    def flood(self) -> None:
        for number in range(FLOOD):
            self.kernel_log.write(GARBAGE[number % len(GARBAGE)])
            self.xid(31)

    def flap(self) -> None:
        """Down for one look, and up again."""
        self.host.port_down = not self.host.port_down
        if self.host.port_down:
            self.traffic.lose_link()

    def answer_oddly(self, kind: str) -> None:
        """The driver answers for the first GPU, now and then, what cannot be."""
        self._driver.odd = OddAnswers(odd_answers.kind(kind))

    def hang_driver(self) -> None:
        self._driver.hang(on=True)

    def end_processor(self) -> None:
        """The GPU's system processor is gone, and calls of the driver hang."""
        self.xid(119)
        self.hang_driver()

    def slow_down(self) -> None:
        """The second GPU takes longer for each call than its system processor may (XID 119)."""
        self.gpus[1].slow = SLOW

    def fail_calls(self) -> None:
        for name in FAILING:
            self._driver.fail(f"nvmlDeviceGet{name}", refusals.UNKNOWN, 0)

    def repair(self) -> None:
        self._driver.hang(on=False)
        self._driver.odd = None
        self._driver.failures.clear()
        for part in fields(HostHealth):
            setattr(self.host, part.name, getattr(HostHealth(), part.name))
        self.traffic.slow_port = False
        for gpu in self.gpus:
            gpu.slow = 0.0
            gpu.mig = gpu.lost = gpu.remap_failed = gpu.flipping = False
            gpu.health = GpuHealth()
            gpu.width = gpu.model.lanes
            gpu.cut_peers.clear()
            for link in gpu.links:
                link.cut, link.errors = False, 0.0
