"""Schema of a spec sheet: its keys, their units and sources, and how they must agree."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import asdict

from agent.config.configuration import ConfigError
from agent.config.decoding import Mismatch, Share, shown

_PCIE = {1: 2.5e9 * 8 / 10, 2: 5e9 * 8 / 10} | {
    generation: transfers * 128 / 130
    for generation, transfers in {3: 8e9, 4: 16e9, 5: 32e9}.items()
}
_PCIE[6] = 64e9 * 236 / 256
"""Bits per second and lane after line coding: 8b/10b, from generation 3 on 128b/130b. Generation 6
sends units of 256 bytes, 20 of which are its link layer's and for error correction."""

PCIE_SOURCE = "PCI Express Base Specification: transfers per second, times lanes, times line coding"


def pcie_bytes_per_second(generation: int, lanes: int) -> float | None:
    """Bytes per second in each direction; None for a generation not known here."""
    per_lane = _PCIE.get(generation)
    return per_lane * lanes / 8 if per_lane is not None else None


_ONES = ("GPUs", "CPUs", "SSDs", "links", "lanes", "ports", "bits", "PCIe generation", "RAID level")
UNITS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys((*_ONES, "ratio", "W", "°C"), 1.0)
    | {"kW": 1e3, "GB": 1e9, "TB": 1e12, "MB/s": 1e6, "GB/s": 1e9, "Gb/s": 1e9 / 8}
)
"""Size of each unit in the base unit (bytes, bytes per second, watts, or itself)."""


LARGE = 1e15
"""No figure of a spec sheet comes near; infinity, NaN and endless integers stay outside."""

Size = Annotated[float, Meta(gt=0, lt=LARGE, description="a number above 0")]
Count = Annotated[float, Meta(gt=0, lt=LARGE, multiple_of=1, description="a whole number above 0")]
Level = Annotated[
    float, Meta(ge=0, lt=LARGE, multiple_of=1, description="a whole number at or above 0")
]
Celsius = Annotated[float, Meta(gt=-273.15, lt=LARGE, description="a number above -273.15")]
Sheet = Annotated[str, Meta(pattern=r"\S", description="the name of a GPU's sheet")]
Pair = Annotated[
    tuple[int, int, int], Meta(description="[GPU, higher GPU, links above 0] in whole numbers")
]


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


class SpecBandwidth(NamedTuple):
    """Bandwidth of one data path in one direction, for each GPU, link, port or array."""

    bytes_per_second: float
    source: str


Bandwidths = dict[tuple[str, str], SpecBandwidth]  # by path and direction
Number = TypeVar("Number", bound=float)
Unit = TypeVar("Unit", bound=str)
PathName = TypeVar("PathName", bound=str)


class SheetFigure(SpecValue, Generic[Number, Unit], frozen=True, kw_only=True):
    """A figure with the numbers and units that it may have."""

    value: Number
    unit: Unit


Capacity = SheetFigure[Size, Literal["GB", "TB"]]
Power = SheetFigure[Size, Literal["W", "kW"]]
Temperature = SheetFigure[Celsius, Literal["°C"]]
Links = SheetFigure[Count, Literal["links"]]
Ports = SheetFigure[Count, Literal["ports"]]
Ssds = SheetFigure[Count, Literal["SSDs"]]
Ratio = SheetFigure[Share, Literal["ratio"]]
SpeedUnit = Literal["GB/s", "Gb/s", "MB/s"]

BOTH_WAYS = ("transmit", "receive")
READ_WRITE = ("read", "write")
PATHS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hbm": ("GPU", ("total",)),
    "nvlink": ("link", BOTH_WAYS),
    "pcie": ("GPU", BOTH_WAYS),
    "disk": ("array", READ_WRITE),
    "network": ("port", BOTH_WAYS),
    "infiniband": ("port", BOTH_WAYS),
}
"""Data paths: the part that a figure is for, and the directions."""

EACH = "each"
MOST_MESHED = 8
"""GPUs that are joined without a switch at most; graphs are compared by trying placings."""


class BandwidthTable(Struct, Generic[PathName], frozen=True):
    """Bandwidth of one path in one direction, or in each."""

    path: PathName
    per: str
    direction: str
    value: Size
    unit: SpeedUnit
    source: Text
    note: Text = ""

    def __post_init__(self) -> None:
        per, directions = PATHS[self.path]
        options = (EACH, *directions) if len(directions) > 1 else directions
        if self.per != per:
            raise Mismatch("per", shown(self.per), per)
        if self.direction not in options:
            raise Mismatch("direction", shown(self.direction), f"one of {', '.join(options)}")


def _bandwidths(
    tables: tuple[BandwidthTable[PathName], ...],
) -> dict[tuple[str, str], SpecBandwidth]:
    """Return the bandwidths of the tables; raises Mismatch if two define the same."""
    found: Bandwidths = {}
    for place, table in enumerate(tables):
        directions = PATHS[table.path][1] if table.direction == EACH else (table.direction,)
        for way in directions:
            if (table.path, way) in found:
                twice = f"{table.path} {way} for the second time"
                raise Mismatch(f"bandwidth[{place}].direction", twice, "it once")
            speed = table.value * UNITS[table.unit]
            found[table.path, way] = SpecBandwidth(speed, table.source)
    return found


class FigureTable(Struct, frozen=True, kw_only=True):
    """A table of figures; `source` is that of all which name none of their own."""

    source: Text = ""

    @property
    def values(self) -> Mapping[str, SpecValue]:
        return {key: value for key, value in asdict(self).items() if isinstance(value, SpecValue)}


class SheetTable(FigureTable, Generic[PathName], frozen=True, kw_only=True):
    """A table of what has a title and data paths."""

    title: Text
    bandwidth: tuple[BandwidthTable[PathName], ...] = ()

    def __post_init__(self) -> None:
        self.bandwidths  # noqa: B018 - raises what is wrong with them

    @property
    def bandwidths(self) -> Bandwidths:
        """One for each path and direction; raises Mismatch where two are for the same."""
        return _bandwidths(self.bandwidth)


class GpuSpec(SheetTable[Literal["hbm", "nvlink", "pcie"]], frozen=True, kw_only=True):
    """`[gpu]`; `models` are its names in NVML, `name` is that of its file, and NVLink's bandwidth
    is that of one link."""

    models: Names
    card: bool = False  # one alone in a machine is a system of its name
    integrated: bool = False  # shares the memory of its host, and has no PCIe slot
    memory: Capacity | None = None
    memory_bus: SheetFigure[Count, Literal["bits"]] | None = None
    pcie_generation: SheetFigure[Count, Literal["PCIe generation"]] | None = None
    pcie_lanes: SheetFigure[Count, Literal["lanes"]] | None = None
    nvlink_links_max: Links | None = None
    name: str = ""

    @property
    def bandwidths(self) -> Bandwidths:
        """With both directions of the slot, computed from its generation and width."""
        found = _bandwidths(self.bandwidth)
        generation, lanes = self.pcie_generation, self.pcie_lanes
        if generation and lanes and ("pcie", "receive") not in found:
            speed = pcie_bytes_per_second(int(generation.value), int(lanes.value))
            slot = SpecBandwidth(speed or 0.0, f"{generation.source}; {PCIE_SOURCE}")
            found |= {("pcie", way): slot for way in BOTH_WAYS if speed}
        return found

    def alone(self) -> "SystemSpec":
        """A machine with one such card."""
        source = "a single card, not a system of its own"
        count = SheetFigure[Count, Literal["GPUs"]](value=1, unit="GPUs", source=source)
        return SystemSpec(title=self.title, gpu=self.name, gpu_count=count, name=self.name)


class LinkGraph(Struct, frozen=True):
    """`[system.nvlink_graph]`: NVLinks between GPUs, `pairs` of (GPU, GPU, links); none where a
    switch joins them all.

    Machines number their GPUs differently: compare graphs, not index pairs.
    """

    kind: Literal["cube-mesh", "fully-connected", "nvswitch"]
    source: Text
    pairs: tuple[Pair, ...] = ()
    note: Text = ""

    def __post_init__(self) -> None:
        if self.kind == "nvswitch" and self.pairs:
            raise Mismatch("pairs", "given", "none where a switch joins all GPUs")
        if self.kind != "nvswitch" and not self.pairs:
            raise Mismatch("pairs", "missing", "lists of [GPU, higher GPU, links above 0]")

    def check(self, gpus: int, links: int) -> None:
        """Raise Mismatch where the pairs are not those of so many GPUs with so many links each."""
        if gpus > MOST_MESHED:
            raise Mismatch("pairs", f"given for {gpus} GPUs", f"at most {MOST_MESHED} of them")
        for place, pair in enumerate(self.pairs):
            if not (0 <= pair[0] < pair[1] < gpus and pair[2] > 0):
                expected = f"[GPU, higher GPU below {gpus}, links above 0]"
                raise Mismatch(f"pairs[{place}]", shown(list(pair)), expected)
        for ends, times in Counter(pair[:2] for pair in self.pairs).items():
            if times > 1:
                raise Mismatch("pairs", f"a list with {list(ends)} {times} times", "each pair once")
        for gpu in range(gpus):
            found = sum(count for one, other, count in self.pairs if gpu in (one, other))
            if found != links:
                expected = f"{links}, as nvlink_links_per_gpu says"
                raise Mismatch("pairs", f"a graph with {found} links at GPU {gpu}", expected)


class SystemSpec(SheetTable[Literal["disk", "network", "infiniband"]], frozen=True, kw_only=True):
    """`[system]`; `products` are patterns of its DMI product name, `name` is that of its file."""

    gpu: Sheet
    gpu_count: SheetFigure[Count, Literal["GPUs"]]
    gpu_alternatives: Texts = ()
    products: Names | None = None
    rack: bool = False  # known by its GPUs' place in one, with some of them missing too
    nvlink_graph: LinkGraph | None = None
    nvlink_links_per_gpu: Links | None = None
    collective: SheetFigure[Size, SpeedUnit] | None = None
    infiniband_ports: Ports | None = None
    ethernet_ports: Ports | None = None
    data_ssds: Ssds | None = None
    data_ssd_size: Capacity | None = None
    data_raid: SheetFigure[Level, Literal["RAID level"]] | None = None
    boot_ssds: Ssds | None = None
    boot_ssd_size: Capacity | None = None
    memory: Capacity | None = None
    cpus: SheetFigure[Count, Literal["CPUs"]] | None = None
    tdp: Power | None = None
    supply: Power | None = None
    inlet_lowest: Temperature | None = None
    inlet_highest: Temperature | None = None
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nvlink_graph is None or not self.nvlink_graph.pairs:
            return
        if self.nvlink_links_per_gpu is None:
            expected = "a table as nvlink_graph has pairs"
            raise Mismatch("nvlink_links_per_gpu", "missing", expected)
        try:
            self.nvlink_graph.check(int(self.gpu_count.value), int(self.nvlink_links_per_gpu.value))
        except Mismatch as wrong:
            raise wrong.within("nvlink_graph") from wrong

    @property
    def gpus(self) -> int:
        return int(self.gpu_count.value)

    @property
    def nvlink_links(self) -> int | None:
        links = self.nvlink_links_per_gpu
        return int(links.value) if links else None


class ThresholdTable(FigureTable, frozen=True):
    """`[thresholds]`: at which share of its limit a path counts as saturated."""

    hbm: Ratio | None = None
    nvlink: Ratio | None = None
    pcie: Ratio | None = None
    disk: Ratio | None = None
    network: Ratio | None = None
    infiniband: Ratio | None = None


class SheetFile(Struct, frozen=True):
    """One file."""

    system: SystemSpec | None = None
    gpu: GpuSpec | None = None
    thresholds: ThresholdTable | None = None
