"""Determines the limit of each data path: the configured limit or, without one, the smaller of the
limits in the spec sheet and from the hardware (such as the number of active NVLinks)."""

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
from agent.specs import sheets
from agent.specs.sheets import PATHS, PCIE_SOURCE, GpuSpec, Limit, SystemSpec, load

MOST_RATE = 1e18  # Bytes per second; unlike floats, TOML numbers are unbounded


class LimitConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[limit]]` table: the limit of a device's path in one direction (bytes per second)."""

    path: Literal["nvlink", "pcie", "hbm", "disk", "network", "infiniband"]
    device: Annotated[str, Meta(min_length=1, description="a name such as md0, eth0 or gpu0")]
    direction: str
    bytes_per_second: Annotated[
        float, Meta(gt=0, le=MOST_RATE, description=f"a number above 0 and at most {MOST_RATE:g}")
    ]

    def __post_init__(self) -> None:
        directions = PATHS[self.path]
        if self.direction not in directions:
            raise Mismatch("direction", f"{self.direction!r} is none of {', '.join(directions)}")


class LimitsConfig(Section, frozen=True):
    """All configured limits. The last limit for a path, device, and direction applies."""

    table = ""
    limit: tuple[LimitConfig, ...] = ()

    @property
    def by_path(self) -> dict[tuple[str, str, str], float]:
        """The configured limits in bytes per second, by path, device, and direction."""
        return {(one.path, one.device, one.direction): one.bytes_per_second for one in self.limit}


class PathKey(NamedTuple):
    """A data path in one direction. `gpu` and `uuid` are empty for paths of the host."""

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
        """Whether the path is a single NVLink rather than all NVLinks of a GPU."""
        return bool(self.gpu) and self.device != f"gpu{self.gpu}"


@dataclass(frozen=True)
class LimitInputs:
    """Data from which the limits are determined. The keys for GPUs are index and UUID."""

    samples: SampleStore
    system: SystemSpec | None
    configured: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    @cached_property
    def sheets(self) -> Mapping[tuple[str, str], GpuSpec | None]:
        found: dict[tuple[str, str], GpuSpec | None] = {}
        for info in self.samples.labelled(gpu.INFO):
            found.setdefault((info["gpu"], info["uuid"]), load().gpu(info["model"]))
        return found


class PathFigures(NamedTuple):
    """A path, its limit in the spec sheet, and its limit from the hardware (None if unknown)."""

    key: PathKey
    spec: Limit | None
    hardware: Limit | None


def _of_path(
    path: str,
    device: str,
    sheet: GpuSpec | SystemSpec | None,
    hardware: Limit | None,
    who: tuple[str, str] = ("", ""),
) -> Iterator[PathFigures]:
    """Yield the limits of a path for each of its directions."""
    bandwidths = sheet.bandwidths if sheet else {}
    for direction in PATHS[path]:
        spec = bandwidths.get((path, direction))
        yield PathFigures(PathKey(path, device, *who, direction), spec, hardware)


def _nvlink(machine: LimitInputs) -> Iterator[PathFigures]:
    """Yield two limits of each GPU's NVLinks. Both are the link speed in the spec sheet multiplied
    by a number of links: all expected links (spec limit) or the active links (hardware limit)."""
    infos = machine.samples.labelled(gpu.INFO)
    architectures = {(info["gpu"], info["uuid"]): info["architecture"] for info in infos}
    for who, up in machine.samples.all(nvlink.LINKS).items():
        index, uuid = who
        sheet = machine.sheets.get((index, uuid))
        links = machine.samples.value(nvlink.LINKS_EXPECTED, *who) or up
        known = nvlink.LINK_SPEED.get(architectures.get((index, uuid), ""), nvlink.USUAL_LINK_SPEED)
        for key, one, _ in _of_path("nvlink", f"gpu{index}", sheet, None, (index, uuid)):
            speed, spec = one.bytes_per_second if one else known, None
            if one:
                source = f"{links:.0f} links of {speed / 1e9:g} GB/s: {one.source}"
                spec = Limit(links * speed, "spec", source)
            source = f"{up:.0f} active links of {speed / 1e9:g} GB/s"
            yield PathFigures(key, spec, Limit(up * speed, "hardware", source))
            # Links to a switch carry equal traffic, so one limit for all of them is sufficient.
            for labels in machine.samples.where(nvlink.LINK_INFO, uuid=uuid, remote="gpu"):
                of_link = key._replace(device=f"gpu{index}:{labels[2]}")
                yield PathFigures(of_link, one, Limit(speed, "hardware", "one link"))


def _pcie(machine: LimitInputs) -> Iterator[PathFigures]:
    for (index, uuid), generation in machine.samples.all(pcie.GENERATION_LIMIT).items():
        sheet = machine.sheets.get((index, uuid))
        if sheet is not None and sheet.integrated:
            continue
        width = machine.samples.value(pcie.WIDTH, index, uuid)
        speed = None if width is None else sheets.pcie_bytes_per_second(int(generation), int(width))
        source = f"generation {generation:.0f} x{width or 0:.0f}: {PCIE_SOURCE}"
        carries = None if speed is None else Limit(speed, "hardware", source)
        yield from _of_path("pcie", f"gpu{index}", sheet, carries, (index, uuid))


def _hbm(machine: LimitInputs) -> Iterator[PathFigures]:
    """Yield the memory bandwidth limits of each GPU, even if its memory traffic is unknown. NVML
    only reports how long the memory controller is busy, which does not show the traffic."""
    for index, uuid, *_ in machine.samples.all(gpu.INFO):
        bits = machine.samples.value(memory.BUS_WIDTH, index, uuid)
        hertz = machine.samples.value(clocks.CLOCK_LIMIT, index, uuid, "memory")
        carries = None
        if hertz is not None and bits is not None:
            speed = 2 * hertz * bits / 8  # HBM transfers data on both clock edges
            carries = Limit(speed, "hardware", f"{bits:.0f} bits at {hertz / 1e6:.0f} MHz")
        sheet = machine.sheets.get((index, uuid))
        yield from _of_path("hbm", f"gpu{index}", sheet, carries, (index, uuid))


def _disk(machine: LimitInputs) -> Iterator[PathFigures]:
    """Yield the limits of disks. The spec sheet only has a limit of the array for training data."""
    level = machine.system.values.get("data_raid") if machine.system else None
    for labels in machine.samples.labelled(disk.DISK_INFO):
        holds_data = level is not None and labels["model"] == f"raid{level.value:.0f}"
        yield from _of_path("disk", labels["device"], machine.system if holds_data else None, None)


def _network(machine: LimitInputs) -> Iterator[PathFigures]:
    for (device,) in machine.samples.all(network.RECEIVED):
        speed = machine.samples.value(network.SPEED, device)
        source = f"/sys/class/net/{device}/speed"
        carries = None if speed is None else Limit(speed, "hardware", source)
        yield from _of_path("network", device, machine.system if carries else None, carries)


def _infiniband(machine: LimitInputs) -> Iterator[PathFigures]:
    for (device, port), rate in machine.samples.all(infiniband.RATE).items():
        source = f"/sys/class/infiniband/{device}/ports/{port}/rate"
        carries = Limit(rate, "hardware", source)
        yield from _of_path("infiniband", f"{device}:{port}", machine.system, carries)


def find_paths(machine: LimitInputs) -> list[PathFigures]:
    kinds = (_nvlink, _pcie, _hbm, _disk, _network, _infiniband)
    return [found for kind in kinds for found in kind(machine)]


def resolve(machine: LimitInputs, found: Iterable[PathFigures]) -> dict[PathKey, Limit]:
    """Return the limit of each path: the configured limit, or else the smaller of the limits in the
    spec sheet and from the hardware. Omit paths without a known limit."""
    limits: dict[PathKey, Limit] = {}
    for key, spec, hardware in found:
        own = machine.configured.get((key.path, key.device, key.direction))
        if own is not None:
            limits[key] = Limit(own, "configured", "the configuration")
        elif spec is not None or hardware is not None:
            known = [limit for limit in (spec, hardware) if limit is not None]
            limits[key] = min(known, key=lambda limit: limit.bytes_per_second)
    return limits
