"""Every data path against its limit: GPU totals and the devices of the host."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.limits.paths import TRAFFIC, PathAccount, PathAccounts, key_of
from agent.limits.resolution import Limit, Limits, PathKey
from agent.model import Labels, Metric
from agent.ranges import natural
from agent.series import SampleStore
from agent.sources import disk, infiniband, network
from exporters.messages import Document

INWARD = ("receive", "read", "total")
"""Directions that stand on the left; those of disks are seen from the host."""

ORDER = ("nvlink", "pcie", "hbm", "disk", "network", "infiniband")
COUNTERS = tuple(traffic for traffic in TRAFFIC if "gpu" not in traffic.metric.labels)
"""Counters of bytes of the host's devices: what moves on a path without a limit. The paths of a
GPU have one, or nothing is known of them."""

PORTS = {
    "network": (network.LINK_UP, network.SPEED),
    "infiniband": (infiniband.LINK_UP, infiniband.RATE),
}

MOVES = 5e6
"""Bytes a second from which a direction of a busy disk is said to be the one that is full."""

DIGITS = 4
"""Of a ratio: a hundredth of a per cent."""


PathValues = tuple[float | None, int | None, bool]
"""Ratio, bytes per second, whether it is saturated."""


class PathDirection(NamedTuple):
    """One path in one direction: its limit, or the counter that reports its traffic without one."""

    key: PathKey
    limit: Limit | None
    threshold: float
    metric: Metric | None = None
    labels: Labels = ()


@dataclass(slots=True)
class PathDirections:
    """The paths of this machine in the order in which the page shows them."""

    bandwidth: PathAccounts
    path_directions: list[PathDirection] = field(default_factory=list)
    _limits: Limits | None = None

    def survey(self, samples: SampleStore, *, refreshed: bool) -> bool:
        """See which paths there are, if that may have changed; whether it has."""
        if not refreshed and self.bandwidth.limits is self._limits:
            return False
        self._limits = self.bandwidth.limits
        before, self.path_directions = (
            self.path_directions,
            sorted(self._found(samples), key=_place),
        )
        return self.path_directions != before

    def _found(self, samples: SampleStore) -> list[PathDirection]:
        limits, threshold = self.bandwidth.limits, self.bandwidth.threshold
        found = {
            key: PathDirection(key, limit, threshold(key.path))
            for key, limit in limits.items()
            if not key.is_link
        }
        for traffic in COUNTERS:
            for labels in samples.all(metric := traffic.metric):
                key = key_of(traffic, labels)
                if key not in found and not key.is_link:
                    found[key] = PathDirection(key, None, threshold(key.path), metric, labels)
        return list(found.values())

    def static(self, samples: SampleStore) -> list[Document]:
        arrays = {one["device"]: one["array"] or None for one in samples.labelled(disk.INFO)}
        return [
            {
                "path": key.path,
                "device": key.device,
                "gpu": key.gpu or None,
                "direction": key.direction,
                "limit": limit.bytes_per_second if limit else None,
                "origin": limit.origin if limit else None,
                "source": limit.source if limit else None,
                "threshold": threshold,
                "array": arrays.get(key.device),
                **(self._port(key, samples) if key.path in PORTS else {"up": None}),
            }
            for key, limit, threshold, *_ in self.path_directions
        ]

    def _port(self, key: PathKey, samples: SampleStore) -> Document:
        """Return whether a port has a link, its speed, and that of the spec sheet (bytes a second);
        None where that is not known."""
        labels = key.device.rpartition(":")[::2] if key.path == "infiniband" else (key.device,)
        up, speed = (samples.value(metric, *labels) for metric in PORTS[key.path])
        known = None if up is None else bool(up)
        return {"up": known, "negotiated": speed, "sheet": self.bandwidth.specs.get(key)}

    def dynamic(self, samples: SampleStore, *, silent: bool = False) -> list[PathValues]:
        """Ratio, bytes per second and whether it is saturated, of every path at this tick; none of
        a GPU's where the driver is silent."""
        paths, now = self.bandwidth.paths, samples.now
        if silent:  # some figures have longer to live than the driver's answers
            paths = {key: path for key, path in paths.items() if not key.gpu}
        directions = self.path_directions
        limited = any(
            d.limit for d in directions if d.key.path == "disk"
        )  # an array reports for its disks
        return [
            _unlimited(d, samples, limited=limited)
            if d.metric is not None
            else _limited(d, paths.get(d.key), now)
            for d in directions
        ]


def _unlimited(path_direction: PathDirection, samples: SampleStore, *, limited: bool) -> PathValues:
    metric, path = path_direction.metric, path_direction.key.path
    rate = samples.rate(metric, *path_direction.labels, seconds=0.0) if metric else None
    if rate is None:
        return None, None, False
    judged = path == "disk" and not limited and rate >= MOVES
    busy = samples.rate(disk.BUSY, path_direction.key.device, seconds=0.0) if judged else None
    # A disk without a known limit that almost always has a request.
    return None, round(rate), busy is not None and busy >= path_direction.threshold


def _limited(path_direction: PathDirection, path: PathAccount | None, now: float) -> PathValues:
    _, limit, threshold, *_ = path_direction
    if path is None or path.ratio is None or path.until < now or limit is None:
        return None, None, False
    moved = round(path.ratio * limit.bytes_per_second)
    return round(path.ratio, DIGITS), moved, path.ratio >= threshold


def _place(path_direction: PathDirection) -> tuple[Any, ...]:
    """By kind of path, then gpu2 before gpu10."""
    key = path_direction.key
    place = ORDER.index(key.path) if key.path in ORDER else len(ORDER)
    return place, natural(key.device), key.uuid, key.direction
