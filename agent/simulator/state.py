"""State of a simulated machine: its parts and the faults that affect them."""

from agent.simulator.driver import SimulatedDriver, SimulatedKernelLog
from agent.simulator.gpu import GpuHealth, SimulatedGpu, wire
from agent.simulator.jobs import SimulatedJobs
from agent.simulator.models import VOLTA, SystemModel, address
from agent.simulator.traffic import HostHealth, SimulatedTraffic

LOST_XID = 79  # GPU has fallen off the bus


class MachineState:
    """The current state of a simulated machine."""

    def __init__(self, system: SystemModel, driver: str) -> None:
        self.system: SystemModel = system
        self.driver: SimulatedDriver = SimulatedDriver(driver)
        self.gpus: list[SimulatedGpu] = [
            SimulatedGpu(system, i, links) for i, links in enumerate(wire(system))
        ]
        self.jobs = SimulatedJobs()
        self.traffic = SimulatedTraffic(system)
        older = system.model.architecture <= VOLTA
        self.kernel_log: SimulatedKernelLog = SimulatedKernelLog(lambda: self.now, older)
        self.driver.log_xid = self._log_xid
        self.host_health = HostHealth()
        self.traffic.health = self.host_health
        self.now = 0.0

    def apply(self) -> None:
        for gpu in self.gpus:
            gpu.apply(self.now)
        self.traffic.apply(self.now, self.jobs.cores, self.jobs.blocked)

    def lose(self, index: int) -> None:
        """Make a GPU fall off the bus, and take down all links to that GPU."""
        bus = address(self.gpus[index].bus)
        self.kernel_log.write(f"NVRM: GPU {bus}: GPU has fallen off the bus.")
        self.driver.xid(index, LOST_XID)
        self.gpus[index].lost = True
        for gpu in self.gpus:
            gpu.cut_peers.add(index)

    def lose_third(self) -> None:
        """Lose the third GPU, or the last GPU if there are fewer than three."""
        self.lose(min(2, len(self.gpus) - 1))

    def halve_width(self) -> None:
        self.gpus[0].width //= 2

    def mark_disk(self, part: str) -> None:
        """Add the first disk to the set `part` of the host's health."""
        getattr(self.host_health, part).add(self.system.disks[0].name)

    def fatal_xid(self) -> None:
        self.xid(48 if self.system.model.datacentre else 62)

    def cut_link(self, index: int, number: int) -> None:
        """Take a link down. If the peer is also a GPU, take down both ends."""
        link = self.gpus[index].links[number]
        link.cut = True
        if link.peer is not None and link.peer_link is not None:
            self.gpus[link.peer].links[link.peer_link].cut = True

    def xid(self, code: int) -> None:
        if code == LOST_XID:
            self.lose(0)
        else:
            self.driver.xid(0, code)

    def double_bit(self) -> None:
        gpu, older = self.gpus[0], self.system.model.architecture <= VOLTA
        gpu.flipping = True
        for code in (48, 63, 45) if older else (48, 63, 45, 154):
            self.xid(code)
        gpu.health.pages_pending, gpu.health.rows_pending = older, not older
        gpu.health.recovery = int(not older)

    def end_fabric(self) -> None:
        """Stop the Fabric Manager, without which GPUs cannot join the fabric."""
        self.host_health.fabric_service = False
        for gpu in self.gpus:
            gpu.health.fabric_state = 2

    def lose_member(self) -> None:
        array = next(a for a in self.system.arrays if not a.striped)
        self.host_health.lost_members = 1
        self.host_health.dead_disks.add(array.members[-1].name)

    def flap(self) -> None:
        """Take the first InfiniBand port down, or bring it up if it is down."""
        self.host_health.port_down = not self.host_health.port_down
        if self.host_health.port_down:
            self.traffic.meter.add(f"link_downed:{self.system.hcas[0].name}", 1.0)

    def repair(self) -> None:
        self.driver.hung = False
        self.driver.failures.clear()
        HostHealth.__init__(self.host_health)
        for gpu in self.gpus:
            gpu.slow = 0.0
            gpu.mig = gpu.lost = gpu.remap_failed = gpu.flipping = False
            gpu.health = GpuHealth()
            gpu.width = gpu.model.lanes
            gpu.cut_peers.clear()
            for link in gpu.links:
                link.cut, link.errors = False, 0.0

    def _log_xid(self, index: int, code: int) -> None:
        gpu = self.gpus[index]
        pid = gpu.processes[0].pid if gpu.processes else None
        self.kernel_log.xid(gpu.bus, code, pid)
