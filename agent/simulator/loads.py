"""Loads of GPUs and hosts in scenarios, from `loads.toml`. Shares are fractions (0-1)."""

from math import inf
from typing import Any

from msgspec import Struct, convert

from agent.metrics import beside

STEP = 0.23
"""Seconds per training step on an H100. A second is not a multiple of this value, so that reads
once per second meet every phase of a step."""


class GpuLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """Load of a GPU during one phase of its work, such as one phase of a training step."""

    power: float  # share of the power limit
    activity: float = 0.0  # share of time for which a kernel runs
    sm: float = 0.0
    occupancy: float = 0.0
    tensor: float = 0.0
    dram: float = 0.0  # share of the memory bandwidth
    controller: float = 0.0  # NVML memory utilization
    receive: float = 0.0  # PCIe payload, as a share of the slot limit
    transmit: float = 0.0
    nvlink: float = 0.0  # wire traffic in each direction, as a share of nominal link speed
    copies: float = 0.0  # NVML utilization if only copy engines run

    @property
    def utilisation(self) -> float:
        """NVML utilization (0-1). It includes kernels and copies."""
        return max(self.activity, self.copies)


class GpuWork(Struct, frozen=True, forbid_unknown_fields=True):
    """Work that a GPU repeats, such as a training step. Each of its phases has a share of the
    duration. Work without visible steps has a single phase."""

    phases: tuple[tuple[float, GpuLoad], ...]
    step: float = STEP  # duration on an H100 (s)
    paced: bool = True  # the step takes longer on slower GPUs
    memory: float = 0.0  # share of device memory; if above 0, the GPU has a process
    clock: float = 1.0  # share of the maximum SM clock
    ripple: float = 0.02  # relative power noise between adjacent samples
    overheated: bool = False  # just above the slowdown threshold
    slowed: bool = False  # hardware thermal slowdown

    def mean(self, part: str) -> float:
        total = sum(share for share, _ in self.phases)
        return float(sum(share * getattr(load, part) for share, load in self.phases) / total)


class ThreadLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of time in which a thread runs or waits. It sleeps for the rest of the time."""

    cores: float = 0.0  # CPU cores used
    queued: float = 0.0  # share of time for which the thread is runnable but has no CPU
    blocked: float = 0.0  # share of time in uninterruptible sleep, waiting for a disk
    name: str = ""  # thread name, if different from the process name


class SimulatedJob(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes of a GPU: a trainer with several threads, and single-threaded data loaders."""

    threads: tuple[ThreadLoad, ...] = (ThreadLoad(),)  # the first thread is the main thread
    loaders: int = 0
    loader: ThreadLoad = ThreadLoad()
    waiting: int | None = None  # the rank whose processes sleep because they wait for input
    alone: bool = False  # each GPU has its own server instead of a rank of a shared job


class HostLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """Load of the host from outside the job's processes, such as storage traffic."""

    disk: float = 0.0  # reads from the data array
    written: float = 0.0  # writes to the data array, as a share of its read capacity
    network: float = 0.0  # received traffic on the first NIC
    infiniband: float = 0.0  # traffic in each direction on every port
    io_pressure: float = 0.0
    cpu_pressure: float = 0.0
    mounted: bool = False  # a network file system, whose data arrives on the first NIC


class ScenarioLoad(Struct, frozen=True, forbid_unknown_fields=True):
    """The loads of a scenario: the work of each GPU, its job, the load of the host, and the
    duration in seconds. The last entry in `works` also applies to all GPUs with a higher index."""

    works: tuple[GpuWork, ...]
    job: SimulatedJob = SimulatedJob()
    host: HostLoad = HostLoad()
    seconds: float = inf

    def of(self, index: int) -> GpuWork:
        return self.works[min(index, len(self.works) - 1)]


def _server(number: int) -> dict[str, Any]:
    """Return the load of an inference server. Every 10 s or so, it handles a request for 0.12 s."""
    pauses = [4.0 + 12.0 * ((7 * number + 5 * n * n + 3 * n) % 11) / 10.0 for n in range(11)]
    length = sum(pauses) + 0.12 * len(pauses)
    phases = [p for s in pauses for p in ((s / length, "rest"), (0.12 / length, "answer"))]
    return {"phases": phases, "step": length, "paced": False, "memory": 0.5, "ripple": 0.004}


def _scenarios(tables: dict[str, Any]) -> dict[str, tuple[ScenarioLoad, ...]]:
    phases = tables["phases"]
    phases["answer"] = {**phases["burst"], "receive": 0.0001}  # a request contains few tokens
    works = tables["works"] | {f"server-{number}": _server(number) for number in range(8)}
    for work in works.values():
        work["phases"] = [(share, phases[name]) for share, name in work["phases"]]
    for part in (part for parts in tables["scenarios"].values() for part in parts):
        part["works"] = [works[name] for name in part["works"]]
        if "job" in part:
            part["job"] = tables["jobs"][part["job"]]
    return convert(tables["scenarios"], dict[str, tuple[ScenarioLoad, ...]])


PARTS = _scenarios(beside(__file__))
IDLE = PARTS["idle"][0].works[0]


def parts_of(scenario: str) -> tuple[ScenarioLoad, ...]:
    return PARTS.get(scenario, PARTS["training"])
