"""From TOML to spec sheets: which keys there are, in which units, and how they must agree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent.specs.sheets import (
    UNITS,
    Bandwidth,
    GpuSpec,
    Graph,
    Names,
    SystemSpec,
    Value,
)
from agent.specs.table import Table, shown
from agent.specs.wires import PCIE_SOURCE, pcie_bytes_per_second


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure must be: its units, whole or not, and its bounds."""

    units: tuple[str, ...]
    whole: bool = False
    least: float = 0
    most: float = float("inf")
    zero: bool = False  # whether `least` itself will do

    @property
    def expected(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        least = "at or above" if self.zero else "above"
        most = "" if self.most == float("inf") else f" and at most {self.most:g}"
        return f"{kind} {least} {self.least:g}{most}"

    def admits(self, number: float) -> bool:
        above = number >= self.least if self.zero else number > self.least
        return above and number <= self.most and (not self.whole or number == int(number))


def _count(unit: str) -> Figure:
    return Figure((unit,), whole=True)


SIZE = Figure(("GB", "TB"))
RATE = Figure(("GB/s", "Gb/s", "MB/s"))
POWER = Figure(("W", "kW"))
TEMPERATURE = Figure(("°C",), least=-273.15)
SHARE = Figure(("ratio",), most=1)

GPU_FIGURES: Mapping[str, Figure] = {
    "memory": SIZE,
    "memory_bus": _count("bits"),
    "pcie_generation": _count("PCIe generation"),
    "pcie_lanes": _count("lanes"),
    "nvlink_links_max": _count("links"),
}
SYSTEM_FIGURES: Mapping[str, Figure] = {
    "gpu_count": _count("GPUs"),
    "nvlink_links_per_gpu": _count("links"),
    "collective": RATE,
    "infiniband_ports": _count("ports"),
    "ethernet_ports": _count("ports"),
    "data_ssds": _count("SSDs"),
    "data_ssd_size": SIZE,
    "data_raid": Figure(("RAID level",), whole=True, zero=True),
    "boot_ssds": _count("SSDs"),
    "boot_ssd_size": SIZE,
    "memory": SIZE,
    "cpus": _count("CPUs"),
    "tdp": POWER,
    "supply": POWER,
    "inlet_lowest": TEMPERATURE,
    "inlet_highest": TEMPERATURE,
}

Paths = Mapping[str, tuple[str, tuple[str, ...]]]
"""For each data path: what one figure is for, and its directions."""

BOTH_WAYS = ("transmit", "receive")
READ_WRITE = ("read", "write")
GPU_PATHS: Paths = {
    "hbm": ("GPU", ("total",)),
    "nvlink": ("link", BOTH_WAYS),
    "pcie": ("GPU", BOTH_WAYS),
}
SYSTEM_PATHS: Paths = {
    "disk": ("array", READ_WRITE),
    "network": ("port", BOTH_WAYS),
    "infiniband": ("port", BOTH_WAYS),
}
PATHS = (*GPU_PATHS, *SYSTEM_PATHS)
EACH = "each"

MOST_MESHED = 8
"""GPUs that are joined without a switch at most; graphs are compared by trying placings."""

GRAPHS = ("cube-mesh", "fully-connected", "nvswitch")
SECTIONS = ("system", "gpu", "thresholds")


def gpu_spec(name: str, table: Table) -> GpuSpec:
    """The [gpu] table of the sheet called `name`."""
    table.only(("title", "models", "bandwidth", *GPU_FIGURES))
    title, models = table.text("title"), _names(table.table("models"))
    values = _values(table, GPU_FIGURES)
    bandwidths = tuple(_bandwidths(table, GPU_PATHS))
    if not any(bandwidth.path == "pcie" for bandwidth in bandwidths):
        bandwidths += tuple(_pcie(values))
    return GpuSpec(name, title, models, values, bandwidths)


def system_spec(name: str, table: Table) -> SystemSpec:
    """The [system] table of the sheet called `name`."""
    optional = ("gpu_alternatives", "products", "bandwidth", "nvlink_graph")
    table.only(("title", "gpu", *optional, *SYSTEM_FIGURES))
    title, gpu = table.text("title"), table.text("gpu", "the name of a GPU's sheet")
    alternatives = table.texts("gpu_alternatives") if table.has("gpu_alternatives") else ()
    values = _values(table, SYSTEM_FIGURES)
    if "gpu_count" not in values:
        raise table.wrong("gpu_count", "missing", "a table with value, unit and source")
    return SystemSpec(
        name=name,
        title=title,
        gpu=gpu,
        gpu_alternatives=alternatives,
        products=_names(table.table("products")) if table.has("products") else None,
        values=values,
        bandwidths=tuple(_bandwidths(table, SYSTEM_PATHS)),
        nvlink_graph=_graph(table, values) if table.has("nvlink_graph") else None,
        file=table.file,
    )


def thresholds(table: Table) -> Mapping[str, Value]:
    """The [thresholds] table: at which share of its limit a path counts as saturated."""
    table.only(PATHS)
    return _values(table, dict.fromkeys(PATHS, SHARE))


def _values(table: Table, figures: Mapping[str, Figure]) -> Mapping[str, Value]:
    present = ((key, figure) for key, figure in figures.items() if table.has(key))
    return MappingProxyType({key: _value(table.table(key), figure) for key, figure in present})


def _value(table: Table, figure: Figure) -> Value:
    table.only(("value", "unit", "source", "note"))
    return Value(
        _number(table, figure),
        table.choice("unit", figure.units),
        table.text("source"),
        table.optional_text("note"),
    )


def _number(table: Table, figure: Figure) -> float:
    number = table.number("value", figure.expected)
    if not figure.admits(number):
        raise table.wrong("value", shown(number), figure.expected)
    return number


def _names(table: Table) -> Names:
    table.only(("names", "source", "note"))
    return Names(table.texts("names"), table.text("source"), table.optional_text("note"))


def _bandwidths(table: Table, paths: Paths) -> Iterator[Bandwidth]:
    seen: set[tuple[str, str]] = set()
    for row in table.tables("bandwidth"):
        for bandwidth in _bandwidth(row, paths):
            key = (bandwidth.path, bandwidth.direction)
            if key in seen:
                raise row.wrong("direction", f"{' '.join(key)} for the second time", "it once")
            seen.add(key)
            yield bandwidth


def _bandwidth(row: Table, paths: Paths) -> Iterator[Bandwidth]:
    row.only(("path", "per", "direction", "value", "unit", "source", "note"))
    path = row.choice("path", paths)
    per, directions = paths[path]
    row.choice("per", (per,))
    options = (EACH, *directions) if len(directions) > 1 else directions
    direction = row.choice("direction", options)
    speed = _number(row, RATE) * UNITS[row.choice("unit", RATE.units)]
    source, note = row.text("source"), row.optional_text("note")
    for one in directions if direction == EACH else (direction,):
        yield Bandwidth(path, one, speed, source, per, note)


def _pcie(values: Mapping[str, Value]) -> Iterator[Bandwidth]:
    """Both directions of the slot, computed from its generation and width."""
    generation, lanes = values.get("pcie_generation"), values.get("pcie_lanes")
    speed = generation and lanes and pcie_bytes_per_second(int(generation.value), int(lanes.value))
    if generation and lanes and speed:
        source = f"{generation.source}; {PCIE_SOURCE}"
        note = f"generation {generation.value:g} x{lanes.value:g}"
        for direction in BOTH_WAYS:
            yield Bandwidth("pcie", direction, speed, source, "GPU", note)


def _graph(system: Table, values: Mapping[str, Value]) -> Graph:
    table = system.table("nvlink_graph")
    table.only(("kind", "pairs", "source", "note"))
    kind = table.choice("kind", GRAPHS)
    source, note = table.text("source"), table.optional_text("note")
    if kind == "nvswitch":
        if table.has("pairs"):
            raise table.wrong("pairs", "given", "none where a switch joins all GPUs")
        return Graph(kind, (), source, note)
    if "nvlink_links_per_gpu" not in values:
        raise system.wrong("nvlink_links_per_gpu", "missing", "a table as nvlink_graph has pairs")
    gpus, links = (int(values[key].value) for key in ("gpu_count", "nvlink_links_per_gpu"))
    if gpus > MOST_MESHED:
        raise table.wrong("pairs", f"given for {gpus} GPUs", f"at most {MOST_MESHED} of them")
    graph = Graph(kind, _pairs(table, gpus), source, note)
    for gpu in range(gpus):
        if graph.links_of(gpu) != links:
            found = f"a graph with {graph.links_of(gpu)} links at GPU {gpu}"
            raise table.wrong("pairs", found, f"{links}, as nvlink_links_per_gpu says")
    return graph


def _pairs(table: Table, gpus: int) -> tuple[tuple[int, int, int], ...]:
    expected = f"lists of [GPU, higher GPU below {gpus}, links above 0]"
    rows = table.rows("pairs", expected)
    for row in rows:
        if not _is_pair(row, gpus):
            raise table.wrong("pairs", f"a list with {shown(row)}", expected)
    _once(table, ((row[0], row[1]) for row in rows))
    return tuple((row[0], row[1], row[2]) for row in rows)


def _is_pair(row: object, gpus: int) -> bool:
    if not isinstance(row, list) or [type(part) for part in row] != [int, int, int]:
        return False
    one, other, links = row
    return bool(0 <= one < other < gpus and links > 0)


def _once(table: Table, pairs: Iterable[tuple[int, int]]) -> None:
    for pair, times in Counter(pairs).items():
        if times > 1:
            raise table.wrong("pairs", f"a list with {list(pair)} {times} times", "each pair once")
