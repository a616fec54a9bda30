"""Loads of jobs on a GPU and on the host: `loads.toml`. Shares are 0-1 of the part's capacity."""

import tomllib
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

STEP = 0.23
"""Seconds of a training step on an H100. A second is no multiple of it, so that a read of every
second meets every phase in turn."""


class GpuLoad(Struct, frozen=True):
    """Load of a GPU in a phase of a step."""

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
    copies: float = 0.0  # NVML utilisation if only copy engines run

    @property
    def utilisation(self) -> float:
        """Utilisation by NVML: kernels and copies alike."""
        return max(self.activity, self.copies)


class GpuWork(Struct, frozen=True):
    """A step that a GPU repeats: its phases, each with its share. A single phase is work without a
    rhythm, or with steps too short to be visible."""

    phases: tuple[tuple[float, GpuLoad], ...]
    step: float = STEP  # s on an H100
    paced: bool = True  # slower GPUs take longer for it
    memory: float = 0.0  # of the device memory; above 0 a process is there
    clock: float = 1.0  # of the highest SM clock
    ripple: float = 0.02  # of the power, between neighbouring samples
    overheated: bool = False  # just above the slowdown threshold
    slowed: bool = False  # hardware thermal slowdown

    def mean(self, part: str) -> float:
        total = sum(share for share, _ in self.phases)
        return float(sum(share * getattr(load, part) for share, load in self.phases) / total)


class ThreadLoad(Struct, frozen=True):
    """Load of a thread. It sleeps for the rest of its time."""

    cores: float = 0.0  # share of a CPU that it uses
    queued: float = 0.0  # share of time that it could run and has no CPU
    blocked: float = 0.0  # share of time in uninterruptible sleep: it waits for a disk
    name: str = ""  # if it differs from that of its process


class SimulatedJob(Struct, frozen=True):
    """The processes behind a GPU: the trainer's threads, and loaders of one thread each."""

    threads: tuple[ThreadLoad, ...] = (ThreadLoad(),)  # the first is the main thread
    loaders: int = 0
    loader: ThreadLoad = ThreadLoad()
    waiting: int | None = None  # the rank whose processes sleep: it waits for input
    alone: bool = False  # no rank of a job with the other GPUs: a server of its own


class HostLoad(Struct, frozen=True):
    """The host's work beyond the processes of the job."""

    disk: float = 0.0  # reads from the data array
    written: float = 0.0  # writes to the data array, as a share of its reading capacity
    network: float = 0.0  # receive on the first NIC
    infiniband: float = 0.0  # both directions, every port
    io_pressure: float = 0.0
    cpu_pressure: float = 0.0
    mounted: bool = False  # a network file system; the NIC receives its data


class ScenarioLoad(Struct, frozen=True):
    """The work of the GPUs by index (the last also for all further GPUs) and of their host, for so
    many seconds."""

    works: tuple[GpuWork, ...]
    job: SimulatedJob = SimulatedJob()
    host: HostLoad = HostLoad()
    seconds: float = inf

    def of(self, index: int) -> GpuWork:
        return self.works[min(index, len(self.works) - 1)]


def _server(number: int) -> dict[str, Any]:
    """Return a server that answers a request of 0.12 s about every 10 s, without a rhythm."""
    pauses = [4.0 + 12.0 * ((7 * number + 5 * n * n + 3 * n) % 11) / 10.0 for n in range(11)]
    length = sum(pauses) + 0.12 * len(pauses)
    phases = [p for s in pauses for p in ((s / length, "rest"), (0.12 / length, "answer"))]
    return {"phases": phases, "step": length, "paced": False, "memory": 0.5, "ripple": 0.004}


def _scenarios(tables: dict[str, Any]) -> dict[str, tuple[ScenarioLoad, ...]]:
    phases = tables["phases"]
    phases["answer"] = {**phases["burst"], "receive": 0.0001}  # a request is some tokens
    works = tables["works"] | {f"server-{number}": _server(number) for number in range(8)}
    for work in works.values():
        work["phases"] = [(share, phases[name]) for share, name in work["phases"]]
    for part in (part for parts in tables["scenarios"].values() for part in parts):
        part["works"] = [works[name] for name in part["works"]]
        part["job"] = tables["jobs"].get(part.get("job"), {})
    return msgspec.convert(tables["scenarios"], dict[str, tuple[ScenarioLoad, ...]])


PARTS = _scenarios(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))
IDLE = PARTS["idle"][0].works[0]


def parts_of(scenario: str) -> tuple[ScenarioLoad, ...]:
    return PARTS.get(scenario, PARTS["training"])
