"""What all GPUs of one tick share: the window, the wires, the host, and who works with whom."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from agent.bandwidth import Bandwidth
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.window import Labels, Window
from agent.sources import cpu, disk, filesystem, pressure, workload


class Wire(NamedTuple):
    """One data path in one direction: traffic over limit, and the limit in bytes per second."""

    device: str
    direction: str
    ratio: float
    limit: float


@dataclass(frozen=True)
class Past:
    """What must be remembered of a GPU for longer than the window."""

    quiet_for: float = 0.0  # s
    talked: bool = True  # whether NVLink has carried anything since the processes came


@dataclass(frozen=True)
class Scene:
    """One tick. What is costly to gather is gathered when a rule first asks for it."""

    window: Window
    bandwidth: Bandwidth
    thresholds: Thresholds
    pasts: Mapping[Labels, Past] = field(default_factory=dict)

    def saturation(self, path: str) -> float:
        """The share of its limit at which a path counts as saturated."""
        return self.bandwidth.threshold(path)

    def wires(self, path: str, *labels: str) -> list[Wire]:
        """The paths of one kind whose traffic is known now; `labels` (GPU, UUID) for a GPU's."""
        return self._wires.get((path, *(labels or ("", ""))), [])

    @cached_property
    def _wires(self) -> dict[tuple[str, ...], list[Wire]]:
        found: dict[tuple[str, ...], list[Wire]] = {}
        for key, path in self.bandwidth.paths.items():
            limit = self.bandwidth.limits.get(key)
            if limit is None or path.ratio is None or path.until < self.window.now:
                continue
            if key.gpu and key.device != f"gpu{key.gpu}":
                continue  # one link of several
            wire = Wire(key.device, key.direction, path.ratio, limit.bytes_per_second)
            found.setdefault((key.path, key.gpu, key.uuid), []).append(wire)
        return found

    @cached_property
    def jobs(self) -> dict[Labels, frozenset[Labels]]:
        """Each GPU to the GPUs that work with it on one job, itself included."""
        members: dict[str, set[Labels]] = {}
        for labels, _ in self.window.all(workload.JOB):
            members.setdefault(labels[-1], set()).add(labels[:2])
        found: dict[Labels, frozenset[Labels]] = {}
        for gpus in members.values():
            for one in gpus:
                found[one] = found.get(one, frozenset()) | gpus
        return found

    @cached_property
    def disks(self) -> list["Disk"]:
        """Every disk and array, the busiest first."""
        return sorted(self._disks(), key=lambda d: (d.busy or 0.0, d.reads), reverse=True)

    def _disks(self) -> Iterator["Disk"]:
        at_limit = {w.device: w for w in self.wires("disk") if w.direction == "read"}
        for (device,), _ in self.window.all(disk.READ_BYTES):
            busy = self.window.rate(disk.BUSY, device)
            reads = self.window.rate(disk.READ_BYTES, device)
            yield Disk(device, busy, reads or 0.0, at_limit.get(device))

    def active_disk(self, *, written: bool) -> "Disk | None":
        """The busiest local disk that works; one that is only written to counts where `written`."""
        least = self.thresholds.disk_active
        working = (d for d in self.disks if (d.busy or 0.0) >= least and (written or d.reads > 0))
        return next(working, None)

    @cached_property
    def network_mounts(self) -> tuple[str, ...]:
        """Types of the network file systems that are mounted."""
        return tuple(sorted(kind for (kind,), _ in self.window.all(filesystem.NETWORK_MOUNTS)))

    @cached_property
    def cpu_busy(self) -> float | None:
        """Share of all cores of the host that work."""
        return self.window.mean(cpu.BUSY)

    def pressure(self, resource: str) -> float | None:
        """Share of the time in which some task waited for the resource."""
        return self.window.rate(pressure.PRESSURE, resource, "some")


class Disk(NamedTuple):
    """One disk: share of time busy (None where not counted), bytes read a second, its limit."""

    device: str
    busy: float | None
    reads: float
    wire: Wire | None
