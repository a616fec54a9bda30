"""The scenarios and single faults: which system can have each, and what breaks in it.

README.md beside this says which GPUs each concerns.
Nodes of fleets alone: waits-for-node, which waits in each step for another node of its job, and
slow-node, which is that one. A fault plays over training, or is joined to a scenario and to other
faults: `training+ecc-rising+raid-degraded`; `xid-79` to any other code is one of that code.

After any of the faults the machine lets its counters follow (`MachineState.apply`).
"""

import re
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import accumulate, chain, count, cycle, islice, repeat, takewhile
from math import inf
from operator import itemgetter
from typing import NamedTuple

from agent.simulator.loads import ScenarioLoad, parts_of
from agent.simulator.models import HOPPER, VOLTA, SystemModel
from agent.simulator.state import MachineState

TOUR, SLOT = "tour", 60.0  # The tour stays with each scenario for so many seconds

WAITS_FOR_NODE, SLOW_NODE = "waits-for-node", "slow-node"
"""Scenarios of one machine in a job over several nodes. Played by fleets alone."""

XID_NAME = re.compile(r"xid-([1-9]\d{0,2})")
SOON_S = 5.0  # s

Strike = Callable[[MachineState], None]


class Need(NamedTuple):
    """Requirement of a scenario, in words and as a question."""

    words: str
    met: Callable[[SystemModel], bool]


class Breakage(NamedTuple):
    """Fault that strikes `at` seconds after a scenario began, and again `every` seconds, where it
    can; some scenarios have none."""

    need: Need
    strike: Strike | None = None
    at: float = 0.0
    every: float = 0.0


ANY = Need("", lambda _: True)
PEERS = Need("two GPUs or more", lambda s: s.gpus > 1)
NVLINK = Need("NVLink", lambda s: s.model.links is not None)
PORTS = Need("ports whose rate its spec sheet states", lambda s: s.chassis)
CARD = Need("a PCIe slot", lambda s: s.model.slot)
ECC = Need("ECC memory", lambda s: s.model.datacentre)
ROWS = Need("row remapping (Ampere or newer)", lambda s: s.model.remaps)
PAGES = Need("pages that retire (up to Volta)", lambda s: s.model.datacentre and not s.model.remaps)
DIVIDES = Need("MIG (A100 and newer, but no Ada and no GeForce)", lambda s: s.model.divides)
ASKS = Need(
    "a driver that asks for recovery (R570), and a GPU newer than Volta",
    lambda s: s.model.architecture > VOLTA and int(s.driver.partition(".")[0]) >= 570,
)
SWITCHED = Need("NVSwitches that its driver sees", lambda s: s.nvswitches > 0)
FABRIC = Need(
    "a fabric (Hopper with NVSwitches)", lambda s: s.switched and s.model.architecture >= HOPPER
)
INFINIBAND = Need("InfiniBand", lambda s: bool(s.hcas))
ARRAYS = Need("an array with redundancy", lambda s: any(not a.striped for a in s.arrays))
BOARD = Need("sensors of its chassis", lambda s: s.chassis)
NVME = Need("an NVMe disk", lambda s: s.disks[0].name.startswith("nvme"))


NO_FAULT = Breakage(ANY)


def _set(part: str, value: object) -> Strike:
    """Something of the first GPU."""
    return lambda f: setattr(f.gpus[0].health, part, value)


def _host(part: str, value: object) -> Strike:
    return lambda f: setattr(f.host_health, part, value)


def _first_disk(part: str) -> Strike:
    return lambda f: getattr(f.host_health, part).add(f.system.disks[0].name)


SCENARIOS: dict[str, Breakage] = {
    **dict.fromkeys(("training", "idle", "held", "starved-disk", "starved-network"), NO_FAULT),
    "starved-pcie": Breakage(CARD),
    **dict.fromkeys(("starved-cpu", "starved-host-thread"), NO_FAULT),
    "starved-peer": Breakage(PEERS),
    "nvlink-saturated": Breakage(NVLINK),
    "infiniband-saturated": Breakage(INFINIBAND),
    "exposed-communication": Breakage(NVLINK),
    **dict.fromkeys(("hang", "late-rank"), Breakage(PEERS)),
    **dict.fromkeys(("checkpoint", "threads", "no-demand", "throttled", "gpu-hot"), NO_FAULT),
    "gpu-lost": Breakage(ANY, lambda f: f.lose(min(2, len(f.gpus) - 1)), SOON_S),
    "gpu-slow": Breakage(PEERS, lambda f: setattr(f.gpus[1], "slow", 45.0), SOON_S),
    "nvlink-down": Breakage(NVLINK, lambda f: f.cut_link(0, 2)),
    "nvlink-errors": Breakage(NVLINK, lambda f: setattr(f.gpus[0].links[1], "errors", 2.0)),
    "pcie-degraded": Breakage(CARD, lambda f: setattr(f.gpus[0], "width", f.gpus[0].width // 2)),
    "port-degraded": Breakage(PORTS, _host("slow_port", True)),
    "xid": Breakage(ANY, lambda f: f.xid(48 if f.system.model.datacentre else 62), SOON_S, 20.0),
    "ecc": Breakage(ECC, lambda f: setattr(f.gpus[0], "flipping", True)),
    "row-remap": Breakage(ROWS, lambda f: setattr(f.gpus[0], "remap_failed", True)),
    "driver-hang": Breakage(ANY, lambda f: setattr(f.driver, "hung", True), SOON_S),
    TOUR: NO_FAULT,
}
NAMES = tuple(SCENARIOS)
FAULTS: dict[str, Breakage] = {
    "recovery-reset": Breakage(ASKS, _set("recovery", 1)),
    "recovery-reboot": Breakage(ASKS, _set("recovery", 2)),
    "mig": Breakage(DIVIDES, lambda f: setattr(f.gpus[0], "mig", True)),
    "rows-pending": Breakage(ROWS, _set("rows_pending", True)),
    "pages-pending": Breakage(PAGES, _set("pages_pending", True)),
    "rows-near": Breakage(ROWS, _set("rows", 450)),
    "pages-near": Breakage(PAGES, _set("pages", 55)),
    "ecc-rising": Breakage(ECC, _set("corrected", 40.0)),
    "double-bit": Breakage(ECC, lambda f: f.double_bit(), SOON_S, 20.0),
    "pcie-replays": Breakage(ANY, _set("replays", 10.0)),
    "fabric-service": Breakage(SWITCHED, lambda f: f.end_fabric()),
    "fabric-error": Breakage(FABRIC, _set("fabric_status", 999)),
    "switch-fatal": Breakage(
        SWITCHED,
        lambda f: f.kernel_log.sxid(0, 20034, "Fatal, Link 30 LTSSM Fault Up"),
        SOON_S,
    ),
    "switch-noise": Breakage(
        SWITCHED,
        lambda f: f.kernel_log.sxid(3, 22013, "Non-fatal, Link 44 Minion Link DLREQ interrupt"),
        *(SOON_S, 20.0),
    ),
    "infiniband-errors": Breakage(INFINIBAND, _host("symbol_errors", 1.0)),
    "infiniband-down": Breakage(INFINIBAND, _host("port_down", True), SOON_S),
    "infiniband-flapping": Breakage(INFINIBAND, lambda f: f.flap(), SOON_S, 10.0),
    "raid-degraded": Breakage(ARRAYS, lambda f: f.lose_member()),
    "disk-dead": Breakage(ANY, _first_disk("dead_disks")),
    "disk-hot": Breakage(NVME, _first_disk("hot_disks")),
    "disk-damaged": Breakage(ANY, _first_disk("damaged")),
    "disk-smart": Breakage(ANY, _first_disk("failing_disks")),
    "fan-failed": Breakage(BOARD, _host("fan_failed", True)),
    "supply-failed": Breakage(BOARD, _host("supply_failed", True)),
}
FAULT_NAMES: tuple[str, ...] = (*FAULTS, "xid-CODE")


def _fault(name: str) -> Breakage | None:
    if found := XID_NAME.fullmatch(name):
        code = int(found[1])
        return Breakage(ANY, lambda faults: faults.xid(code), SOON_S, 20.0)
    if name in (WAITS_FOR_NODE, SLOW_NODE):
        return NO_FAULT
    return SCENARIOS.get(name) or FAULTS.get(name)


def parts(name: str) -> tuple[str, ...]:
    """The scenario, or fault, and what is joined to it; empty for what there is not."""
    names = tuple(name.split("+"))
    return names if all(map(_fault, names)) and (len(names) == 1 or TOUR not in names) else ()


def missing(system: SystemModel, scenario: str) -> str:
    """Return the missing requirement of the scenario on this system, in words; empty if it can
    play."""
    needs = [fault.need for part in parts(scenario) if (fault := _fault(part))]
    return " and ".join(need.words for need in needs if not need.met(system))


def possible(system: SystemModel) -> tuple[str, ...]:
    return tuple(name for name in NAMES if not missing(system, name))


def stops(system: SystemModel) -> tuple[str, ...]:
    rest = (n for n in possible(system) if n not in ("training", TOUR))
    return tuple(stop for name in rest for stop in ("training", name))


SLACK = 1e-9  # s: a moment has come although floating point says that it just has not

Change = tuple[float, str | ScenarioLoad | Strike]
"""Time of a change of the machine (s), and what begins: a scenario, one of its parts, a fault."""


def timeline(system: SystemModel, name: str, begin: float) -> Iterator[Change]:
    """The changes of a scenario, or of the tour's scenarios one after the other, in order."""
    if name != TOUR:
        return _course(name, begin, inf)
    slots = zip(cycle(stops(system)), count(begin, SLOT))
    return chain.from_iterable(_course(stop, at, at + SLOT) for stop, at in slots)


def _course(name: str, begin: float, end: float) -> Iterator[Change]:
    """A scenario up to its end (s): its parts over and over, and what breaks."""
    loads = parts_of(parts(name)[0])
    begins = accumulate(cycle(load.seconds for load in loads), initial=begin)
    changes: list[Iterator[Change]] = [islice(zip(begins, cycle(loads)), 1, None)]
    for fault in filter(None, map(_fault, parts(name))):
        if fault.strike:
            first = begin + fault.at
            times = count(first, fault.every) if fault.every else (first,)
            changes.append(zip(times, repeat(fault.strike)))
    yield begin, name
    merged = merge(*changes, key=itemgetter(0))
    yield from takewhile(lambda change: change[0] < end - SLACK, merged)
