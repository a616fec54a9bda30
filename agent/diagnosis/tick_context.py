"""The context of a tick, which all GPUs share: samples, data paths, the host, and the jobs."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from agent.diagnosis.active_share import WorkLevel
from agent.diagnosis.power_levels import PowerLevels
from agent.diagnosis.thresholds import Thresholds
from agent.jobs.grouping import JobGroup
from agent.limits.paths import PathAccounts
from agent.model import GpuKey
from agent.series import KEPT, SampleStore
from agent.sources import disk, host, pcie, process, workload


class PathUse(NamedTuple):
    """Usage of a data path in a direction: the ratio of traffic to limit, and the limit (B/s)."""

    device: str
    direction: str
    ratio: float
    limit: float


class RankActivity(NamedTuple):
    """Activity of a GPU's kernels and processes, for detecting hangs."""

    kernels_spin: bool = False
    asleep: bool = False  # its processes do nothing, and transfer no data
    stopped: bool = False  # a signal or a debugger has stopped one of its processes
    thread_spins: bool = False


NOTHING_SEEN = RankActivity()


@dataclass(frozen=True)
class GpuHistory:
    """The history of a GPU. It covers more time than the stored samples."""

    idle_for: float = 0.0  # seconds for which neither the GPU nor its processes have done anything
    waits_for: float = 0.0  # seconds of only spinning, or of idling with its processes at rest
    rank: RankActivity = NOTHING_SEEN
    sent_abroad: bool = False  # since then, the host's network has carried data in both directions
    nvlink_seen: bool = True  # NVLink has carried data since the processes appeared
    power: PowerLevels | None = None  # levels of the latest 20 ms samples
    level: WorkLevel | None = None  # level of the latest 100 ms windows
    bursts: bool = False  # the GPU's work comes in irregular bursts, as requests do
    deliveries: bool = False  # bytes come over the network in irregular bursts
    clock: float | None = None  # unthrottled SM clock (Hz) at similar power
    moments: tuple[tuple[float, float], ...] = ()  # bytes per second sent and received over PCIe
    came: float | None = None  # time at which the current processes appeared (monotonic seconds)


@dataclass(frozen=True, slots=True)
class LastTick:
    """Results of the last tick: the UUIDs of GPUs whose job has or had a step time, and of GPUs
    that may have used NVLink since their processes appeared."""

    stepping: frozenset[str] = frozenset()
    exchanging: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TickContext:
    """The context of a tick. Expensive values are computed when a rule first needs them."""

    samples: SampleStore
    bandwidth: PathAccounts
    thresholds: Thresholds
    groups: Sequence[JobGroup] = ()
    last: LastTick = field(default_factory=LastTick)

    def path_usage(self, path: str, gpu: GpuKey | None = None) -> list[PathUse]:
        """Return the usage of the GPU's (or host's) paths of a kind, if known, busiest first."""
        return self._wires.get((path, gpu), [])

    @cached_property
    def _wires(self) -> dict[tuple[str, GpuKey | None], list[PathUse]]:
        found: dict[tuple[str, GpuKey | None], list[PathUse]] = {}
        for key, path in self.bandwidth.paths.items():
            if path.ratio is None or path.until < self.samples.now or key.is_link:
                continue
            limit = self.bandwidth.limits.get(key)
            if limit is None:
                continue
            wire = PathUse(key.device, key.direction, path.ratio, limit.bytes_per_second)
            found.setdefault((key.path, key.of), []).append(wire)
        for (_, gpu), wires in found.items():
            if gpu is not None:
                wires.sort(key=lambda wire: wire.ratio, reverse=True)
        return found

    @cached_property
    def jobs(self) -> dict[GpuKey, frozenset[GpuKey]]:
        """Maps each GPU to the GPUs that have a job in common with it, including itself."""
        found: dict[GpuKey, frozenset[GpuKey]] = {}
        for gpus in (frozenset(group.gpus) for group in self.groups):
            for one in gpus:
                found[one] = found.get(one, frozenset()) | gpus
        return found

    @cached_property
    def pids(self) -> dict[tuple[str, ...], frozenset[str]]:
        """The PIDs of the compute processes on each GPU, by GPU labels."""
        found: dict[tuple[str, ...], set[str]] = {}
        for *gpu, pid in self.samples.all(process.PROCESS):
            found.setdefault(tuple(gpu), set()).add(pid)
        return {gpu: frozenset(pids) for gpu, pids in found.items()}

    def has_ranks(self, gpus: Set[GpuKey]) -> bool:
        """Return whether any process on the given GPUs has a rank above 0 in its job."""
        return any(
            rank and int(rank) > 0 and GpuKey(int(gpu), uuid) in gpus
            for gpu, uuid, *_, rank in self.samples.all(workload.JOB_PROCESS)
        )

    @cached_property
    def stopped(self) -> dict[tuple[str, ...], frozenset[int]]:
        """The PIDs of the stopped processes of each GPU, by GPU labels."""
        return workload.stopped(self.samples)

    @cached_property
    def active_disk(self) -> "DiskActivity | None":
        """The busiest local disk or array, or None if it is not busy enough to count as active."""
        rate = self.samples.rate
        found = [
            DiskActivity(name, rate(disk.BUSY, name) or 0.0, rate(disk.READ_BYTES, name) or 0.0)
            for (name,) in self.samples.all(disk.READ_BYTES)
        ]
        busiest = max(found, key=lambda one: (one.busy, one.reads), default=None)
        return busiest if busiest and busiest.busy >= self.thresholds.disk_active else None

    @cached_property
    def blocked(self) -> float:
        """Seconds per second that threads of all GPU processes spend in uninterruptible sleep."""
        known = (labels for labels in self.samples.all(workload.THREADS) if labels[-1] == "blocked")
        rates = (self.samples.rate(workload.THREADS, *one, seconds=KEPT) for one in known)
        return sum(rate or 0.0 for rate in rates)

    @cached_property
    def sends_abroad(self) -> bool:
        """Whether a port or NIC carries much traffic in both directions, as in collectives between
        hosts. The traffic of logs, metrics, and data requests is below the threshold."""
        ways: dict[tuple[str, str], list[float]] = {}
        for path in ("infiniband", "network"):
            for wire in self.path_usage(path):
                ways.setdefault((path, wire.device), []).append(wire.ratio)
        return any(len(both) > 1 and min(both) >= self.thresholds.quiet for both in ways.values())

    @cached_property
    def network_mounts(self) -> tuple[str, ...]:
        """Types of the network file systems that are mounted on the host."""
        return tuple(sorted(kind for (kind,) in self.samples.all(host.NETWORK_MOUNTS)))

    def shared_uplink(self, gpu: GpuKey, direction: str) -> "PathUse | None":
        """Return the usage of the busiest PCIe switch uplink that this GPU shares with other GPUs,
        in the given direction. Return None if it shares none."""
        below: dict[tuple[str, float], list[GpuKey]] = {}
        for (index, uuid, bridge), limit in self.samples.all(pcie.UPLINK).items():
            below.setdefault((bridge, limit), []).append(GpuKey(int(index), uuid))
        shared = []
        for (bridge, limit), gpus in below.items():
            if gpu in gpus and len(gpus) > 1:
                wires = [w for one in gpus for w in self.path_usage("pcie", one)]
                moved = sum(w.ratio * w.limit for w in wires if w.direction == direction)
                shared.append(PathUse(bridge, direction, moved / limit, limit))
        return max(shared, key=lambda wire: wire.ratio, default=None)


class DiskActivity(NamedTuple):
    """A disk, the share of time for which it is busy, and the bytes per second read from it."""

    device: str
    busy: float
    reads: float
