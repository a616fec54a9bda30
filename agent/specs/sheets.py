"""What a spec sheet holds: values with their unit and source, bandwidths, graphs of links."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from agent.config.configuration import ConfigError

UNITS: Mapping[str, float] = MappingProxyType(
    {
        "GPUs": 1,
        "CPUs": 1,
        "SSDs": 1,
        "links": 1,
        "lanes": 1,
        "ports": 1,
        "bits": 1,
        "PCIe generation": 1,
        "RAID level": 1,
        "ratio": 1,
        "GB": 1e9,
        "TB": 1e12,
        "MB/s": 1e6,
        "GB/s": 1e9,
        "Gb/s": 1e9 / 8,
        "W": 1,
        "kW": 1e3,
        "°C": 1,
    }
)
"""How much of the base unit (bytes, bytes per second, watts, or itself) each unit is."""


class SpecError(ConfigError):
    """A spec sheet, or a system asked for by name, is wrong; the message is one sentence."""


Text = Annotated[str, Meta(pattern=r"\S", description="text that is not empty")]
Texts = Annotated[
    tuple[Text, ...], Meta(min_length=1, description="a list of text that is not empty")
]


class SpecValue(Struct, frozen=True):
    """One figure as its source prints it."""

    value: float
    unit: str
    source: Text
    note: Text = ""

    @property
    def base(self) -> float:
        """The figure in base units: bytes, bytes per second, watts; a size as its maker counts."""
        return self.value * UNITS[self.unit]


class Names(Struct, frozen=True):
    """Names that a driver or firmware gives one thing, and where they were seen."""

    names: Texts
    source: Text
    note: Text = ""


@dataclass(frozen=True, slots=True)
class SpecBandwidth:
    """What one data path can carry in one direction, for each GPU, link, port or array."""

    path: str
    direction: str
    bytes_per_second: float
    source: str
    per: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LinkGraph:
    """NVLinks between GPUs: `pairs` of (GPU, GPU, links), none where a switch joins them all.

    Machines number their GPUs differently: compare graphs, not index pairs.
    """

    kind: str
    pairs: tuple[tuple[int, int, int], ...]
    source: str
    note: str = ""

    @property
    def links(self) -> int:
        """Links between GPUs in the whole system; 0 where all links end at a switch."""
        return sum(count for _, _, count in self.pairs)

    def links_of(self, gpu: int) -> int:
        """Links of one GPU to other GPUs."""
        return sum(count for one, other, count in self.pairs if gpu in (one, other))


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """The spec sheet of one GPU model; `models` are its names in NVML."""

    name: str
    title: str
    models: Names
    values: Mapping[str, SpecValue] = field(hash=False)
    bandwidths: tuple[SpecBandwidth, ...]
    integrated: bool = False

    def bandwidth(self, path: str, direction: str) -> SpecBandwidth | None:
        """What `path` (hbm, nvlink, pcie) carries; NVLink's is that of one link."""
        return _find(self.bandwidths, path, direction)

    @property
    def memory(self) -> SpecValue | None:
        return self.values.get("memory")

    @property
    def pcie_generation(self) -> int | None:
        return _whole(self.values, "pcie_generation")

    @property
    def pcie_lanes(self) -> int | None:
        return _whole(self.values, "pcie_lanes")


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """The spec sheet of one system; `products` are patterns of its DMI product name."""

    name: str
    title: str
    gpu: str
    gpu_alternatives: tuple[str, ...]
    products: Names | None
    values: Mapping[str, SpecValue] = field(hash=False)
    bandwidths: tuple[SpecBandwidth, ...]
    nvlink_graph: LinkGraph | None
    file: str = field(compare=False)
    rack: bool = False  # sits in a rack that its GPUs report

    def bandwidth(self, path: str, direction: str) -> SpecBandwidth | None:
        """What one port or array of `path` (disk, network, infiniband) carries."""
        return _find(self.bandwidths, path, direction)

    @property
    def gpus(self) -> int:
        return int(self.values["gpu_count"].value)

    @property
    def nvlink_links(self) -> int | None:
        """NVLinks of each GPU."""
        return _whole(self.values, "nvlink_links_per_gpu")


def _find(bandwidths: tuple[SpecBandwidth, ...], path: str, direction: str) -> SpecBandwidth | None:
    found = (b for b in bandwidths if (b.path, b.direction) == (path, direction))
    return next(found, None)


def _whole(values: Mapping[str, SpecValue], key: str) -> int | None:
    return int(values[key].value) if key in values else None
