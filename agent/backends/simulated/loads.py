"""What jobs ask of a GPU and of the host. Shares are 0-1 of what the part can do.

The figures are those measured on H100 and H200 under labelled loads.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Load:
    """One GPU's work. `memory` above 0 means that a process is there."""

    power: float  # of the power limit
    activity: float = 0.0  # a kernel runs
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0  # of the memory bandwidth
    controller: float = 0.0  # NVML's memory utilisation
    receive: float = 0.0  # PCIe payload, of the slot's limit
    transmit: float = 0.0
    nvlink: float = 0.0  # wire, of each link's nominal speed, both directions
    memory: float = 0.0  # of the device memory, held by the process
    clock: float = 1.0  # of the highest SM clock
    copies: float = 0.0  # NVML utilisation where only copy engines run
    overheated: bool = False  # just above the slowdown threshold
    slowed: bool = False  # hardware thermal slowdown

    @property
    def utilisation(self) -> float:
        """NVML's: kernels and copies alike."""
        return max(self.activity, self.copies)


@dataclass(frozen=True, slots=True)
class Job:
    """The processes behind one GPU; cores are shares of a CPU."""

    forward: float = 0.0  # cores of the main thread
    backward: float = 0.0  # cores of the second thread
    running: float = 0.0  # share of time that the main process is seen running
    loaders: int = 0
    loader_cores: float = 0.0
    loader_running: float = 0.0
    loader_waiting: float = 0.0  # uninterruptible


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The host's work beyond the processes of the job."""

    disk: float = 0.0  # reads from the data array
    network: float = 0.0  # receive on the first NIC
    infiniband: float = 0.0  # both directions, every port
    io_pressure: float = 0.0
    cpu_pressure: float = 0.0
    mounted: bool = False  # a network file system


@dataclass(frozen=True, slots=True)
class Play:
    """A load of all GPUs, another one for the first GPU where it differs, and their host."""

    load: Load
    job: Job = field(default_factory=Job)
    host: HostLoad = field(default_factory=HostLoad)
    first: Load | None = None

    def of(self, index: int) -> Load:
        return self.first if self.first is not None and index == 0 else self.load


IDLE = Load(power=0.12)
HELD = Load(power=0.17, memory=0.3)
TRAIN = Load(
    power=0.91,
    activity=0.97,
    sm=0.90,
    occupancy=0.45,
    tensor=0.50,
    dram=0.48,
    controller=0.42,
    receive=0.0004,
    transmit=0.0002,
    nvlink=0.05,
    memory=0.75,
)
HUNGRY = Load(  # six loaders reading cold data
    power=0.30,
    activity=0.245,
    sm=0.19,
    occupancy=0.10,
    tensor=0.11,
    dram=0.11,
    controller=0.10,
    receive=0.0045,
    transmit=0.0003,
    memory=0.6,
)
DECODING = replace(HUNGRY, power=0.27, activity=0.178, sm=0.14, receive=0.0033)
LAUNCHING = replace(
    HUNGRY, power=0.20, activity=0.19, sm=0.06, occupancy=0.03, tensor=0.02, receive=0.0023
)
COPYING = Load(power=0.186, copies=0.992, dram=0.017, controller=0.03, receive=0.87, memory=0.2)
SLOWEST = replace(TRAIN, power=0.92, activity=1.0, sm=0.88, dram=0.53, nvlink=0.0025)
WAITING = replace(TRAIN, power=0.46, activity=1.0, sm=0.50, dram=0.21, nvlink=0.0025)
REDUCING = Load(
    power=0.40,
    activity=0.99,
    sm=0.178,
    occupancy=0.10,
    dram=0.23,
    controller=0.25,
    receive=0.0003,
    transmit=0.0002,
    nvlink=0.92,
    memory=0.5,
)
HALTING = replace(TRAIN, power=0.62, clock=0.60, slowed=True)

FEEDING = HostLoad(disk=0.10, network=0.002)
STEADY = Job(0.50, 0.49, 0.50, loaders=4, loader_cores=0.12, loader_running=0.12)
STUCK = Job(0.16, 0.14, 0.14, 6, 0.068, 0.05, 0.94)
SPINNING = Job(forward=1.0, running=1.0)

TRAINING = Play(TRAIN, STEADY, FEEDING)

PLAYS: dict[str, Play] = {
    "training": TRAINING,
    "idle": Play(IDLE),
    "held": Play(HELD),
    "starved-disk": Play(HUNGRY, STUCK, HostLoad(disk=0.98, io_pressure=0.85)),
    "starved-network": Play(
        HUNGRY, STUCK, HostLoad(disk=0.001, network=0.96, io_pressure=0.02, mounted=True)
    ),
    "starved-pcie": Play(IDLE, SPINNING, first=COPYING),
    "starved-cpu": Play(
        DECODING,
        Job(0.11, 0.09, 0.12, 2, 1.0, 1.0),
        HostLoad(disk=0.05, cpu_pressure=0.009),
    ),
    "starved-host-thread": Play(LAUNCHING, Job(0.54, 0.44, 0.56), HostLoad(cpu_pressure=0.002)),
    "starved-peer": Play(WAITING, STEADY, FEEDING, first=SLOWEST),
    "nvlink-saturated": Play(REDUCING, SPINNING),
    "infiniband-saturated": Play(
        replace(REDUCING, nvlink=0.04), SPINNING, HostLoad(infiniband=0.955)
    ),
    "throttled": Play(HALTING, STEADY, FEEDING),
    "gpu-hot": Play(TRAIN, STEADY, FEEDING, first=replace(TRAIN, overheated=True)),
}
"""Scenarios whose load is not that of training; the others are training with a fault."""


def play_of(scenario: str) -> Play:
    return PLAYS.get(scenario, TRAINING)
