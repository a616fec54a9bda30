"""The scenarios: which system can have each, and the faults that come with it.

| scenario | GPUs concerned |
|---|---|
| training, idle, held, starved-disk, -network, -cpu, -host-thread | all |
| nvlink-saturated, infiniband-saturated, exposed-communication, throttled | all |
| checkpoint, threads, no-demand | all |
| hang | all, after 10 s of training; the second has launched one collective less |
| late-rank | the second comes late in each step, the others wait for it |
| starved-pcie | the first; the others are idle |
| starved-peer | the first computes double, the others wait for it |
| gpu-hot, nvlink-down, nvlink-errors, pcie-degraded, xid, ecc, row-remap | the first |
| gpu-lost | the third, or the last of fewer |
| port-degraded | the first InfiniBand port, on systems without InfiniBand the first NIC |
| driver-hang | all |
"""

from collections.abc import Callable
from typing import NamedTuple

from agent.simulator.faults import SimulatedFaults
from agent.simulator.gpu_models import AMPERE
from agent.simulator.system_models import SystemModel

TOUR = "tour"
SLOT = 60.0
"""Seconds that the tour stays with each scenario."""


class Fault(NamedTuple):
    """Something that breaks `at` seconds after a scenario began, and again `every` seconds."""

    at: float
    every: float
    strike: Callable[[SimulatedFaults], None]


class Need(NamedTuple):
    """What a system must have for a scenario, in words and as a question."""

    words: str
    met: Callable[[SystemModel], bool]


PEERS = Need("two GPUs or more", lambda s: s.gpus > 1)
NVLINK = Need("NVLink", lambda s: s.model.links is not None)
INFINIBAND = Need("InfiniBand", lambda s: bool(s.hcas))
ECC = Need("ECC memory", lambda s: s.model.ecc)
ROWS = Need("row remapping (Ampere or newer)", lambda s: s.model.architecture >= AMPERE)
PORTS = Need("ports whose rate its spec sheet states", lambda s: s.dgx)

NEEDS: dict[str, Need] = {
    "starved-peer": PEERS,
    "exposed-communication": NVLINK,
    "hang": PEERS,
    "late-rank": PEERS,
    "nvlink-saturated": NVLINK,
    "infiniband-saturated": INFINIBAND,
    "nvlink-down": NVLINK,
    "nvlink-errors": NVLINK,
    "port-degraded": PORTS,
    "ecc": ECC,
    "row-remap": ROWS,
}

FAULTS: dict[str, tuple[Fault, ...]] = {
    "gpu-lost": (Fault(5.0, 0.0, SimulatedFaults.lose_one),),
    "nvlink-down": (Fault(0.0, 0.0, SimulatedFaults.cut_first_link),),
    "nvlink-errors": (Fault(0.0, 0.0, SimulatedFaults.spoil_link),),
    "pcie-degraded": (Fault(0.0, 0.0, SimulatedFaults.narrow_slot),),
    "port-degraded": (Fault(0.0, 0.0, SimulatedFaults.slow_port),),
    "xid": (Fault(5.0, 20.0, SimulatedFaults.report_xid),),
    "ecc": (Fault(0.0, 0.0, SimulatedFaults.flip_bits),),
    "row-remap": (Fault(0.0, 0.0, SimulatedFaults.fail_remapping),),
    "driver-hang": (Fault(5.0, 0.0, SimulatedFaults.hang_driver),),
}

NAMES: tuple[str, ...] = (
    "training",
    "idle",
    "held",
    "starved-disk",
    "starved-network",
    "starved-pcie",
    "starved-cpu",
    "starved-host-thread",
    "starved-peer",
    "nvlink-saturated",
    "infiniband-saturated",
    "exposed-communication",
    "hang",
    "late-rank",
    "checkpoint",
    "threads",
    "no-demand",
    "throttled",
    "gpu-hot",
    "gpu-lost",
    "nvlink-down",
    "nvlink-errors",
    "pcie-degraded",
    "port-degraded",
    "xid",
    "ecc",
    "row-remap",
    "driver-hang",
    TOUR,
)


def missing(system: SystemModel, scenario: str) -> str:
    """What this system lacks for the scenario, in words; empty where it can have it."""
    need = NEEDS.get(scenario)
    return "" if need is None or need.met(system) else need.words


def possible(system: SystemModel) -> tuple[str, ...]:
    """The scenarios that this system can have."""
    return tuple(name for name in NAMES if not missing(system, name))


def stops(system: SystemModel) -> tuple[str, ...]:
    """The tour of this system: every scenario it can have, with training before each."""
    rest = (n for n in possible(system) if n not in ("training", TOUR))
    return tuple(stop for name in rest for stop in ("training", name))
