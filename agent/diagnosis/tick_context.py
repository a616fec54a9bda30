"""Context of a tick, common to all GPUs: samples, data paths, host, and GPUs that work together."""

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
    """A data path in one direction: traffic over limit, and the limit in bytes per second."""

    device: str
    direction: str
    ratio: float
    limit: float


class RankActivity(NamedTuple):
    """Activity of a GPU's kernels and processes, for the detection of waits."""

    kernels_spin: bool = False
    asleep: bool = False  # its processes do nothing, nor read or write
    stopped: bool = False  # a process of it, by a signal or a debugger
    thread_spins: bool = False


NOTHING_SEEN = RankActivity()


@dataclass(frozen=True)
class GpuHistory:
    """State of a GPU that outlasts the window."""

    idle_for: float = 0.0  # s for which neither the GPU nor its processes have done anything
    waits_for: float = 0.0  # s for which it only spins, or is idle with its processes at rest
    rank: RankActivity = NOTHING_SEEN
    sent_abroad: bool = False  # the host's network has carried something both ways meanwhile
    nvlink_seen: bool = True  # whether NVLink has carried anything since the processes came
    power: PowerLevels | None = None  # of its newest 20 ms samples
    level: WorkLevel | None = None  # of its newest windows of 100 ms
    bursts: bool = False  # its work came in bursts without a rhythm, as requests do
    clock: float | None = None  # SM clock (Hz) that it had at like power without being held down
    came: float | None = None  # when its processes came (monotonic seconds)


@dataclass(frozen=True, slots=True)
class LastTick:
    """Findings of the tick before: the UUIDs of GPUs whose job has had the rhythm of a training for
    a minute, and of those whose NVLink may have carried something since their processes came."""

    stepping: frozenset[str] = frozenset()
    exchanging: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TickContext:
    """Context of a tick. Costly values are gathered when a rule first asks for them."""

    samples: SampleStore
    bandwidth: PathAccounts
    thresholds: Thresholds
    groups: Sequence[JobGroup] = ()
    last: LastTick = field(default_factory=LastTick)

    def path_usage(self, path: str, gpu: GpuKey | None = None) -> list[PathUse]:
        """The paths of a kind with known traffic now: the host's, or a GPU's, the fullest first."""
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
        """Each GPU to the GPUs that work with it on the same job, itself included."""
        found: dict[GpuKey, frozenset[GpuKey]] = {}
        for gpus in (frozenset(group.gpus) for group in self.groups):
            for one in gpus:
                found[one] = found.get(one, frozenset()) | gpus
        return found

    @cached_property
    def pids(self) -> dict[tuple[str, ...], frozenset[str]]:
        """The compute processes of each GPU by its labels."""
        found: dict[tuple[str, ...], set[str]] = {}
        for *gpu, pid in self.samples.all(process.PROCESS):
            found.setdefault(tuple(gpu), set()).add(pid)
        return {gpu: frozenset(pids) for gpu, pids in found.items()}

    def has_ranks(self, gpus: Set[GpuKey]) -> bool:
        """Return whether a process on one of these GPUs has a rank beyond 0 in its job."""
        return any(
            rank and int(rank) > 0 and GpuKey(int(gpu), uuid) in gpus
            for gpu, uuid, *_, rank in self.samples.all(workload.JOB_PROCESS)
        )

    @cached_property
    def stopped(self) -> dict[tuple[str, ...], frozenset[int]]:
        """The stopped processes of each GPU by its labels."""
        return workload.stopped(self.samples)

    @cached_property
    def active_disk(self) -> "DiskActivity | None":
        """The busiest local disk or array that works."""
        rate = self.samples.rate
        found = [
            DiskActivity(
                device, rate(disk.BUSY, device) or 0.0, rate(disk.READ_BYTES, device) or 0.0
            )
            for (device,) in self.samples.all(disk.READ_BYTES)
        ]
        busiest = max(found, key=lambda one: (one.busy, one.reads), default=None)
        return busiest if busiest and busiest.busy >= self.thresholds.disk_active else None

    @cached_property
    def blocked(self) -> float:
        """Seconds a second that threads of all GPUs' processes were seen in uninterruptible
        sleep."""
        known = (labels for labels in self.samples.all(workload.THREADS) if labels[-1] == "blocked")
        rates = (self.samples.rate(workload.THREADS, *one, seconds=KEPT) for one in known)
        return sum(rate or 0.0 for rate in rates)

    @cached_property
    def sends_abroad(self) -> bool:
        """True if a port or NIC of the host carries traffic both ways, as collectives do: logs,
        metrics and requests for data are quiet."""
        ways: dict[tuple[str, str], list[float]] = {}
        for path in ("infiniband", "network"):
            for wire in self.path_usage(path):
                ways.setdefault((path, wire.device), []).append(wire.ratio)
        return any(len(both) > 1 and min(both) >= self.thresholds.quiet for both in ways.values())

    @cached_property
    def network_mounts(self) -> tuple[str, ...]:
        """Types of the network file systems that are mounted."""
        return tuple(sorted(kind for (kind,) in self.samples.all(host.NETWORK_MOUNTS)))

    def shared_uplink(self, gpu: GpuKey, direction: str) -> "PathUse | None":
        """The fullest uplink of a PCIe switch that this GPU shares with others, in one direction;
        None if it has its own."""
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
    """A disk: share of time busy, bytes read a second."""

    device: str
    busy: float
    reads: float
