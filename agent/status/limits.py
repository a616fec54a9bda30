"""Every limit of the data paths, in as few rows as possible."""

from collections import defaultdict
from collections.abc import Iterable

from agent.ranges import device_ranges
from agent.status.model import PathStatus
from agent.status.paths import speed


def limit_rows(paths: Iterable[PathStatus]) -> list[tuple[str, ...]]:
    """Return path, devices, direction, limit, origin and source; devices and directions with the
    same limit share a row."""
    ways: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for one in paths:
        if one.limit_bytes_per_second is not None:
            limit = speed(one.limit_bytes_per_second, one.path)
            key = one.path, limit, one.origin or "", one.source or "", one.device
            ways[key].add(one.direction)
    devices: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for (path, limit, origin, source, device), directions in ways.items():
        way = "both" if len(directions) > 1 else min(directions)
        devices[path, way, limit, origin, source].add(device)
    return [
        (path, device_ranges(tuple(names)), way, limit, origin, source)
        for (path, way, limit, origin, source), names in sorted(devices.items())
    ]
