"""What jobs ask of a GPU and of the host, phase by phase. Shares are 0-1 of what the part can do.

The figures are those measured on H100 and H200 under labelled loads; a board scales the watts.
"""

from dataclasses import dataclass, field, replace

FOREVER = float("inf")
STEP = 0.23
"""Seconds that an H100 takes for a step of the training that is simulated; no part of a second, so
that reads each second meet every phase in turn."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What one GPU does in one phase of a step."""

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
    copies: float = 0.0  # NVML utilisation where only copy engines run

    @property
    def utilisation(self) -> float:
        """NVML's: kernels and copies alike."""
        return max(self.activity, self.copies)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A step that one GPU repeats: its phases, each with its share of the step. One phase alone is
    work without a rhythm, or with steps too short for anyone to see."""

    phases: tuple[tuple[float, GpuLoad], ...]
    step: float = STEP  # s on an H100
    paced: bool = True  # slower GPUs take longer for it
    memory: float = 0.0  # of the device memory; above 0 a process is there
    clock: float = 1.0  # of the highest SM clock
    ripple: float = 0.02  # of the power, from one sample to the next
    collectives: int = 0  # all-reduces a step
    overheated: bool = False  # just above the slowdown threshold
    slowed: bool = False  # hardware thermal slowdown

    def mean(self, part: str) -> float:
        """The mean of one part of the load over a step."""
        total = sum(share for share, _ in self.phases)
        return float(sum(share * getattr(load, part) for share, load in self.phases) / total)


@dataclass(frozen=True, slots=True)
class ThreadLoad:
    """One thread. What is left of its time it sleeps."""

    cores: float = 0.0  # share of a CPU that it uses
    queued: float = 0.0  # share of time that it could run and has no CPU
    blocked: float = 0.0  # share of time in uninterruptible sleep: it waits for a disk
    name: str = ""  # where it differs from that of its process


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """The processes behind one GPU: the trainer's threads, and loaders of one thread each."""

    threads: tuple[ThreadLoad, ...] = (ThreadLoad(),)  # the first is the main thread
    loaders: int = 0
    loader: ThreadLoad = ThreadLoad()
    allowed: int = 0  # CPUs that they may use together; 0: all
    waiting: int | None = None  # the rank whose processes sleep: it waits for input
    alone: bool = False  # no rank of a job with the other GPUs: a server of its own


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The host's work beyond the processes of the job."""

    disk: float = 0.0  # reads from the data array
    written: float = 0.0  # writes to it, of what it can read
    network: float = 0.0  # receive on the first NIC
    infiniband: float = 0.0  # both directions, every port
    io_pressure: float = 0.0
    cpu_pressure: float = 0.0
    mounted: bool = False  # a network file system, and what the NIC receives is read from it


@dataclass(frozen=True, slots=True)
class ScenarioLoad:
    """The work of each GPU by index, the last one's for all that follow, and their host.

    `late` is the rank that launches one collective less than the others, None in health.
    """

    works: tuple[GpuWork, ...]
    job: SimulatedJob = field(default_factory=SimulatedJob)
    host: HostLoad = field(default_factory=HostLoad)
    late: int | None = None

    def of(self, index: int) -> GpuWork:
        return self.works[min(index, len(self.works) - 1)]


@dataclass(frozen=True, slots=True)
class ScenarioPart:
    """A load that lasts so many seconds. Parts of one scenario have jobs of the same shape."""

    load: ScenarioLoad
    seconds: float = FOREVER


# phases

REST = GpuLoad(power=0.178)  # a process is there, and no kernel runs: 124 W of 700
SPIN = GpuLoad(power=0.18, activity=1.0, sm=0.1818, occupancy=0.048)
"""A collective that waits for a GPU which does not come: no byte moves."""

FORWARD = GpuLoad(
    power=0.84,
    activity=0.95,
    sm=0.88,
    occupancy=0.45,
    tensor=0.50,
    dram=0.46,
    controller=0.40,
    receive=0.0008,
    transmit=0.0002,
)
BACKWARD = replace(
    FORWARD,
    power=1.0,
    activity=0.99,
    sm=0.93,
    tensor=0.53,
    dram=0.50,
    controller=0.45,
    receive=0.0002,
    nvlink=0.10,  # the all-reduce, behind the kernels of the backward pass
)
OPTIMIZER = replace(
    FORWARD, power=0.78, activity=0.95, sm=0.84, tensor=0.41, dram=0.46, controller=0.37
)
BURST = GpuLoad(  # the short burst that a batch is worth to a GPU which waits for the next one
    power=0.68,
    activity=1.0,
    sm=0.776,
    occupancy=0.41,
    tensor=0.45,
    dram=0.45,
    controller=0.41,
    receive=0.018,
    transmit=0.0012,
)
DENSE = GpuLoad(
    power=1.05, activity=0.997, sm=0.965, occupancy=0.10, tensor=0.937, dram=0.18, controller=0.2
)
REDUCING = GpuLoad(
    power=0.41,
    activity=0.99,
    sm=0.176,
    occupancy=0.10,
    dram=0.23,
    controller=0.25,
    receive=0.0003,
    transmit=0.0002,
    nvlink=0.92,
)
ACROSS = replace(REDUCING, nvlink=0.04)  # between nodes: InfiniBand is what it waits for
COPYING = GpuLoad(power=0.186, copies=0.992, dram=0.017, controller=0.03, receive=0.87)
LAUNCHING = GpuLoad(
    power=0.22,
    activity=0.19,
    sm=0.06,
    occupancy=0.03,
    tensor=0.02,
    dram=0.11,
    controller=0.10,
    receive=0.0023,
    transmit=0.0003,
)

# steps

IDLE = GpuWork(((1.0, GpuLoad(power=0.12)),), ripple=0.01)
HELD = GpuWork(((1.0, REST),), memory=0.3, ripple=0.005)
TRAIN = GpuWork(((0.33, FORWARD), (0.50, BACKWARD), (0.17, OPTIMIZER)), memory=0.75, collectives=12)
HALTING = replace(
    TRAIN,
    phases=tuple((share, replace(load, power=0.68 * load.power)) for share, load in TRAIN.phases),
    step=STEP / 0.6,
    clock=0.60,
    slowed=True,
)


def _in_bursts(share: float) -> GpuWork:
    """Training that computes for this share of a step, and waits for its data in the rest."""
    return replace(TRAIN, phases=((1.0 - share, REST), (share, BURST)), memory=0.6, collectives=1)


ALONE = replace(BACKWARD, nvlink=0.0)
EXCHANGE = replace(OPTIMIZER, nvlink=0.30)
"""Where ranks wait for one another, data moves only when all of them are there."""

SLOWEST = replace(
    TRAIN, phases=((0.34, FORWARD), (0.50, ALONE), (0.16, EXCHANGE)), step=2 * STEP, collectives=1
)
WAITING = replace(SLOWEST, phases=((0.10, FORWARD), (0.15, ALONE), (0.59, SPIN), (0.16, EXCHANGE)))
EXPOSED = replace(TRAIN, phases=((0.61, DENSE), (0.39, REDUCING)), step=0.35, collectives=1)

LATE = 0.11
"""Share of a step by which one rank comes late; the others wait for it before they exchange."""

LATE_RANK = replace(
    TRAIN,
    phases=((LATE, REST), (0.30, FORWARD), (0.44, ALONE), (0.15, EXCHANGE)),
    step=STEP / (1.0 - LATE),
)
ITS_PEER = replace(
    LATE_RANK, phases=((0.30, FORWARD), (0.44, ALONE), (LATE, SPIN), (0.15, EXCHANGE))
)

NODE_SLOWER = 0.08
"""By how much one node of a job takes longer for its steps; the others wait for it in each."""

SLOW_NODE = replace(
    TRAIN,
    phases=((0.32, FORWARD), (0.52, ALONE), (0.16, EXCHANGE)),
    step=STEP * (1.0 + NODE_SLOWER),
    collectives=1,
)
NODE_WAITS = NODE_SLOWER / (1.0 + NODE_SLOWER)
WAITS_FOR_NODE = replace(
    SLOW_NODE,
    phases=((0.29, FORWARD), (0.55 - NODE_WAITS, ALONE), (NODE_WAITS, SPIN), (0.16, EXCHANGE)),
)


def _server(number: int) -> GpuWork:
    """A server that answers a request of 0.12 s each 10 s or so, and never twice in a rhythm."""
    pauses = [4.0 + 12.0 * ((7 * number + 5 * n * n + 3 * n) % 11) / 10.0 for n in range(11)]
    length = sum(pauses) + 0.12 * len(pauses)
    answer = replace(BURST, receive=0.0001)  # a request is some tokens
    phases = tuple(
        part for pause in pauses for part in ((pause / length, REST), (0.12 / length, answer))
    )
    return GpuWork(phases, step=length, paced=False, memory=0.5, ripple=0.004)


# processes and hosts

FEEDING = HostLoad(disk=0.10, network=0.002)
ACROSS_NODES = replace(FEEDING, infiniband=0.30)
EVENTS = ThreadLoad(name="cuda-EvtHandlr")


def _trainer(forward: float, backward: float = 0.0, blocked: float = 0.0) -> tuple[ThreadLoad, ...]:
    """The threads of a PyTorch process: forward pass, backward pass, the driver's events."""
    main = ThreadLoad(forward, blocked=blocked)
    return (main, ThreadLoad(backward, name="pt_autograd_0"), EVENTS)


STEADY = SimulatedJob(_trainer(0.50, 0.49), loaders=4, loader=ThreadLoad(0.12))
STUCK = SimulatedJob(_trainer(0.16, 0.14), loaders=6, loader=ThreadLoad(0.068, blocked=0.93))
DECODING = SimulatedJob(_trainer(0.11, 0.09), loaders=2, loader=ThreadLoad(0.99, queued=0.01))
DECODER = ThreadLoad(0.62, queued=0.35, name="decoder")
THREADED = SimulatedJob((*_trainer(0.15, 0.12), *(6 * [DECODER])), allowed=4)
SPINNING = SimulatedJob(_trainer(1.0))
HANGING = replace(STEADY, threads=_trainer(1.0), loader=ThreadLoad(), waiting=1)
"""The second waits for input; the other trainers spin in synchronisation, and their loaders have
filled their queues."""
SAVING = replace(STEADY, threads=_trainer(0.06, blocked=0.90), loader=ThreadLoad())
SERVING = SimulatedJob(_trainer(1.0), alone=True)

TRAINING = ScenarioLoad((TRAIN,), STEADY, FEEDING)


def _still(load: GpuLoad) -> GpuWork:
    return GpuWork(((1.0, load),), memory=0.75, ripple=0.004)


PARTS: dict[str, tuple[ScenarioPart, ...]] = {
    name: (ScenarioPart(load),)
    for name, load in {
        "training": TRAINING,
        "idle": ScenarioLoad((IDLE,)),
        "held": ScenarioLoad((HELD,)),
        "starved-disk": ScenarioLoad(
            (_in_bursts(0.245),), STUCK, HostLoad(disk=0.98, io_pressure=0.85)
        ),
        "starved-network": ScenarioLoad(
            (_in_bursts(0.245),),
            STUCK,
            HostLoad(disk=0.001, network=0.96, io_pressure=0.85, mounted=True),
        ),
        "starved-pcie": ScenarioLoad((GpuWork(((1.0, COPYING),), memory=0.2), IDLE), SPINNING),
        "starved-cpu": ScenarioLoad(
            (_in_bursts(0.178),), DECODING, HostLoad(disk=0.05, cpu_pressure=0.009)
        ),
        "starved-host-thread": ScenarioLoad(
            (GpuWork(((1.0, LAUNCHING),), step=0.02, memory=0.6, ripple=0.07),),
            SimulatedJob(_trainer(0.54, 0.44)),
            HostLoad(cpu_pressure=0.002),
        ),
        "starved-peer": ScenarioLoad((SLOWEST, WAITING), STEADY, FEEDING),
        "nvlink-saturated": ScenarioLoad(
            (GpuWork(((1.0, REDUCING),), step=0.006, memory=0.5, collectives=1),), SPINNING
        ),
        "infiniband-saturated": ScenarioLoad(
            (GpuWork(((1.0, ACROSS),), step=0.04, memory=0.5, collectives=1),),
            SPINNING,
            HostLoad(infiniband=0.955),
        ),
        "exposed-communication": ScenarioLoad((EXPOSED,), STEADY, FEEDING),
        "late-rank": ScenarioLoad((ITS_PEER, LATE_RANK, ITS_PEER), STEADY, FEEDING),
        "waits-for-node": ScenarioLoad((WAITS_FOR_NODE,), STEADY, ACROSS_NODES),
        "slow-node": ScenarioLoad((SLOW_NODE,), STEADY, ACROSS_NODES),
        "threads": ScenarioLoad(
            (_in_bursts(0.44),), THREADED, HostLoad(disk=0.05, cpu_pressure=0.60)
        ),
        "no-demand": ScenarioLoad(tuple(map(_server, range(8))), SERVING),
        "throttled": ScenarioLoad((HALTING,), STEADY, FEEDING),
        "gpu-hot": ScenarioLoad((replace(TRAIN, overheated=True), TRAIN), STEADY, FEEDING),
    }.items()
}
"""Scenarios whose load is not that of training; the others are training with a fault."""

PARTS["hang"] = (
    ScenarioPart(TRAINING, 10.0),
    ScenarioPart(
        ScenarioLoad((_still(SPIN), _still(REST), _still(SPIN)), HANGING, late=1),
    ),
)
PARTS["checkpoint"] = (
    ScenarioPart(TRAINING, 15.0),
    ScenarioPart(
        ScenarioLoad(
            (_still(REST),),
            SAVING,
            HostLoad(written=0.5, io_pressure=0.9),
        ),
        75.0,
    ),
)


def parts_of(scenario: str) -> tuple[ScenarioPart, ...]:
    """The loads of a scenario, one after the other, and then again from the first."""
    return PARTS.get(scenario, PARTS["training"])
