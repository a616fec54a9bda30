"""Models of the simulated GPUs and systems. Each model has a file in `gpus/` or `systems/`. It does
not use the agent's spec sheets, because tests compare the sheets with the models."""

from collections.abc import Mapping
from enum import IntEnum
from math import inf
from pathlib import Path

from msgspec import Struct, convert

from agent.metrics import beside

Architecture = IntEnum(
    "Architecture", "KEPLER MAXWELL PASCAL VOLTA TURING AMPERE ADA HOPPER BLACKWELL", start=2
)
"""Values of `nvmlDeviceGetArchitecture`."""

_LANES = (0.25e9, 0.5e9, 1e9 * 128 / 130, 2e9 * 128 / 130, 3.93846e9, 7.375e9)
PCIE_LANE = dict(enumerate(_LANES, 1))
"""Bytes per second per lane and direction by PCIe generation, after line coding."""


class ClockModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Maximum and idle clocks in MHz."""

    sm: int
    memory: int
    idle_sm: int
    idle_memory: int


class TemperatureThresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """Temperature thresholds in degrees Celsius, in the order of `nvmlTemperatureThresholds_t`. A
    threshold is None if the GPU does not support it."""

    shutdown: int
    slowdown: int
    memory_max: int | None = None
    gpu_max: int | None = None


class LinkModel(Struct, frozen=True, forbid_unknown_fields=True):
    """The number of a GPU's NVLinks, and the nominal speed per link and direction in bytes/s."""

    number: int
    speed: float


class GpuModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model. Memory is in bytes, power in watts, and bus width in bits."""

    name: str
    architecture: int
    vbios: str
    memory: int
    bus_width: int
    power_limit: float
    power_update: float  # update interval of the power sensor (s)
    power_window: float  # averaging window of the power sensor (s)
    pace: float  # duration of a training step, relative to an H100
    clocks: ClockModel
    thresholds: TemperatureThresholds
    pcie_generation: int
    reserved: int = 0  # memory reserved by the driver
    links: LinkModel | None = None
    lanes: int = 16  # PCIe lanes; 1 without a slot, because the driver reports a placeholder
    shared_memory: bool = False  # with the host, so the driver reports no size or power limit
    datacentre: bool = True  # has a serial number and ECC, unlike GeForce and TITAN
    prefixed_since: float = inf  # first driver branch that prefixes the name with "NVIDIA "

    @property
    def wide(self) -> bool:
        """Whether the GPU memory is HBM, which has a wide bus."""
        return self.bus_width >= 1024  # bits

    @property
    def remaps(self) -> bool:
        return self.datacentre and self.architecture >= Architecture.AMPERE

    @property
    def divides(self) -> bool:
        return self.remaps and self.architecture != Architecture.ADA

    @property
    def gpm(self) -> bool:
        return self.architecture >= Architecture.HOPPER and not self.shared_memory

    @property
    def slot(self) -> bool:
        return self.lanes > 1


class ArrayModel(Struct, frozen=True, forbid_unknown_fields=True):
    """An md array that contains all disks of a group."""

    name: str
    level: str


class DiskGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """SSDs of the same model. `speed` is in bytes per second. `array` is their array, if any."""

    names: tuple[str, ...]
    model: str
    speed: float
    array: ArrayModel | None = None


class NicModel(Struct, frozen=True, forbid_unknown_fields=True):
    """An Ethernet port. `megabits` is the negotiated speed, or -1 if there is no carrier."""

    name: str
    megabits: int = -1


class HcaModel(Struct, frozen=True, forbid_unknown_fields=True):
    """InfiniBand ports. `rate` is in the kernel's format. A slow port has the rate `lower`."""

    number: int
    rate: str
    lower: str


class SystemModel(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine in its factory configuration."""

    name: str
    product: str
    vendor: str
    model: GpuModel
    buses: tuple[int, ...]  # PCI bus of each GPU, plus 256 times its domain
    cpus: int  # number of CPUs
    disks: tuple[DiskGroup, ...]
    nics: tuple[NicModel, ...]
    drivers: tuple[int, int]  # first and last supported branch
    driver: str  # default version
    data: str  # disk or array with the training data
    hcas: HcaModel | None = None
    nvlinks: tuple[tuple[int, int, int], ...] = ()  # between two GPUs: their indices, and a number
    switched: bool = False  # NVLinks end at NVSwitches
    rack: bool = False  # true for a rack tray
    nvswitches: int = 0  # number of NVSwitches visible to the driver
    per_pcie_switch: int = 0  # GPUs that share a PCIe switch uplink; 0 if they share none

    @property
    def gpus(self) -> int:
        return len(self.buses)

    @property
    def peers(self) -> bool:
        return self.gpus > 1

    @property
    def redundant(self) -> bool:
        return any(group.array and group.array.level != "raid0" for group in self.disks)

    @property
    def nvme(self) -> bool:
        return self.disks[0].names[0].startswith("nvme")

    @property
    def asks(self) -> bool:
        """Whether the driver can request recovery actions, such as a GPU reset."""
        return int(self.driver.partition(".")[0]) >= 570

    @property
    def dgx(self) -> bool:
        return self.vendor == "NVIDIA"

    @property
    def chassis(self) -> bool:
        """Whether the machine is a DGX server with several GPUs, and thus has chassis sensors."""
        return self.dgx and self.peers


def _system(path: Path) -> SystemModel:
    table = beside(__file__, f"systems/{path.stem}")
    table["model"] = convert(beside(__file__, f"gpus/{table.pop('gpu')}"), GpuModel)
    return convert({**table, "name": path.stem}, SystemModel)


def meets(of: str, model: GpuModel, *others: object) -> bool:
    """Return whether all conditions in the string `of` are met. A condition is a GPU generation,
    which the model must reach, or an attribute of the model or of `others`, which must be true. The
    prefix `no-` negates it."""
    for word in of.split():
        name = word.removeprefix("no-")
        if name.upper() in Architecture.__members__:
            met = model.architecture >= Architecture[name.upper()]
        else:
            met = getattr(next(one for one in (model, *others) if hasattr(one, name)), name)
        if bool(met) == word.startswith("no-"):
            return False
    return True


def address(bus: int) -> str:
    domain, bus = divmod(bus, 256)
    return f"{domain:04x}:{bus:02x}:00.0"


ALL: Mapping[str, SystemModel] = {
    system.name: system
    for system in sorted(
        map(_system, Path(__file__).with_name("systems").glob("*.toml")),
        key=lambda one: (not one.dgx, one.model.architecture, one.name),
    )
}  # DGX systems first, and oldest GPUs first within each group
