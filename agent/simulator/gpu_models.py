"""The simulated GPU models, each a file in `gpus/`: what a driver reports, what it carries."""

import tomllib
from pathlib import Path

from msgspec import Struct, convert

FOLDER = Path(__file__).parent / "gpus"

KEPLER, MAXWELL, PASCAL, VOLTA, AMPERE, ADA, HOPPER, BLACKWELL = 2, 3, 4, 5, 7, 8, 9, 10
"""`nvmlDeviceGetArchitecture`."""

PCIE_LANE = {
    1: 0.25e9,
    2: 0.5e9,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 3.93846e9,
    6: 7.375e9,
}
"""Bytes per second, lane and direction, after line coding, by PCIe generation."""


class ClockModel(Struct, frozen=True):
    """MHz: the highest, and where the GPU rests when nothing runs."""

    sm: int
    memory: int
    idle_sm: int
    idle_memory: int


class TemperatureThresholds(Struct, frozen=True):
    """Degrees Celsius, in the order of `nvmlTemperatureThresholds_t`; None is not supported."""

    shutdown: int
    slowdown: int
    memory_max: int | None = None
    gpu_max: int | None = None


class LinkModel(Struct, frozen=True):
    """NVLinks of a GPU: how many, nominal bytes/s a direction, MB/s as the driver reports it."""

    number: int
    speed: float
    reported: int


class C2cModel(Struct, frozen=True):
    """Links to the CPU: how many, and MB/s of one as the driver reports it."""

    number: int
    reported: int


HBM = 1024  # Bits from which a memory bus is one of HBM


class GpuModel(Struct, frozen=True):
    """One product. Memory in bytes, power in watts, bus in bits."""

    name: str
    architecture: int
    device_id: int
    vbios: str
    memory: int
    bus_width: int
    power_limit: float
    power_update: float  # s between two readings of the power sensor
    power_window: float  # s before it that a reading is the mean of
    pace: float  # times an H100's seconds for a step of training
    clocks: ClockModel
    thresholds: TemperatureThresholds
    pcie_generation: int
    reserved: int = 0  # by the driver, of the memory
    links: LinkModel | None = None
    c2c: C2cModel | None = None
    module_limit: float | None = None  # W, of the module with its CPU
    lanes: int = 16  # of PCIe; 1 where there is no slot, and the driver reports a placeholder
    shared_memory: bool = False  # with the host: the driver reports neither size, nor power limit
    datacentre: bool = True  # Tesla: serial number, ECC; GeForce and TITAN have neither
    instances: tuple[float, ...] = ()  # GiB of one with one, two, three slices under MIG
    prefixed_since: int | None = None  # first branch that puts "NVIDIA " before the name

    @property
    def ecc(self) -> bool:
        return self.datacentre

    @property
    def fan(self) -> bool:
        """A fan of its own: boards for data centres are cooled by their chassis."""
        return not (self.datacentre or self.shared_memory)

    @property
    def remaps(self) -> bool:
        """Rows of its memory; older ones retire pages."""
        return self.ecc and self.architecture >= AMPERE

    @property
    def divides(self) -> bool:
        """MIG; no board of the Ada generation can."""
        return self.remaps and self.architecture != ADA

    @property
    def gpm(self) -> bool:
        return self.architecture >= HOPPER and not self.shared_memory

    @property
    def hbm(self) -> bool:
        return self.bus_width >= HBM

    @property
    def slot(self) -> bool:
        return self.lanes > 1


def load(name: str) -> GpuModel:
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return convert(table, GpuModel)
