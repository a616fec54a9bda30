"""Reads the spec sheets: manufacturers' specifications of systems and GPUs, each with a source.

Each system or GPU has a TOML file with its name. tests/agent/specs checks their contents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct, convert

from agent.config.configuration import ConfigError
from agent.config.decoding import Share
from agent.config.settings import Section, Settings
from agent.metrics import beside
from agent.model import GpuIdentity

_PCIE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10, 3: 8e9 * 128 / 130, 4: 16e9 * 128 / 130}
_PCIE |= {5: 32e9 * 128 / 130, 6: 64e9 * 236 / 256}
"""Bits per second per lane after line coding (8b/10b, or 128b/130b from generation 3 on). In
generation 6, 20 of 256 bytes are data of the link layer and for error correction."""

PCIE_SOURCE = "PCI Express Base Specification: transfers per second, times lanes, times line coding"


def pcie_bytes_per_second(generation: int, lanes: int) -> float | None:
    """Return the PCIe bytes per second per direction, or None if the generation is unknown."""
    per_lane = _PCIE.get(generation)
    return per_lane * lanes / 8 if per_lane is not None else None


UNITS = {"kW": 1e3, "GB": 1e9, "TB": 1e12, "MB/s": 1e6, "GB/s": 1e9, "Gb/s": 1e9 / 8}
"""Factor from each unit to the base unit: bytes, bytes per second, or watts."""

BOTH_WAYS = ("transmit", "receive")
PATHS: Mapping[str, tuple[str, ...]] = {
    "hbm": ("total",),
    "nvlink": BOTH_WAYS,
    "pcie": BOTH_WAYS,
    "disk": ("read", "write"),
    "network": BOTH_WAYS,
    "infiniband": BOTH_WAYS,
}
"""The directions of data paths, by kind of path."""


class SpecValue(Struct, frozen=True):
    """A specification: its value and unit, as printed in the source."""

    value: float
    unit: str
    source: str
    note: str = ""

    @property
    def base(self) -> float:
        """The value in base units: bytes, bytes per second, or watts. Size prefixes are decimal."""
        return self.value * UNITS.get(self.unit, 1.0)


class Names(Struct, frozen=True):
    """Names that a driver or firmware reports for a device, and where these names come from."""

    names: tuple[str, ...]
    source: str


class Limit(NamedTuple):
    """The limit of a path in bytes per second. `origin` is `configured`, `spec`, or `hardware`."""

    bytes_per_second: float
    origin: str
    source: str


class GpuSpec(Struct, frozen=True, kw_only=True):
    """The `[gpu]` table of a spec sheet. `models` contains the names in NVML, and `values` the
    specifications by key. `bandwidths` is by path and direction (for NVLink, of one link)."""

    name: str
    title: str
    models: Names
    card: bool = False  # a machine with a single card is a system with this name
    integrated: bool = False  # shares the host's memory and has no PCIe slot
    values: Mapping[str, SpecValue]
    bandwidths: Mapping[tuple[str, str], Limit]


class LinkGraph(Struct, frozen=True):
    """The `[system.nvlink_graph]` table: the NVLinks between GPUs. `pairs` contains tuples (GPU,
    GPU, number of links). It is empty if switches connect all GPUs.

    Machines number their GPUs differently, so graphs are compared regardless of the numbering.
    """

    kind: Literal["cube-mesh", "fully-connected", "nvswitch"]
    source: str
    pairs: tuple[tuple[int, int, int], ...] = ()


class SystemSpec(Struct, frozen=True, kw_only=True):
    """The `[system]` table of a spec sheet. `gpu` is the name of its GPUs' spec sheet. `products`
    contains patterns for its DMI product name. `values` and `bandwidths` are as in GpuSpec."""

    name: str
    title: str
    gpu: str
    gpu_alternatives: tuple[str, ...] = ()
    products: Names | None = None
    rack: bool = False  # identified by the rack position of its GPUs, even if some are missing
    nvlink_graph: LinkGraph | None = None
    values: Mapping[str, SpecValue]
    bandwidths: Mapping[tuple[str, str], Limit]

    @property
    def gpus(self) -> int:
        return int(self.values["gpu_count"].value)

    @property
    def nvlink_links(self) -> int | None:
        links = self.values.get("nvlink_links_per_gpu")
        return int(links.value) if links else None


class Specs(NamedTuple):
    """All spec sheets by name."""

    systems: Mapping[str, SystemSpec]
    gpus: Mapping[str, GpuSpec]
    models: Mapping[str, GpuSpec]  # by NVML name without prefix

    def gpu(self, model: str) -> GpuSpec | None:
        """Return the spec sheet for the NVML name of a GPU, with or without the prefix NVIDIA."""
        return self.models.get(_plain(model))


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold().removeprefix("nvidia ")


@cache
def load() -> Specs:
    """Read all spec sheets in this package, sorted by name."""
    systems: dict[str, SystemSpec] = {}
    gpus: dict[str, GpuSpec] = {}
    for name in (sheet.stem for sheet in sorted(Path(__file__).parent.glob("*.toml"))):
        content = beside(__file__, name)
        if "system" in content:
            systems[name] = convert(_sheet(name, content["system"]), SystemSpec)
        if "gpu" in content:
            gpus[name] = gpu = convert(_sheet(name, content["gpu"]), GpuSpec)
            if gpu.card:
                count = SpecValue(1, "GPUs", "a single card, not a system of its own")
                systems[name] = SystemSpec(
                    name=name, title=gpu.title, gpu=name, values={"gpu_count": count}, bandwidths={}
                )
    names = ((_plain(name), spec) for spec in gpus.values() for name in spec.models.names)
    return Specs(systems, gpus, dict(names))


def _sheet(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with its values and bandwidths in separate keys. A value without a source has
    the table's source. The PCIe bandwidth of a GPU is computed from its generation and lanes."""
    source = {"source": table.get("source", "")}
    parts = {k: source | part if isinstance(part, dict) else part for k, part in table.items()}
    figures = {k: v for k, v in parts.items() if isinstance(v, dict) and "value" in v}
    values = {key: convert(figure, SpecValue) for key, figure in figures.items()}
    bandwidths: dict[tuple[str, str], Limit] = {}
    if "pcie_lanes" in values:
        generation, lanes = values["pcie_generation"], values["pcie_lanes"]
        speed = pcie_bytes_per_second(int(generation.value), int(lanes.value))
        slot = Limit(speed or 0.0, "spec", f"{generation.source}; {PCIE_SOURCE}")
        bandwidths = {("pcie", way): slot for way in BOTH_WAYS}
    for one in table.get("bandwidth", ()):
        directions = PATHS[one["path"]] if one["direction"] == "each" else (one["direction"],)
        known = Limit(one["value"] * UNITS[one["unit"]], "spec", (source | one)["source"])
        bandwidths |= {(one["path"], way): known for way in directions}
    return parts | {"name": name, "values": values, "bandwidths": bandwidths}


@lru_cache(maxsize=64)
def recognise(
    models: tuple[str, ...], product: str, configured: str = "", *, racked: bool = False
) -> SystemSpec | None:
    """Return the system with the given GPU models (NVML names) and DMI product name, or None.
    `racked` is true if a GPU reports a rack chassis.

    If `configured` is not empty, return the system with this name, or raise ConfigError. Otherwise,
    some GPUs may be missing, but the others must match. A DGX must have an NVIDIA product name.
    """
    specs = load()
    if configured and configured not in specs.systems:
        expected = f"expected one of {', '.join(specs.systems)}"
        raise ConfigError(f"system is {configured!r} in the configuration, {expected}.")
    if configured:
        return specs.systems[configured]
    sheets = map(specs.gpu, {*models} - {""})
    found = {sheet.name if sheet else "" for sheet in sheets}
    fitting = [
        system
        for system in specs.systems.values()
        if found <= {system.gpu, *system.gpu_alternatives}
        and _fits(system, len(models), _plain(product), racked=racked)
    ]
    # Without GPUs, systems with the same product name cannot be distinguished.
    ambiguous = not found and len(fitting) > 1
    return fitting[-1] if fitting and not ambiguous else None


def _fits(system: SystemSpec, gpus: int, product: str, *, racked: bool) -> bool:
    """Return whether the product name and the number of GPUs match the system."""
    if system.products is None:
        some_missing = system.rack and racked and gpus < system.gpus
        return (gpus == system.gpus or some_missing) and not product.startswith("dgx")
    patterns = map(_plain, system.products.names)
    return gpus <= system.gpus and any(fnmatchcase(product, pattern) for pattern in patterns)


class SpecConfig(Section, frozen=True):
    """Settings for the system: its name and number of GPUs. By default, both are detected."""

    table = ""
    retired = ("specs", "cluster")
    system: str = ""
    gpus: Annotated[int, Meta(ge=0, le=1024, description="a whole number from 0 to 1024")] = 0


class SaturationConfig(Section, frozen=True):
    """Share of a path's limit at and above which the path counts as saturated."""

    table = "saturation"
    # V100 peers reached 47.9 of 50 GB/s, and P100 peers 73.06 of 80 GB/s ([P] Dell measurements),
    # so a saturated link may be slightly below its nominal bandwidth.
    nvlink: Share = 0.85
    pcie: Share = 0.80  # headers and flow control use 10 to 20 % of the bandwidth
    hbm: Share = 0.90  # up to 95 % utilization: NVIDIA DGX Station Architecture WP-V01, section 2.1
    disk: Share = 0.90
    network: Share = 0.90
    infiniband: Share = 0.90


@dataclass(frozen=True, slots=True)
class MachineSpecs:
    """Selects the spec sheet of this machine by its product name and GPUs."""

    product: str = ""
    system: str = ""  # as configured

    @classmethod
    def of(cls, settings: Settings, product: str) -> "MachineSpecs":
        """Return an object for a machine with the given product name. Raise ConfigError if there is
        no spec sheet for the configured system."""
        configured = settings[SpecConfig].system
        recognise((), product, configured)
        return cls(product, configured)

    def system_of(self, gpus: Sequence[GpuIdentity]) -> SystemSpec | None:
        """Return the spec sheet of this machine with the given GPUs, or None if there is none."""
        racked = any(gpu.racked for gpu in gpus)
        return recognise(tuple(gpu.model for gpu in gpus), self.product, self.system, racked=racked)
