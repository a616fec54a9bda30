"""What each data path can carry: the smaller of the spec sheet and what the hardware has now."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.look import Look
from agent.sources import activity, clocks, disk, gpu, infiniband, memory, network, nvlink, pcie
from agent.specs import Bandwidth, GpuSpec, Specs, SystemSpec
from agent.specs.wires import PCIE_SOURCE, pcie_bytes_per_second

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


class Limit(NamedTuple):
    """Bytes per second at most; `origin` is configured, spec or hardware."""

    bytes_per_second: float
    origin: str
    source: str


Limits = Mapping[PathKey, Limit]


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of this machine when its limits are resolved."""

    look: Look
    specs: Specs
    system: SystemSpec | None
    configured: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def sheet(self, index: str, uuid: str) -> GpuSpec | None:
        """The spec sheet of one GPU."""
        found = self.look.where(gpu.INFO, gpu=index, uuid=uuid)
        return self.specs.gpu(next(iter(found))[2]) if found else None


def smaller(spec: Bandwidth | None, hardware: Limit | None, times: float = 1.0) -> Limit | None:
    """The smaller of the sheet's figure (taken so many times) and what the hardware carries now."""
    found = [hardware] if hardware else []
    if spec is not None:
        found.insert(0, Limit(spec.bytes_per_second * times, "spec", spec.source))
    return min(found, key=lambda limit: limit.bytes_per_second, default=None)


Resolved = Iterator[tuple[PathKey, Limit | None]]


def _nvlink(machine: Machine) -> Resolved:
    for (index, uuid), up in machine.look.all(nvlink.LINKS).items():
        sheet = machine.sheet(index, uuid)
        planned = machine.look.value(nvlink.LINKS_EXPECTED, index, uuid) or up
        for direction in BOTH:
            spec = sheet.bandwidth("nvlink", direction) if sheet else None
            speed = spec.bytes_per_second if spec else nvlink.USUAL_LINK_SPEED
            carries = Limit(
                up * speed, "hardware", f"{up:.0f} active links of {speed / 1e9:g} GB/s"
            )
            key = PathKey("nvlink", f"gpu{index}", index, uuid, direction)
            yield key, smaller(spec, carries, planned)
            for link in _links_to_gpus(machine, index, uuid):
                device = f"gpu{index}:{link}"
                yield key._replace(device=device), smaller(spec, Limit(speed, "hardware", "a link"))


def _links_to_gpus(machine: Machine, index: str, uuid: str) -> list[str]:
    """Links that end at another GPU: behind a switch all carry the same, and the sum tells all."""
    ends = machine.look.where(nvlink.LINK_INFO, gpu=index, uuid=uuid, remote="gpu")
    return [key[2] for key in ends]


def _pcie(machine: Machine) -> Resolved:
    for (index, uuid), generation in machine.look.all(pcie.GENERATION_LIMIT).items():
        width = machine.look.value(pcie.WIDTH, index, uuid)
        sheet = machine.sheet(index, uuid)
        for direction in BOTH:
            carries = None
            if width is not None:
                speed = pcie_bytes_per_second(int(generation), int(width))
                source = f"generation {generation:.0f} x{width:.0f}: {PCIE_SOURCE}"
                carries = Limit(speed, "hardware", source) if speed else None
            spec = sheet.bandwidth("pcie", direction) if sheet else None
            key = PathKey("pcie", f"gpu{index}", index, uuid, direction)
            yield key, smaller(spec, carries)


def _hbm(machine: Machine) -> Resolved:
    """Only where GPM tells the bandwidth in use: a busy memory controller is not a full bus."""
    for index, uuid in machine.look.all(activity.MEMORY_BANDWIDTH):
        bits = machine.look.value(memory.BUS_WIDTH, index, uuid)
        hertz = machine.look.value(clocks.CLOCK_LIMIT, index, uuid, "memory")
        sheet = machine.sheet(index, uuid)
        carries = None
        if hertz is not None and bits is not None:
            speed = hertz * DOUBLE_RATE * bits / BITS
            carries = Limit(speed, "hardware", f"{bits:.0f} bits at {hertz / 1e6:.0f} MHz")
        spec = sheet.bandwidth("hbm", "total") if sheet else None
        yield PathKey("hbm", f"gpu{index}", index, uuid, "total"), smaller(spec, carries)


def _disk(machine: Machine) -> Resolved:
    level = machine.system.values.get("data_raid") if machine.system else None
    for labels in machine.look.labelled(disk.INFO):
        holds_data = level is not None and labels["model"] == f"raid{level.value:.0f}"
        for direction in ("read", "write"):
            spec = machine.system.bandwidth("disk", direction) if machine.system else None
            key = PathKey("disk", labels["device"], "", "", direction)
            yield key, smaller(spec, None) if holds_data else None


def _network(machine: Machine) -> Resolved:
    for (device,) in machine.look.all(network.RECEIVED):
        speed = machine.look.value(network.SPEED, device)
        source = f"/sys/class/net/{device}/speed"
        limit = None if speed is None else Limit(speed, "hardware", source)
        for direction in BOTH:
            yield PathKey("network", device, "", "", direction), limit


def _infiniband(machine: Machine) -> Resolved:
    for (device, port), rate in machine.look.all(infiniband.RATE).items():
        source = f"/sys/class/infiniband/{device}/ports/{port}/rate"
        for direction in BOTH:
            spec = machine.system.bandwidth("infiniband", direction) if machine.system else None
            key = PathKey("infiniband", f"{device}:{port}", "", "", direction)
            yield key, smaller(spec, Limit(rate, "hardware", source))


PATHS: tuple[Callable[[Machine], Resolved], ...] = (
    _nvlink,
    _pcie,
    _hbm,
    _disk,
    _network,
    _infiniband,
)


def resolve(machine: Machine) -> dict[PathKey, Limit]:
    """The limit of every path that has a known one; the others have none, and no ratio.

    What the owner configured by path, device and direction comes before all else.
    """
    limits: dict[PathKey, Limit] = {}
    for path in PATHS:
        for key, limit in path(machine):
            own = machine.configured.get((key.path, key.device, key.direction))
            known = limit if own is None else Limit(own, "configured", "the configuration")
            if known is not None:
                limits[key] = known
    return limits
