"""What stands in a file of spec sheets: which keys, in which units, and how they must agree."""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import asdict

from agent.config.decoding import Mismatch, Share, shown
from agent.specs.pcie_rates import PCIE_SOURCE, pcie_bytes_per_second
from agent.specs.sheets import (
    UNITS,
    GpuSpec,
    LinkGraph,
    Names,
    SpecBandwidth,
    SpecValue,
    SystemSpec,
    Text,
    Texts,
)

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
"""For each data path: what one figure is for, and its directions."""

EACH = "each"
MOST_MESHED = 8
"""GPUs that are joined without a switch at most; graphs are compared by trying placings."""


class BandwidthTable(Struct, Generic[PathName], frozen=True):
    """What one path carries in one direction, or in each."""

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

    def bandwidths(self) -> Iterator[SpecBandwidth]:
        """One for each direction."""
        per, directions = PATHS[self.path]
        speed = self.value * UNITS[self.unit]
        for way in directions if self.direction == EACH else (self.direction,):
            yield SpecBandwidth(self.path, way, speed, self.source, per, self.note)


def _bandwidths(tables: tuple[BandwidthTable[PathName], ...]) -> tuple[SpecBandwidth, ...]:
    """What the tables say; raises Mismatch where two say the same."""
    found: dict[tuple[str, str], SpecBandwidth] = {}
    for place, table in enumerate(tables):
        for bandwidth in table.bandwidths():
            key = (bandwidth.path, bandwidth.direction)
            if key in found:
                twice = f"{' '.join(key)} for the second time"
                raise Mismatch(f"bandwidth[{place}].direction", twice, "it once")
            found[key] = bandwidth
    return tuple(found.values())


def _figures(table: Struct) -> Mapping[str, SpecValue]:
    """The figures that a table has, by key."""
    found = asdict(table).items()
    return MappingProxyType({key: value for key, value in found if isinstance(value, SpecValue)})


class GpuTable(Struct, frozen=True):
    """`[gpu]`; `source` is that of all figures which name none of their own."""

    title: Text
    models: Names
    source: Text = ""
    card: bool = False  # one alone in a machine is a system of its name
    integrated: bool = False  # shares the memory of its host, and has no PCIe slot
    bandwidth: tuple[BandwidthTable[Literal["hbm", "nvlink", "pcie"]], ...] = ()
    memory: Capacity | None = None
    memory_bus: SheetFigure[Count, Literal["bits"]] | None = None
    pcie_generation: SheetFigure[Count, Literal["PCIe generation"]] | None = None
    pcie_lanes: SheetFigure[Count, Literal["lanes"]] | None = None
    nvlink_links_max: Links | None = None
    c2c: SheetFigure[Size, Literal["GB/s"]] | None = None

    def __post_init__(self) -> None:
        _bandwidths(self.bandwidth)

    def spec(self, name: str) -> GpuSpec:
        """The sheet called `name`."""
        bandwidths = _bandwidths(self.bandwidth)
        if not any(bandwidth.path == "pcie" for bandwidth in bandwidths):
            bandwidths += tuple(self._pcie())
        return GpuSpec(name, self.title, self.models, _figures(self), bandwidths, self.integrated)

    def alone(self, name: str, file: str) -> SystemSpec:
        """A machine with one such card."""
        count = SpecValue(1, "GPUs", "a single card, not a system of its own")
        values = MappingProxyType({"gpu_count": count})
        return SystemSpec(name, self.title, name, (), None, values, (), None, file)

    def _pcie(self) -> Iterator[SpecBandwidth]:
        """Both directions of the slot, computed from its generation and width."""
        generation, lanes = self.pcie_generation, self.pcie_lanes
        if generation is None or lanes is None:
            return
        speed = pcie_bytes_per_second(int(generation.value), int(lanes.value))
        source = f"{generation.source}; {PCIE_SOURCE}"
        note = f"generation {generation.value:g} x{lanes.value:g}"
        for direction in BOTH_WAYS if speed else ():
            yield SpecBandwidth("pcie", direction, speed or 0.0, source, "GPU", note)


class GraphTable(Struct, frozen=True):
    """`[system.nvlink_graph]`: its pairs are missing where a switch joins all GPUs."""

    kind: Literal["cube-mesh", "fully-connected", "nvswitch"]
    source: Text
    pairs: tuple[Pair, ...] | None = None
    note: Text = ""

    def __post_init__(self) -> None:
        if self.kind == "nvswitch" and self.pairs is not None:
            raise Mismatch("pairs", "given", "none where a switch joins all GPUs")
        if self.kind != "nvswitch" and self.pairs is None:
            raise Mismatch("pairs", "missing", "lists of [GPU, higher GPU, links above 0]")

    def check(self, gpus: int, links: int) -> None:
        """Raise Mismatch where the pairs are not those of so many GPUs with so many links each."""
        if gpus > MOST_MESHED:
            raise Mismatch("pairs", f"given for {gpus} GPUs", f"at most {MOST_MESHED} of them")
        pairs = self.pairs or ()
        for place, pair in enumerate(pairs):
            if not (0 <= pair[0] < pair[1] < gpus and pair[2] > 0):
                expected = f"[GPU, higher GPU below {gpus}, links above 0]"
                raise Mismatch(f"pairs[{place}]", shown(list(pair)), expected)
        for ends, times in Counter(pair[:2] for pair in pairs).items():
            if times > 1:
                raise Mismatch("pairs", f"a list with {list(ends)} {times} times", "each pair once")
        for gpu in range(gpus):
            if (found := self.graph().links_of(gpu)) != links:
                expected = f"{links}, as nvlink_links_per_gpu says"
                raise Mismatch("pairs", f"a graph with {found} links at GPU {gpu}", expected)

    def graph(self) -> LinkGraph:
        """The same, for who compares graphs."""
        return LinkGraph(self.kind, self.pairs or (), self.source, self.note)


class SystemTable(Struct, frozen=True):
    """`[system]`; `source` as in `[gpu]`."""

    title: Text
    gpu: Sheet
    gpu_count: SheetFigure[Count, Literal["GPUs"]]
    source: Text = ""
    gpu_alternatives: Texts = ()
    products: Names | None = None
    rack: bool = False  # known by its GPUs' place in one, with some of them missing too
    bandwidth: tuple[BandwidthTable[Literal["disk", "network", "infiniband"]], ...] = ()
    nvlink_graph: GraphTable | None = None
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

    def __post_init__(self) -> None:
        _bandwidths(self.bandwidth)
        if self.nvlink_graph is None or self.nvlink_graph.pairs is None:
            return
        if self.nvlink_links_per_gpu is None:
            expected = "a table as nvlink_graph has pairs"
            raise Mismatch("nvlink_links_per_gpu", "missing", expected)
        try:
            self.nvlink_graph.check(int(self.gpu_count.value), int(self.nvlink_links_per_gpu.value))
        except Mismatch as wrong:
            raise wrong.within("nvlink_graph") from wrong

    def spec(self, name: str, file: str) -> SystemSpec:
        """The sheet called `name`, which stands in `file`."""
        return SystemSpec(
            name=name,
            title=self.title,
            gpu=self.gpu,
            gpu_alternatives=self.gpu_alternatives,
            products=self.products,
            values=_figures(self),
            bandwidths=_bandwidths(self.bandwidth),
            nvlink_graph=self.nvlink_graph.graph() if self.nvlink_graph else None,
            file=file,
            rack=self.rack,
        )


class ThresholdTable(Struct, frozen=True):
    """`[thresholds]`: at which share of its limit a path counts as saturated."""

    hbm: Ratio | None = None
    nvlink: Ratio | None = None
    pcie: Ratio | None = None
    disk: Ratio | None = None
    network: Ratio | None = None
    infiniband: Ratio | None = None

    def shares(self) -> Mapping[str, SpecValue]:
        """Those that are given, by path."""
        return _figures(self)


class SheetFile(Struct, frozen=True):
    """One file."""

    system: SystemTable | None = None
    gpu: GpuTable | None = None
    thresholds: ThresholdTable | None = None
