"""/sys of the simulated host: DMI, disks, NICs, InfiniBand."""

import errno
import os
from collections.abc import Callable

from agent.backends.simulated.systems import Array, Disk, Hca, Nic
from agent.backends.simulated.traffic import WORD
from agent.backends.simulated.world import World

Tree = dict[str, Callable[[], str]]

SECTOR = 512
ETHERNET, LOOPBACK = "1", "772"
HCA_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)


def _text(value: object) -> Callable[[], str]:
    return lambda: f"{value}\n"


def _below(folder: str, files: dict[str, str | int]) -> Tree:
    return {f"{folder}/{name}": _text(value) for name, value in files.items()}


def tree(world: World) -> Tree:
    """Path to content."""
    system = world.system
    dmi = {"product_name": system.product, "sys_vendor": system.vendor}
    files = _below("/sys/class/dmi/id", {**dmi})
    for disk in system.disks:
        files |= _disk(disk)
    for array in system.arrays:
        files |= _array(array)
    for nic in system.nics:
        files |= _nic(world, nic)
    for hca in system.hcas:
        files |= _hca(world, hca)
    return files | _loopback()


def links(world: World) -> dict[str, str]:
    """Symbolic links: the members of arrays."""
    return {
        f"/sys/block/{array.name}/slaves/{disk.name}": f"../../../{disk.name}"
        for array in world.system.arrays
        for disk in array.members
    }


def _disk(disk: Disk) -> Tree:
    return _below(
        f"/sys/block/{disk.name}",
        {"size": disk.size // SECTOR, "device/model": disk.model, "queue/rotational": 0},
    )


def _array(array: Array) -> Tree:
    """A stripe has no `degraded`: it cannot lose a member and live."""
    redundancy: dict[str, str | int] = {} if array.striped else {"md/degraded": 0}
    return _below(
        f"/sys/block/{array.name}",
        {
            "size": array.size // SECTOR,
            "queue/rotational": 0,
            "md/level": array.level,
            "md/raid_disks": len(array.members),
            "md/array_state": "clean",
            **redundancy,
        },
    )


def _nic(world: World, nic: Nic) -> Tree:
    folder = f"/sys/class/net/{nic.name}"
    return {
        **_below(folder, {"type": ETHERNET, "mtu": 1500}),
        f"{folder}/operstate": lambda: "up\n" if world.traffic.speed(nic) else "down\n",
        f"{folder}/carrier": lambda: "1\n" if world.traffic.speed(nic) else "0\n",
        f"{folder}/speed": lambda: f"{world.traffic.speed(nic) or -1}\n",
    }


def _loopback() -> Tree:
    folder = "/sys/class/net/lo"
    fixed = _below(folder, {"type": LOOPBACK, "mtu": 65536, "operstate": "unknown", "carrier": 1})
    return {**fixed, f"{folder}/speed": _no_speed}


def _no_speed() -> str:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), "/sys/class/net/lo/speed")


def _hca(world: World, hca: Hca) -> Tree:
    port = f"/sys/class/infiniband/{hca.name}/ports/1"
    facts: dict[str, str | int] = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "link_layer": "InfiniBand",
        "lid": 10,
    }
    errors = {f"counters/{name}": 0 for name in HCA_ERRORS}
    moving = {
        "port_xmit_data": ("xmit", WORD),
        "port_rcv_data": ("rcv", WORD),
        "port_xmit_wait": ("wait", 1),
        "port_xmit_packets": ("xmit", 4096),
        "port_rcv_packets": ("rcv", 4096),
    }
    counters = {
        f"{port}/counters/{name}": _count(world, f"{flow}:{hca.name}", unit)
        for name, (flow, unit) in moving.items()
    }
    rate = {f"{port}/rate": lambda: f"{world.traffic.rate(hca)}\n"}
    return {**_below(port, {**facts, **errors}), **counters, **rate}


def _count(world: World, name: str, unit: int) -> Callable[[], str]:
    return lambda: f"{int(world.traffic.meter.read(name, world.now) / unit)}\n"
