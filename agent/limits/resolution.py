"""Capacity of each data path: as configured, else the smaller of the spec sheet and the hardware's
own figure (active NVLinks, the fastest generation and the present width of the slot, and so on)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from agent.config.decoding import Mismatch
from agent.config.settings import Section
from agent.model import GpuKey
from agent.series import SampleStore
from agent.sources import clocks, disk, gpu, infiniband, memory, network, nvlink, pcie
from agent.specs.machine import Specs
from agent.specs.sheets import (
    PATHS,
    PCIE_SOURCE,
    GpuSpec,
    SpecBandwidth,
    SystemSpec,
    pcie_bytes_per_second,
)

MOST_RATE = 1e18  # Bytes per second; TOML knows no bounds, and floats do

Path = Literal["nvlink", "pcie", "hbm", "disk", "network", "infiniband"]
Device = Annotated[str, Meta(min_length=1, description="a name such as md0, eth0 or gpu0")]
Rate = Annotated[
    float, Meta(gt=0, le=MOST_RATE, description=f"a number above 0 and at most {MOST_RATE:g}")
]


class LimitConfig(Struct, frozen=True):
    """Bytes per second of one path, device and direction."""

    path: Path
    device: Device
    direction: str
    bytes_per_second: Rate

    def __post_init__(self) -> None:
        _, directions = PATHS[self.path]
        if self.direction not in directions:
            raise Mismatch("direction", repr(self.direction), f"one of {', '.join(directions)}")


class LimitsConfig(Section, frozen=True):
    """Every limit that is configured, each path once."""

    table = ""
    limit: tuple[LimitConfig, ...] = ()

    def __post_init__(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for number, one in enumerate(self.limit):
            path = (one.path, one.device, one.direction)
            if path in seen:
                found = f"the second of {' '.join(path)}"
                raise Mismatch(f"limit[{number}]", found, "one", of_key=True)
            seen.add(path)


BOTH = ("transmit", "receive")
DOUBLE_RATE = 2  # HBM moves data on both edges of its clock
BITS = 8


class PathKey(NamedTuple):
    """One data path in one direction; `gpu` and `uuid` are empty for paths of the host."""

    path: str
    device: str
    gpu: str
    uuid: str
    direction: str

    @property
    def of(self) -> GpuKey | None:
        return GpuKey(int(self.gpu), self.uuid) if self.gpu else None

    @property
    def is_link(self) -> bool:
        """True if it is one of several links of a GPU."""
        return bool(self.gpu) and self.device != f"gpu{self.gpu}"


class Limit(NamedTuple):
    """Bytes per second at most; `origin` is configured, spec or hardware."""

    bytes_per_second: float
    origin: str
    source: str


Limits = Mapping[PathKey, Limit]


@dataclass(frozen=True)
class LimitInputs:
    """Facts on this machine from which its limits are resolved; GPUs by index and UUID."""

    samples: SampleStore
    specs: Specs
    system: SystemSpec | None
    configured: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def system_bandwidth(self, path: str, direction: str) -> SpecBandwidth | None:
        """Return the bandwidth of one port or array on this system's sheet, if the system is
        known."""
        return self.system.carries(path, direction) if self.system else None

    @cached_property
    def sheets(self) -> Mapping[tuple[str, str], GpuSpec | None]:
        found: dict[tuple[str, str], GpuSpec | None] = {}
        for info in self.samples.labelled(gpu.INFO):
            found.setdefault((info["gpu"], info["uuid"]), self.specs.gpu(info["model"]))
        return found

    @cached_property
    def link_speeds(self) -> Mapping[tuple[str, str], float]:
        """Bytes a second of one NVLink, of each GPU whose architecture has other than the usual."""
        return {
            (info["gpu"], info["uuid"]): nvlink.LINK_SPEED[info["architecture"]]
            for info in self.samples.labelled(gpu.INFO)
            if info["architecture"] in nvlink.LINK_SPEED
        }

    @cached_property
    def links_to_gpus(self) -> Mapping[tuple[str, str], list[str]]:
        """Links that end at another GPU: behind a switch all carry the same, and the sum counts
        all."""
        found: dict[tuple[str, str], list[str]] = {}
        for end in self.samples.labelled(nvlink.LINK_INFO):
            if end["remote"] == "gpu":
                found.setdefault((end["gpu"], end["uuid"]), []).append(end["link"])
        return found


class PathFigures(NamedTuple):
    """Figures on one path before its limit is decided: the sheet's and the hardware's."""

    key: PathKey
    spec: Limit | None
    hardware: Limit | None


def of_sheet(bandwidth: SpecBandwidth | None) -> Limit | None:
    if bandwidth is None:
        return None
    return Limit(bandwidth.bytes_per_second, "spec", bandwidth.source)


def links_of_sheets(links: float, one: SpecBandwidth | None) -> Limit | None:
    """So many links, by the system's sheet where it is known, each as the GPU's sheet says."""
    if one is None:
        return None
    speed = one.bytes_per_second
    source = f"{links:.0f} links of {speed / 1e9:g} GB/s: {one.source}"
    return Limit(links * speed, "spec", source)


def _nvlink(machine: LimitInputs) -> Iterator[PathFigures]:
    for (index, uuid), up in machine.samples.all(nvlink.LINKS).items():
        sheet = machine.sheets.get((index, uuid))
        links = machine.samples.value(nvlink.LINKS_EXPECTED, index, uuid) or up
        for direction in BOTH:
            spec = sheet.carries("nvlink", direction) if sheet else None
            known = machine.link_speeds.get((index, uuid), nvlink.USUAL_LINK_SPEED)
            speed = spec.bytes_per_second if spec else known
            source = f"{up:.0f} active links of {speed / 1e9:g} GB/s"
            key = PathKey("nvlink", f"gpu{index}", index, uuid, direction)
            hardware = Limit(up * speed, "hardware", source)
            yield PathFigures(key, links_of_sheets(links, spec), hardware)
            for link in machine.links_to_gpus.get((index, uuid), ()):
                one = key._replace(device=f"gpu{index}:{link}")
                yield PathFigures(one, of_sheet(spec), Limit(speed, "hardware", "one link"))


def _pcie(machine: LimitInputs) -> Iterator[PathFigures]:
    for (index, uuid), generation in machine.samples.all(pcie.GENERATION_LIMIT).items():
        sheet = machine.sheets.get((index, uuid))
        if sheet is not None and sheet.integrated:
            continue
        width = machine.samples.value(pcie.WIDTH, index, uuid)
        speed = None if width is None else pcie_bytes_per_second(int(generation), int(width))
        carries = None
        if speed is not None:
            source = f"generation {generation:.0f} x{width:.0f}: {PCIE_SOURCE}"
            carries = Limit(speed, "hardware", source)
        for direction in BOTH:
            spec = sheet.carries("pcie", direction) if sheet else None
            key = PathKey("pcie", f"gpu{index}", index, uuid, direction)
            yield PathFigures(key, of_sheet(spec), carries)


def _hbm(machine: LimitInputs) -> Iterator[PathFigures]:
    """Also where nothing says how much of it is in use: a busy controller is not a full bus."""
    for index, uuid, *_ in machine.samples.all(gpu.INFO):
        bits = machine.samples.value(memory.BUS_WIDTH, index, uuid)
        hertz = machine.samples.value(clocks.CLOCK_LIMIT, index, uuid, "memory")
        carries = None
        if hertz is not None and bits is not None:
            speed = hertz * DOUBLE_RATE * bits / BITS
            carries = Limit(speed, "hardware", f"{bits:.0f} bits at {hertz / 1e6:.0f} MHz")
        sheet = machine.sheets.get((index, uuid))
        spec = sheet.carries("hbm", "total") if sheet else None
        key = PathKey("hbm", f"gpu{index}", index, uuid, "total")
        yield PathFigures(key, of_sheet(spec), carries)


def _disk(machine: LimitInputs) -> Iterator[PathFigures]:
    """The sheet's figure is that of the array that holds the data; a single disk has none."""
    level = machine.system.values.get("data_raid") if machine.system else None
    for labels in machine.samples.labelled(disk.INFO):
        holds_data = level is not None and labels["model"] == f"raid{level.value:.0f}"
        for direction in ("read", "write"):
            spec = machine.system_bandwidth("disk", direction) if holds_data else None
            key = PathKey("disk", labels["device"], "", "", direction)
            yield PathFigures(key, of_sheet(spec), None)


def _network(machine: LimitInputs) -> Iterator[PathFigures]:
    for (device,) in machine.samples.all(network.RECEIVED):
        speed = machine.samples.value(network.SPEED, device)
        source = f"/sys/class/net/{device}/speed"
        carries = None if speed is None else Limit(speed, "hardware", source)
        for direction in BOTH:
            spec = machine.system_bandwidth("network", direction) if carries else None
            key = PathKey("network", device, "", "", direction)
            yield PathFigures(key, of_sheet(spec), carries)


def _infiniband(machine: LimitInputs) -> Iterator[PathFigures]:
    for (device, port), rate in machine.samples.all(infiniband.RATE).items():
        source = f"/sys/class/infiniband/{device}/ports/{port}/rate"
        for direction in BOTH:
            spec = machine.system_bandwidth("infiniband", direction)
            key = PathKey("infiniband", f"{device}:{port}", "", "", direction)
            yield PathFigures(key, of_sheet(spec), Limit(rate, "hardware", source))


def find_paths(machine: LimitInputs) -> list[PathFigures]:
    return [
        found
        for path in (_nvlink, _pcie, _hbm, _disk, _network, _infiniband)
        for found in path(machine)
    ]


def resolve(machine: LimitInputs, found: Iterable[PathFigures]) -> dict[PathKey, Limit]:
    """The limit of every path that has a known one; the others have none, and no ratio.

    What the owner configured by path, device and direction comes before all else; then the
    smaller of what the sheet and the hardware say.
    """
    limits: dict[PathKey, Limit] = {}
    for key, spec, hardware in found:
        own = machine.configured.get((key.path, key.device, key.direction))
        if own is not None:
            limits[key] = Limit(own, "configured", "the configuration")
        elif spec is not None or hardware is not None:
            known = [limit for limit in (spec, hardware) if limit is not None]
            limits[key] = min(known, key=lambda limit: limit.bytes_per_second)
    return limits
