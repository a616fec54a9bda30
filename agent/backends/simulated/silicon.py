"""The simulated GPU models: what a driver tells of each, and what it can carry."""

from dataclasses import dataclass
from typing import NamedTuple

KEPLER, MAXWELL, PASCAL, VOLTA, AMPERE, HOPPER = 2, 3, 4, 5, 7, 9
"""`nvmlDeviceGetArchitecture`."""

PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 3.93846e9}
"""Bytes per second, lane and direction, after line coding, by PCIe generation."""


class Clocks(NamedTuple):
    """MHz: the highest, and where the GPU rests when nothing runs."""

    sm: int
    memory: int
    idle_sm: int
    idle_memory: int


class Thresholds(NamedTuple):
    """Degrees Celsius, in the order of `nvmlTemperatureThresholds_t`; None is not supported."""

    shutdown: int
    slowdown: int
    memory_max: int | None
    gpu_max: int | None


class Links(NamedTuple):
    """NVLinks of a GPU: how many, nominal bytes/s a direction, MB/s as the driver reports it."""

    number: int
    speed: float
    reported: int


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One product. Memory in bytes, power in watts, bus in bits."""

    name: str
    architecture: int
    device_id: int
    vbios: str
    memory: int
    reserved: int
    bus_width: int
    power_limit: float
    clocks: Clocks
    thresholds: Thresholds
    pcie_generation: int
    links: Links | None = None
    datacentre: bool = True  # Tesla: serial number, ECC; GeForce and TITAN have neither
    renamed: bool = False  # drivers from 470 on put "NVIDIA " before the name

    @property
    def ecc(self) -> bool:
        return self.datacentre

    @property
    def pcie_limit(self) -> float:
        """Bytes per second and direction of 16 lanes."""
        return PCIE_LANE[self.pcie_generation] * 16


MIB = 1 << 20

K40 = GpuModel(
    name="Tesla K40m",
    architecture=KEPLER,
    device_id=0x102310DE,
    vbios="80.80.3E.00.02",
    memory=11441 * MIB,
    reserved=0,
    bus_width=384,
    power_limit=235.0,
    clocks=Clocks(875, 3004, 324, 324),
    thresholds=Thresholds(95, 90, None, None),
    pcie_generation=3,
)
TITAN_X_MAXWELL = GpuModel(
    name="GeForce GTX TITAN X",
    architecture=MAXWELL,
    device_id=0x17C210DE,
    vbios="84.00.1F.00.01",
    memory=12206 * MIB,
    reserved=0,
    bus_width=384,
    power_limit=250.0,
    clocks=Clocks(1392, 3505, 135, 324),
    thresholds=Thresholds(97, 92, None, None),
    pcie_generation=3,
    datacentre=False,
    renamed=True,
)
GTX_1080 = GpuModel(
    name="GeForce GTX 1080",
    architecture=PASCAL,
    device_id=0x1B8010DE,
    vbios="86.04.17.00.01",
    memory=8119 * MIB,
    reserved=0,
    bus_width=256,
    power_limit=180.0,
    clocks=Clocks(1911, 5005, 139, 405),
    thresholds=Thresholds(99, 96, None, None),
    pcie_generation=3,
    datacentre=False,
    renamed=True,
)
TITAN_X_PASCAL = GpuModel(
    name="TITAN X (Pascal)",
    architecture=PASCAL,
    device_id=0x1B0010DE,
    vbios="86.02.15.00.01",
    memory=12193 * MIB,
    reserved=0,
    bus_width=384,
    power_limit=250.0,
    clocks=Clocks(1911, 5005, 139, 405),
    thresholds=Thresholds(99, 96, None, None),
    pcie_generation=3,
    datacentre=False,
    renamed=True,
)
P100 = GpuModel(
    name="Tesla P100-SXM2-16GB",
    architecture=PASCAL,
    device_id=0x15F910DE,
    vbios="86.00.4D.00.01",
    memory=16280 * MIB,
    reserved=0,
    bus_width=4096,
    power_limit=300.0,
    clocks=Clocks(1480, 715, 405, 715),
    thresholds=Thresholds(85, 82, None, None),
    pcie_generation=3,
    links=Links(4, 20e9, 20000),
)
V100 = GpuModel(
    name="Tesla V100-SXM2-16GB",
    architecture=VOLTA,
    device_id=0x1DB110DE,
    vbios="88.00.13.00.04",
    memory=16160 * MIB,
    reserved=0,
    bus_width=4096,
    power_limit=300.0,
    clocks=Clocks(1530, 877, 135, 877),
    thresholds=Thresholds(90, 87, 85, 83),
    pcie_generation=3,
    links=Links(6, 25e9, 25781),
)
V100_STATION = GpuModel(
    name="Tesla V100-DGXS-32GB",
    architecture=VOLTA,
    device_id=0x1DB710DE,
    vbios="88.00.98.00.01",
    memory=32510 * MIB,
    reserved=0,
    bus_width=4096,
    power_limit=300.0,
    clocks=Clocks(1530, 877, 135, 877),
    thresholds=Thresholds(90, 87, 85, 83),
    pcie_generation=3,
    links=Links(4, 25e9, 25781),
)
A100 = GpuModel(
    name="A100-SXM4-80GB",
    architecture=AMPERE,
    device_id=0x20B210DE,
    vbios="92.00.45.00.03",
    memory=81920 * MIB,
    reserved=869 * MIB,
    bus_width=5120,
    power_limit=400.0,
    clocks=Clocks(1410, 1593, 210, 1593),
    thresholds=Thresholds(92, 89, 95, 85),
    pcie_generation=4,
    links=Links(12, 25e9, 25000),
    renamed=True,
)
H100 = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    architecture=HOPPER,
    device_id=0x233010DE,
    vbios="96.00.DA.00.0C",
    memory=85_520_809_984,
    reserved=503_316_480,
    bus_width=5120,
    power_limit=700.0,
    clocks=Clocks(1980, 2619, 345, 2619),
    thresholds=Thresholds(95, 89, 95, 87),
    pcie_generation=5,
    links=Links(18, 25e9, 26562),
)
H200 = GpuModel(
    name="NVIDIA H200",
    architecture=HOPPER,
    device_id=0x233510DE,
    vbios="96.00.BC.00.01",
    memory=143_771 * MIB,
    reserved=645_922_816,
    bus_width=6144,
    power_limit=700.0,
    clocks=Clocks(1980, 3201, 345, 3201),
    thresholds=Thresholds(95, 89, 95, 87),
    pcie_generation=5,
    links=Links(18, 25e9, 26562),
)
