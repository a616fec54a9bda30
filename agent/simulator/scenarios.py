"""The scenarios: which system can have each, and the faults that come with it.

| scenario | GPUs concerned |
|---|---|
| training, idle, held, starved-disk, -network, -cpu, -host-thread | all |
| nvlink-saturated, infiniband-saturated, exposed-communication, throttled | all |
| checkpoint, threads, no-demand | all |
| hang | all, after 10 s of training; the second waits for input, the others for it |
| late-rank | the second comes late in each step, the others wait for it |
| starved-pcie | the first; the others are idle |
| starved-peer | the first computes double, the others wait for it |
| gpu-hot, nvlink-down, nvlink-errors, pcie-degraded, xid, ecc, row-remap | the first |
| gpu-lost | the third, or the last of fewer |
| gpu-slow | the second: each call takes 45 s |
| port-degraded | the first InfiniBand port, on systems without InfiniBand the first NIC |
| driver-hang | all |

Nodes of fleets alone: waits-for-node, which waits in each step for another node of its job, and
slow-node, which is that one.
"""

from agent.simulator import fault_table
from agent.simulator.fault_table import ECC, INFINIBAND, ROWS, Need
from agent.simulator.fault_table import TimedFault as Fault
from agent.simulator.faults import SimulatedFaults
from agent.simulator.system_models import SystemModel

TOUR = "tour"
SLOT = 60.0
"""Seconds that the tour stays with each scenario."""


PEERS = Need("two GPUs or more", lambda s: s.gpus > 1)
NVLINK = Need("NVLink", lambda s: s.model.links is not None)
PORTS = Need("ports whose rate its spec sheet states", lambda s: s.chassis)
CARD = Need("a PCIe slot", lambda s: s.model.slot)

NEEDS: dict[str, Need] = {
    "starved-peer": PEERS,
    "starved-pcie": CARD,
    "pcie-degraded": CARD,
    "exposed-communication": NVLINK,
    "hang": PEERS,
    "gpu-slow": PEERS,
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
    "gpu-slow": (Fault(5.0, 0.0, SimulatedFaults.slow_down),),
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
    "gpu-slow",
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


WAITS_FOR_NODE, SLOW_NODE = "waits-for-node", "slow-node"
"""Of a job over several nodes: what one machine shows of it. Played by fleets alone."""

JOIN = "+"
"""Between a scenario and the faults that come with it: `starved-disk+raid-degraded`."""


def parts(name: str) -> tuple[str, ...]:
    """The scenario, or fault, and what is joined to it; empty for what there is not."""
    names = tuple(name.split(JOIN))
    scenarios = (*NAMES, WAITS_FOR_NODE, SLOW_NODE)
    known = all(part in scenarios or fault_table.fault(part) for part in names)
    return names if known and (len(names) == 1 or TOUR not in names) else ()


def faults_of(name: str) -> tuple[Fault, ...]:
    """What breaks in a scenario, and in all that is joined to it."""
    found = tuple(f for part in parts(name) for f in FAULTS.get(part, ()))
    single = (fault_table.fault(part) for part in parts(name))
    return found + tuple(f for entry in single if entry for f in entry[1])


def missing(system: SystemModel, scenario: str) -> str:
    """What this system does not have for the scenario, in words; empty where it can have it."""
    needs = [NEEDS.get(part) for part in parts(scenario)]
    needs += [entry[0] for part in parts(scenario) if (entry := fault_table.fault(part))]
    return " and ".join(need.words for need in needs if need and not need.met(system))


def possible(system: SystemModel) -> tuple[str, ...]:
    """The scenarios that this system can have."""
    return tuple(name for name in NAMES if not missing(system, name))


def stops(system: SystemModel) -> tuple[str, ...]:
    """The tour of this system: every scenario it can have, with training before each."""
    rest = (n for n in possible(system) if n not in ("training", TOUR))
    return tuple(stop for name in rest for stop in ("training", name))
