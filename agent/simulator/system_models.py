"""The simulated systems, one file each in `systems/`: boards, wires, disks and ports.

Knows nothing of the agent's specs: those are tested against these figures.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agent.simulator import gpu_models
from agent.simulator.gpu_models import GpuModel

FOLDER = Path(__file__).parent / "systems"

Graph = Mapping[tuple[int, int], int]  # NVLinks between two GPUs, by their indices


class DiskModel(NamedTuple):
    """One SSD: size in bytes, what it streams in bytes per second."""

    name: str
    model: str
    size: int
    speed: float


class ArrayModel(NamedTuple):
    """One md array; `size` and `speed` follow from its level."""

    name: str
    level: str
    members: tuple[DiskModel, ...]

    @property
    def striped(self) -> bool:
        return self.level == "raid0"

    @property
    def size(self) -> int:
        return sum(d.size for d in self.members) if self.striped else self.members[0].size

    @property
    def speed(self) -> float:
        """Bytes per second read when streaming."""
        return sum(d.speed for d in self.members)


class NicModel(NamedTuple):
    """One Ethernet port; `megabits` as negotiated, without carrier None."""

    name: str
    megabits: int | None = None


class HcaModel(NamedTuple):
    """One InfiniBand port: its rate as the kernel writes it, and one that it falls back to."""

    name: str
    rate: str
    lower: str


@dataclass(frozen=True, slots=True)
class SystemModel:
    """One machine as it leaves the factory."""

    name: str
    product: str
    vendor: str
    model: GpuModel
    buses: tuple[int, ...]  # PCI bus of each GPU, 256 times its domain added
    cpus: int  # logical
    memory: int  # bytes
    disks: tuple[DiskModel, ...]
    nics: tuple[NicModel, ...]
    drivers: tuple[int, int]  # first and last branch
    driver: str  # default
    data: str  # disk or array that holds the training data
    arrays: tuple[ArrayModel, ...] = ()
    hcas: tuple[HcaModel, ...] = ()
    graph: Graph = field(default_factory=dict)
    switched: bool = False  # NVLinks end at NVSwitches
    rack: bool = False  # a tray of one
    nvswitches: int = 0  # those that this machine's own driver sees
    per_pcie_switch: int = 0  # GPUs that share the uplink of a PCIe switch; 0: each has its own

    @property
    def gpus(self) -> int:
        return len(self.buses)

    @property
    def dgx(self) -> bool:
        return self.vendor == "NVIDIA"

    @property
    def chassis(self) -> bool:
        """A DGX that is more than one GPU: with sensors, and ports that its sheet states."""
        return self.dgx and self.gpus > 1

    @property
    def data_disks(self) -> tuple[DiskModel, ...]:
        members = next((a.members for a in self.arrays if a.name == self.data), None)
        return members or tuple(disk for disk in self.disks if disk.name == self.data)

    @property
    def data_speed(self) -> float:
        return sum(disk.speed for disk in self.data_disks)


def _system(path: Path) -> SystemModel:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    table["model"] = gpu_models.load(table.pop("gpu"))
    for name in ("buses", "drivers"):
        table[name] = tuple(table[name])
    table["nics"] = tuple(NicModel(**nic) for nic in table["nics"])
    hcas = table.pop("hcas", {"number": 0})
    number = hcas.pop("number")
    table["hcas"] = tuple(HcaModel(f"mlx5_{n}", **hcas) for n in range(number))
    links = table.pop("nvlinks", {}).items()
    table["graph"] = {(int(ends[0]), int(ends[-1])): count for ends, count in links}
    disks, arrays = list[DiskModel](), list[ArrayModel]()
    for group in table.pop("disks"):
        names, array = group.pop("names"), group.pop("array", None)
        members = tuple(DiskModel(name, **group) for name in names)
        disks += members
        arrays += [ArrayModel(**array, members=members)] if array else []
    table["disks"], table["arrays"] = tuple(disks), tuple(arrays)
    return SystemModel(name=path.stem, **table)


def address(bus: int) -> str:
    domain, bus = divmod(bus, 256)
    return f"{domain:04x}:{bus:02x}:00.0"


def _order(system: SystemModel) -> tuple[bool, int, str]:
    """DGX systems first, each kind from its oldest GPUs to its newest."""
    return not system.dgx, system.model.architecture, system.name


ALL: Mapping[str, SystemModel] = {
    system.name: system for system in sorted(map(_system, FOLDER.glob("*.toml")), key=_order)
}
