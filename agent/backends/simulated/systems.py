"""The simulated systems: boards, wires, disks and ports. Knows nothing of the agent's specs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.backends.simulated import silicon
from agent.backends.simulated.silicon import GpuModel

Graph = Mapping[tuple[int, int], int]
"""NVLinks between two GPUs, by their indices."""


class Disk(NamedTuple):
    """One SSD: size in bytes, what it streams in bytes per second."""

    name: str
    model: str
    size: int
    speed: float


class Array(NamedTuple):
    """One md array; `size` and `speed` follow from its level."""

    name: str
    level: str
    members: tuple[Disk, ...]

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


class Nic(NamedTuple):
    """One Ethernet port; `megabits` as negotiated, without carrier None."""

    name: str
    megabits: int | None


class Hca(NamedTuple):
    """One InfiniBand port. `lower` is a rate that it falls back to."""

    name: str
    gigabits: int
    rate: str
    lower: str


@dataclass(frozen=True, slots=True)
class System:
    """One machine as it leaves the factory."""

    name: str
    product: str
    vendor: str
    model: GpuModel
    buses: tuple[int, ...]  # PCI bus of each GPU
    cpus: int  # logical
    disks: tuple[Disk, ...]
    nics: tuple[Nic, ...]
    drivers: tuple[int, int]  # first and last branch
    driver: str  # default
    data: str  # disk or array that holds the training data
    arrays: tuple[Array, ...] = ()
    hcas: tuple[Hca, ...] = ()
    graph: Graph = field(default_factory=dict)
    switched: bool = False

    @property
    def gpus(self) -> int:
        return len(self.buses)

    @property
    def dgx(self) -> bool:
        return self.vendor == "NVIDIA"

    @property
    def data_speed(self) -> float:
        """Bytes per second that the training data can be streamed at."""
        speeds = {a.name: a.speed for a in self.arrays} | {d.name: d.speed for d in self.disks}
        return speeds[self.data]


P100_MESH: Graph = {
    **{(a + q, b + q): 1 for q in (0, 4) for a in range(4) for b in range(a + 1, 4)},
    **{(a, a + 4): 1 for a in range(4)},
}
V100_MESH: Graph = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
STATION_MESH: Graph = {(0, 3): 2, (1, 2): 2, (0, 1): 1, (0, 2): 1, (1, 3): 1, (2, 3): 1}

TB = 10**12


def _sas(names: str, speed: float) -> tuple[Disk, ...]:
    return tuple(Disk(f"sd{n}", "SAMSUNG MZ7LM1T9", 1_920_383_410_176, speed) for n in names)


def _nvme(count: int, first: int, size: int, model: str, speed: float) -> tuple[Disk, ...]:
    return tuple(Disk(f"nvme{first + n}n1", model, size, speed) for n in range(count))


def _hcas(count: int, gigabits: int, rate: str, lower: str) -> tuple[Hca, ...]:
    return tuple(Hca(f"mlx5_{n}", gigabits, rate, lower) for n in range(count))


_DGX_1_BOOT = Disk("sda", "SAMSUNG MZ7LM480", 480_103_981_056, 0.5e9)
_DGX_1_DATA = _sas("bcde", 0.5e9)  # 2 GB/s together
_STATION_BOOT = Disk("sda", "SAMSUNG MZ7LM1T9", 1_920_383_410_176, 0.5e9)
_STATION_DATA = _sas("bcd", 0.52e9)
_NVME_BOOT = _nvme(2, 0, 1_920_383_410_176, "SAMSUNG MZ1LB1T9HALS-00007", 2.5e9)
_NVME_DATA = _nvme(8, 2, 3_840_755_982_336, "SAMSUNG MZWLJ3T8HBLS-00007", 2.5e9)
_PC_DISK = _nvme(1, 0, TB, "Samsung SSD 970 EVO 1TB", 2.5e9)

_DGX_1_BUSES = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
_EDR = _hcas(4, 100, "100 Gb/sec (4X EDR)", "40 Gb/sec (4X QDR)")
_DGX_1_NICS = (Nic("eno1", 10_000), Nic("eno2", None))
_NVME_NICS = (Nic("ens6f0", 100_000), Nic("ens6f1", None), Nic("enp226s0", 10_000))
_NVME_ARRAYS = (Array("md0", "raid1", _NVME_BOOT), Array("md1", "raid0", _NVME_DATA))


def _dgx_1(name: str, product: str, model: GpuModel, graph: Graph) -> System:
    return System(
        name=name,
        product=product,
        vendor="NVIDIA",
        model=model,
        buses=_DGX_1_BUSES,
        cpus=80,
        disks=(_DGX_1_BOOT, *_DGX_1_DATA),
        arrays=(Array("md0", "raid0", _DGX_1_DATA),),
        nics=_DGX_1_NICS,
        hcas=_EDR,
        drivers=(450, 580),
        driver="460.106.00",
        data="md0",
        graph=graph,
    )


def _switched(
    name: str, product: str, model: GpuModel, *, cpus: int, hcas: tuple[Hca, ...], driver: str
) -> System:
    a100 = model.architecture == silicon.AMPERE
    return System(
        name=name,
        product=product,
        vendor="NVIDIA",
        model=model,
        buses=(0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
        if a100
        else (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF),
        cpus=cpus,
        disks=(*_NVME_BOOT, *_NVME_DATA),
        arrays=_NVME_ARRAYS,
        nics=_NVME_NICS,
        hcas=hcas,
        drivers=(450 if a100 else 525, 610),
        driver=driver,
        data="md1",
        switched=True,
    )


def _desktop(name: str, model: GpuModel, driver: str, last_branch: int = 580) -> System:
    return System(
        name=name,
        product="System Product Name",
        vendor="System manufacturer",
        model=model,
        buses=(0x01,),
        cpus=16,
        disks=_PC_DISK,
        nics=(Nic("enp4s0", 1_000),),
        drivers=(450, last_branch),
        driver=driver,
        data="nvme0n1",
    )


_HDR = _hcas(8, 200, "200 Gb/sec (4X HDR)", "100 Gb/sec (2X HDR)")
_NDR = _hcas(8, 400, "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)")

_STATION = System(
    name="dgx-station-v100",
    product="DGX Station",
    vendor="NVIDIA",
    model=silicon.V100_STATION,
    buses=(0x07, 0x08, 0x0E, 0x0F),
    cpus=40,
    disks=(_STATION_BOOT, *_STATION_DATA),
    arrays=(Array("md0", "raid0", _STATION_DATA),),
    nics=(Nic("enp1s0f0", 10_000), Nic("enp1s0f1", None)),
    drivers=(450, 580),
    driver="460.106.00",
    data="md0",
    graph=STATION_MESH,
)

ALL: Mapping[str, System] = {
    system.name: system
    for system in (
        _dgx_1("dgx-1-p100", "DGX-1", silicon.P100, P100_MESH),
        _dgx_1("dgx-1-v100", "DGX-1 with V100", silicon.V100, V100_MESH),
        _STATION,
        _switched(
            "dgx-a100",
            "DGXA100 920-23687-2530-000",
            silicon.A100,
            cpus=256,
            hcas=_HDR,
            driver="550.144.03",
        ),
        _switched("dgx-h100", "DGXH100", silicon.H100, cpus=224, hcas=_NDR, driver="580.159.04"),
        _switched("dgx-h200", "DGXH200", silicon.H200, cpus=224, hcas=_NDR, driver="580.159.04"),
        _desktop("k40", silicon.K40, "470.256.02", last_branch=470),
        _desktop("titan-x-maxwell", silicon.TITAN_X_MAXWELL, "580.159.04"),
        _desktop("gtx-1080", silicon.GTX_1080, "580.159.04"),
        _desktop("titan-x-pascal", silicon.TITAN_X_PASCAL, "580.159.04"),
    )
}
