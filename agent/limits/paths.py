"""Computes the utilization of data paths from the increase of their byte counters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from agent.config.settings import Configuration, Settings
from agent.limits.resolution import LimitInputs, LimitsConfig, PathKey, find_paths, resolve
from agent.metrics import declared_beside
from agent.model import EXPIRY_INTERVALS, Absent, Labels, Metric, Reading, ReadKey, Reason, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import Point, SampleStore
from agent.sources import activity, disk, infiniband, network, nvlink, pcie
from agent.sources.table import SourcesConfig
from agent.specs.sheets import Limit, MachineSpecs, SaturationConfig

PATH_LABELS = ("path", "device", "gpu", "uuid", "direction")

_METRICS = declared_beside(__file__)
LIMIT = _METRICS["dgx_bandwidth_limit_bytes_per_second"]
LIMIT_INFO = _METRICS["dgx_bandwidth_limit_info"]
SPEC = _METRICS["dgx_bandwidth_spec_bytes_per_second"]
RATIO = _METRICS["dgx_bandwidth_ratio"]
SATURATED = _METRICS["dgx_bandwidth_saturated_seconds_total"]
OBSERVED = _METRICS["dgx_bandwidth_observed_seconds_total"]

REFRESH = 30
"""Number of ticks between updates of the limits. They change with active links and link speeds."""

KEPT_S = 3600.0  # s for which a missing path is kept, as a lost GPU may return


class TrafficCounter(NamedTuple):
    """A metric that counts the bytes of a path in one direction. For `hbm`, its value is the
    utilization. GPUs that only count payload bytes (P100) have `payload` instead of `metric`."""

    metric: Metric
    path: str
    direction: str
    payload: Metric | None = None


def _both(path: str, sent: Metric, received: Metric) -> tuple[TrafficCounter, TrafficCounter]:
    return TrafficCounter(sent, path, "transmit"), TrafficCounter(received, path, "receive")


TRAFFIC = (
    *(
        TrafficCounter(wire, "nvlink", way, payload)
        for of in (list(nvlink.TOTALS), list(nvlink.PER_LINK))
        for way, payload, wire in zip(("transmit", "receive"), of[:2], of[2:], strict=True)
    ),
    *_both("pcie", pcie.TRANSMITTED, pcie.RECEIVED),
    TrafficCounter(activity.MEMORY_BANDWIDTH, "hbm", "total"),
    TrafficCounter(disk.READ_BYTES, "disk", "read"),
    TrafficCounter(disk.WRITTEN_BYTES, "disk", "write"),
    *_both("network", network.TRANSMITTED, network.RECEIVED),
    *_both("infiniband", infiniband.TRANSMITTED, infiniband.RECEIVED),
)


@lru_cache(maxsize=4096)
def key_of(traffic: TrafficCounter, labels: Labels) -> PathKey:
    of_gpu = "gpu" in traffic.metric.labels
    gpu, uuid, *parts = labels if of_gpu else ("", "", *labels)
    device = ":".join((f"gpu{gpu}", *parts) if of_gpu else parts)
    return PathKey(traffic.path, device, gpu, uuid, traffic.direction)


@dataclass(slots=True)
class PathAccount:
    """A data path in one direction: its bytes, its utilization, and its saturated seconds."""

    at: float
    bytes: float
    until: float  # expiry of the last reading
    ratio: float | None = None
    saturated: float = 0.0
    observed: float = 0.0
    every: float = 0.0  # interval of the last reading (s)


@dataclass(slots=True)
class PathAccounts:
    """The accounts of all paths with a known limit. The limits are updated every 30 ticks."""

    configuration: Configuration
    limits: Mapping[PathKey, Limit] = field(default_factory=dict)
    paths: dict[PathKey, PathAccount] = field(default_factory=dict)
    specs: Mapping[PathKey, float] = field(default_factory=dict)
    unlimited: set[PathKey] = field(default_factory=set)  # paths with traffic but no limit
    unread: dict[PathKey, Absent] = field(default_factory=dict)  # reasons for absent traffic
    inventory: Callable[[], GpuInventory] = GpuInventory
    _resolved_by: Settings | None = None
    _settled: int = 0  # tick up to which each tick updates the limits
    _of_limits: ReadOutput = field(default_factory=lambda: ReadOutput(0.0))
    """Samples of the metrics that report the limits. They change only with the limits."""

    def threshold(self, path: str) -> float:
        return float(getattr(self.configuration.current[SaturationConfig], path))

    def observe(self, samples: SampleStore) -> None:
        for traffic in TRAFFIC:
            for labels, point in samples.fresh(traffic.metric):
                self._follow(traffic, labels, point)
            payload = traffic.payload
            for labels, point in samples.fresh(payload) if payload else ():
                if samples.value(traffic.metric, *labels) is None:
                    self._follow(traffic, labels, point)
        silent = (key for key in self.limits if key.path == "hbm" and key not in self.paths)
        absences = ((k, samples.absence(activity.MEMORY_BANDWIDTH, k.gpu, k.uuid)) for k in silent)
        self.unread = {key: Absent(why.reason, why.detail) for key, why in absences if why}

    def _follow(self, traffic: TrafficCounter, labels: Labels, point: Point) -> None:
        key = key_of(traffic, labels)
        limit = self.limits.get(key)
        if limit is None:
            if not key.is_link:  # limits apply to the sum of all links
                self.unlimited.add(key)
            return
        path = self.paths.get(key)
        if limit.bytes_per_second <= 0:  # all links are down, so there is no ratio
            if path is not None:
                path.ratio = None
            return
        is_ratio = traffic.path == "hbm"
        moved = point.value * limit.bytes_per_second if is_ratio else point.value
        every = (point.until - point.at) / EXPIRY_INTERVALS
        if path is None:
            self.paths[key] = PathAccount(point.at, moved, point.until, every=every)
            return
        seconds = point.at - path.at
        grown = moved * seconds if is_ratio else moved - path.bytes
        longest = EXPIRY_INTERVALS * max(path.every, every)  # shorter intervals during bursts
        path.at, path.bytes, path.until, path.every = point.at, moved, point.until, every
        if grown < 0 or not 0 < seconds <= longest:
            path.ratio = None  # after a reset, or a gap with unknown traffic
            return
        path.ratio = grown / seconds / limit.bytes_per_second
        path.observed += seconds
        if path.ratio >= self.threshold(key.path):
            path.saturated += seconds

    def _off(self, path: str) -> Absent | None:
        off = {"hbm": "gpu"}.get(path, path) in self.configuration.current[SourcesConfig].disable
        return Absent(Reason.NOT_CONFIGURED, "sources.disable names its source") if off else None

    def forget(self, now: float) -> None:
        """Drop the accounts of paths that have been missing for an hour, such as removed NICs."""
        paths = self.paths.items()
        self.paths = {k: p for k, p in paths if k in self.limits or p.until + KEPT_S >= now}

    def report(self, snapshot: Snapshot) -> Reading:
        known = self._of_limits
        out = ReadOutput(snapshot.at, (), [*known.samples], [*known.absences])
        no_limit = Absent(Reason.NOT_CONFIGURED, "no limit is known: [[limit]] sets one")
        for key in self.unlimited:
            out.absent(RATIO, self._off(key.path) or no_limit, *key)
        for key in self.limits:
            account = self.paths.get(key)
            if account is None:
                if key in self.unread:
                    out.absent(RATIO, self.unread[key], *key)
                continue
            out.add(SATURATED, account.saturated, *key)
            out.add(OBSERVED, account.observed, *key)
            if account.ratio is not None and out.at <= account.until:
                out.add(RATIO, account.ratio, *key)
        return out.reading(ReadKey("bandwidth", "paths"))

    def take(self, snapshot: Snapshot, samples: SampleStore) -> None:
        settings = self.configuration.current
        if settings is not self._resolved_by:  # also at the start: some reads respond later
            self._resolved_by, self._settled = settings, snapshot.tick + REFRESH
        if snapshot.tick <= self._settled or snapshot.tick % REFRESH == 0:
            configured = settings[LimitsConfig].by_path
            system = settings[MachineSpecs].system_of(self.inventory().gpus)
            machine = LimitInputs(samples, system, configured)
            found = find_paths(machine)
            self.limits = resolve(machine, found)
            self.specs = {f.key: f.spec.bytes_per_second for f in found if f.spec}
            out = self._of_limits = ReadOutput(0.0)
            for key, speed in self.specs.items():
                out.add(SPEC, speed, *key)
            for key, limit in self.limits.items():
                out.add(LIMIT, limit.bytes_per_second, *key)
                out.add(LIMIT_INFO, 1, *key, limit.origin, limit.source)
            here = {(key.path, key.device, key.direction) for key, *_ in found}
            missing = Absent(Reason.MISSING, "the configuration limits a device that is not here")
            for path, device, direction in sorted(configured.keys() - here):
                out.absent(LIMIT, self._off(path) or missing, path, device, "", "", direction)
            self.unlimited.clear()
            self.forget(snapshot.at)
        self.observe(samples)
