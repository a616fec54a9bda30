"""Single faults, by name: played alone, over training, or joined to a scenario and to each other.

`training+ecc-rising+raid-degraded` trains with two faults; `xid-79` to any other code is one of
that code. What a scenario needs, and a fault does not, is reported as of scenarios.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from agent.simulator.faults import SimulatedFaults
from agent.simulator.gpu_models import HOPPER, VOLTA
from agent.simulator.kernel_log import GARBAGE
from agent.simulator.odd_answers import EVERYTHING, KINDS
from agent.simulator.system_models import SystemModel

XID = re.compile(r"xid-([1-9]\d{0,2})")
SOON, FLOOD_EVERY = 5.0, 1.0  # s
FLOOD = 300
"""Lines of each flood: garbage, and page faults of one program."""


class Need(NamedTuple):
    """What a system must have for a scenario, in words and as a question."""

    words: str
    met: Callable[[SystemModel], bool]


class TimedFault(NamedTuple):
    """Something that breaks `at` seconds after a scenario began, and again `every` seconds."""

    at: float
    every: float
    strike: Callable[[SimulatedFaults], None]


ANY = Need("", lambda _: True)
ECC = Need("ECC memory", lambda s: s.model.ecc)
ROWS = Need("row remapping (Ampere or newer)", lambda s: s.model.remaps)
PAGES = Need("pages that retire (up to Volta)", lambda s: s.model.ecc and not ROWS.met(s))
DIVIDES = Need("MIG (A100 and newer, but no Ada and no GeForce)", lambda s: s.model.divides)
PROCESSOR = Need("a system processor (newer than Volta)", lambda s: s.model.architecture > VOLTA)
ASKS = Need(
    "a driver that asks for recovery (R570), and a GPU newer than Volta",
    lambda s: PROCESSOR.met(s) and int(s.driver.partition(".")[0]) >= 570,
)
SWITCHED = Need("NVSwitches that its driver sees", lambda s: s.nvswitches > 0)
FABRIC = Need(
    "a fabric (Hopper with NVSwitches)", lambda s: s.switched and s.model.architecture >= HOPPER
)
INFINIBAND = Need("InfiniBand", lambda s: bool(s.hcas))
ARRAYS = Need("an array with redundancy", lambda s: any(not a.striped for a in s.arrays))
BOARD = Need("sensors of its chassis", lambda s: s.chassis)


def _set(part: str, value: object) -> Callable[[SimulatedFaults], None]:
    """Something of the first GPU."""
    return lambda f: setattr(f.gpus[0].health, part, value)


def _host(part: str, value: object) -> Callable[[SimulatedFaults], None]:
    return lambda f: setattr(f.host, part, value)


def _no_service(faults: SimulatedFaults) -> None:
    """Without the Fabric Manager no GPU joins."""
    faults.host.fabric_service = False
    for gpu in faults.gpus:
        gpu.health.fabric_state = 2


def _lose_member(faults: SimulatedFaults) -> None:
    array = next(a for a in faults.traffic.system.arrays if not a.striped)
    faults.host.lost_members = 1
    faults.host.dead_disks.add(array.members[-1].name)


def _first_disk(part: str) -> Callable[[SimulatedFaults], None]:
    return lambda f: getattr(f.host, part).add(f.traffic.system.disks[0].name)


def _double_bit(faults: SimulatedFaults) -> None:
    """All that a double-bit error brings along on one GPU."""
    gpu = faults.gpus[0]
    gpu.flipping = True
    for code in (48, 63, 45) if gpu.model.architecture <= VOLTA else (48, 63, 45, 154):
        faults.xid(code)
    gpu.health.pages_pending = gpu.model.architecture <= VOLTA
    gpu.health.rows_pending = not gpu.health.pages_pending
    gpu.health.recovery = int(gpu.health.rows_pending)


def _system_processor(faults: SimulatedFaults) -> None:
    """The GPU's system processor is gone, and calls of the driver hang."""
    faults.xid(119)
    faults.hang_driver()


def _flood(faults: SimulatedFaults) -> None:
    for number in range(FLOOD):
        faults.log(GARBAGE[number % len(GARBAGE)])
        faults.xid(31)


def _flap(faults: SimulatedFaults) -> None:
    """Down for one look, and up again."""
    faults.host.port_down = not faults.host.port_down
    if faults.host.port_down:
        faults.traffic.lose_link()


def _once(strike: Callable[[SimulatedFaults], None], at: float = 0.0) -> tuple[TimedFault, ...]:
    return (TimedFault(at, 0.0, strike),)


TABLE: dict[str, tuple[Need, tuple[TimedFault, ...]]] = {
    "recovery-reset": (ASKS, _once(_set("recovery", 1))),
    "recovery-reboot": (ASKS, _once(_set("recovery", 2))),
    "mig": (DIVIDES, _once(lambda f: setattr(f.gpus[0], "mig", True))),
    "rows-pending": (ROWS, _once(_set("rows_pending", True))),
    "pages-pending": (PAGES, _once(_set("pages_pending", True))),
    "rows-near": (ROWS, _once(_set("rows", 450))),
    "pages-near": (PAGES, _once(_set("pages", 55))),
    "ecc-rising": (ECC, _once(_set("corrected", 40.0))),
    "double-bit": (ECC, (TimedFault(SOON, 20.0, _double_bit),)),
    "pcie-replays": (ANY, _once(_set("replays", 10.0))),
    "system-processor": (PROCESSOR, _once(_system_processor, SOON)),
    "calls-failing": (ANY, _once(SimulatedFaults.fail_calls, SOON)),
    "fabric-service": (SWITCHED, _once(_no_service)),
    "fabric-state": (FABRIC, _once(_set("fabric_state", 2))),
    "fabric-error": (FABRIC, _once(_set("fabric_status", 999))),
    "fabric-health": (FABRIC, _once(_set("fabric_mask", 0xA9 | 1 << 8))),
    "switch-fatal": (
        SWITCHED,
        _once(lambda f: f.sxid(0, 20034, True, "Link 30 LTSSM Fault Up"), SOON),
    ),
    "switch-noise": (
        SWITCHED,
        (
            TimedFault(
                SOON, 20.0, lambda f: f.sxid(3, 22013, False, "Link 44 Minion Link DLREQ interrupt")
            ),
        ),
    ),
    "infiniband-errors": (INFINIBAND, _once(_host("symbol_errors", 1.0))),
    "infiniband-down": (INFINIBAND, _once(_host("port_down", True), SOON)),
    "infiniband-flapping": (INFINIBAND, (TimedFault(SOON, 10.0, _flap),)),
    "raid-degraded": (ARRAYS, _once(_lose_member)),
    "disk-dead": (ANY, _once(_first_disk("dead_disks"))),
    "disk-hot": (
        Need("an NVMe disk", lambda s: s.disks[0].name.startswith("nvme")),
        _once(_first_disk("hot_disks")),
    ),
    "disk-damaged": (ANY, _once(_first_disk("damaged"))),
    "disk-smart": (ANY, _once(_first_disk("failing_disks"))),
    "fan-failed": (BOARD, _once(_host("fan_failed", True))),
    "supply-failed": (BOARD, _once(_host("supply_failed", True))),
    **{
        f"implausible-{kind}": (ANY, _once(partial(SimulatedFaults.answer_oddly, kind=kind), SOON))
        for kind in (*KINDS, EVERYTHING)
    },
    "log-flood": (ANY, (TimedFault(SOON, FLOOD_EVERY, _flood),)),
}
NAMES: tuple[str, ...] = (*TABLE, "xid-CODE")


def fault(name: str) -> tuple[Need, tuple[TimedFault, ...]] | None:
    """The fault of this name, and what it needs; None where there is none."""
    found = XID.fullmatch(name)
    if found is None:
        return TABLE.get(name)
    code = int(found[1])
    return ANY, (TimedFault(SOON, 20.0, lambda faults: faults.xid(code)),)
