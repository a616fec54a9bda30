"""Traffic on every data path of the GPUs and host devices, compared with the path's limit."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import log, log2
from statistics import fmean
from typing import NamedTuple

from agent.jobs.job import percent
from agent.limits.paths import TRAFFIC, PathAccounts, key_of
from agent.limits.resolution import PathKey
from agent.model import Labels, Metric
from agent.ranges import device_ranges, natural
from agent.series import Derived, SampleStore
from agent.sources import disk, infiniband, network
from agent.specs.sheets import Limit
from agent.status.findings import Ailing
from agent.status.model import Level, PathKind, PathRow, PathStatus
from agent.status.words import PATHS, figure, rate

INWARD = ("receive", "read", "total")
"""Directions in the left column of the table: transfers to the GPU or host, and totals."""

DIRECTIONS = ("transmit", "receive", "read", "write", "total")
ORIGINS = {"spec": "spec sheet", "hardware": "hardware now"}

COUNTERS = tuple(traffic for traffic in TRAFFIC if "gpu" not in traffic.metric.labels)
"""Byte counters of host devices, used for paths without a limit."""

PORTS = {
    "network": (network.LINK_UP, network.SPEED),
    "infiniband": (infiniband.PORT_UP, infiniband.RATE),
}
MOVES = 5e6
"""A path without a limit counts as used from this many bytes per second."""

QUIET = 0.01
DIGITS = 4
"""Number of decimal places to which ratios are rounded (0.01 %)."""

DEAD, DOWN, UNREAD = "dead", "down", "traffic not read"
NO_LINK = "no link, not in use"
AILING = "at rest, with a fault"
AT_REST = "at rest (below 1 % of the limit, or 5 MB/s where none is known)"


class Way(NamedTuple):
    """A direction of a data path. If `limit` is unknown, `metric` is its traffic counter."""

    key: PathKey
    limit: Limit | None
    threshold: float
    metric: Metric | None = None
    labels: Labels = ()


def ways_of(bandwidth: PathAccounts, samples: SampleStore, derived: Derived) -> list[Way]:
    """Return the paths of this machine in the order in which they are shown. The list is updated
    only if the limits, the configuration, or the devices have changed."""
    devices = [shape for traffic in COUNTERS for shape, _ in samples.latest(traffic.metric)]
    made_of = bandwidth.limits, bandwidth.configuration.current, devices
    return derived.of(ways_of, made_of, lambda: _sorted_ways(bandwidth, samples))


def _sorted_ways(bandwidth: PathAccounts, samples: SampleStore) -> list[Way]:
    limits, threshold = bandwidth.limits, bandwidth.threshold
    found = {k: Way(k, limit, threshold(k.path)) for k, limit in limits.items() if not k.is_link}
    for traffic in COUNTERS:
        for labels in samples.all(metric := traffic.metric):
            key = key_of(traffic, labels)
            if key not in found and not key.is_link:
                found[key] = Way(key, None, threshold(key.path), metric, labels)
    return sorted(found.values(), key=_place)


def _place(way: Way) -> tuple[object, ...]:
    """Return a key that sorts paths by kind, device (in natural order), UUID, and direction."""
    key, order = way.key, [*PATHS]
    place = order.index(key.path) if key.path in order else len(order)
    return place, natural(key.device), key.uuid, key.direction


def path_statuses(
    ways: Sequence[Way], bandwidth: PathAccounts, samples: SampleStore, *, silent: bool
) -> tuple[PathStatus, ...]:
    """Return the current status of every path. While the driver does not respond (`silent`), GPU
    traffic is omitted, because some old values have not expired yet."""
    limited = any(way.limit for way in ways if way.key.path == "disk")  # arrays cover their disks
    found, unread = [], bandwidth.unread
    for way in ways:
        key, limit = way.key, way.limit
        ratio, moved, full = (
            _unlimited(way, samples, limited=limited)
            if way.metric is not None
            else (None, None, False)
            if silent and key.gpu
            else _limited(way, bandwidth, samples.now)
        )
        up = works(key, samples)
        found.append(
            PathStatus(
                path=key.path,
                device=key.device,
                gpu=int(key.gpu) if key.gpu else None,
                direction=key.direction,
                ratio=ratio,
                bytes_per_second=moved,
                limit_bytes_per_second=limit.bytes_per_second if limit else None,
                threshold_ratio=way.threshold,
                origin=limit.origin if limit else None,
                source=limit.source if limit else None,
                up=up,
                level=Level.WARNING if full else None,
                text=_text(key.path, moved, up),
                why=str(unread[key]) if unread and key in unread else None,
            )
        )
    return tuple(found)


def _text(path: str, moved: float | None, up: bool | None) -> str:
    off = "no link" if path in PORTS else DEAD
    return off if up is False else "not known" if moved is None else speed(moved, path)


def speed(moved: float, path: str) -> str:
    """Return a speed as text, such as `3.2 GB/s` or, for network ports, `372 Gb/s`."""
    value, unit = (8 * moved, "b/s") if path in PORTS else (moved, "B/s")
    if value == 0:
        return "0"
    if value < 1e8:
        return f"< 1 M{unit}" if value < 1e6 else f"{value / 1e6:.0f} M{unit}"
    return f"{value / 1e12:.2f} T{unit}" if value >= 1e12 else f"{figure(value / 1e9)} G{unit}"


def works(key: PathKey, samples: SampleStore) -> bool | None:
    """Return whether a port has a link or a disk's controller is not dead. Return None if this is
    unknown, or if the path is neither a port nor a disk."""
    if key.path not in PORTS:
        dead = samples.value(disk.FAULT, key.device, "controller") if key.path == "disk" else None
        return None if dead is None else not dead
    up = samples.value(PORTS[key.path][0], *port_labels(key))
    return None if up is None else bool(up)


def port_labels(key: PathKey) -> tuple[str, ...]:
    """Return the values of the labels that identify a port in its metrics."""
    return key.device.rpartition(":")[::2] if key.path == "infiniband" else (key.device,)


Moved = tuple[float | None, float | None, bool]
"""Utilization (a ratio), bytes per second, and whether the path has reached its threshold."""


def _unlimited(way: Way, samples: SampleStore, *, limited: bool) -> Moved:
    moved = samples.rate(way.metric, *way.labels, seconds=0.0) if way.metric else None
    if moved is None:
        return None, None, False
    judged = way.key.path == "disk" and not limited and moved >= MOVES
    busy = samples.rate(disk.BUSY, way.key.device, seconds=0.0) if judged else None
    # A disk without a known limit is full if it has requests almost all the time.
    return None, round(moved), busy is not None and busy >= way.threshold


def _limited(way: Way, bandwidth: PathAccounts, now: float) -> Moved:
    path = bandwidth.paths.get(way.key)
    if path is None or path.ratio is None or path.until < now or way.limit is None:
        return None, None, False
    moved = round(path.ratio * way.limit.bytes_per_second)
    return round(path.ratio, DIGITS), moved, path.ratio >= way.threshold


Device = tuple[PathStatus, ...]
"""The status of each direction of a device, inward first."""


def path_rows(
    paths: Sequence[PathStatus], samples: SampleStore, ailing: Ailing
) -> tuple[PathRow, ...]:
    """Return rows of similar devices: first those with traffic, busiest first, then the others."""
    arrays = {device: array for device, *_, array in samples.all(disk.DISK_INFO)}
    devices = [tuple(ways) for _, ways in groupby(paths, key=lambda p: (p.path, p.device))]
    busy: list[Device] = []
    still: defaultdict[str, list[Device]] = defaultdict(list)
    for ways in devices:
        if any(map(_moves, ways)):
            busy.append(ways)
            continue
        still[_remark(ways, ailing)].append(ways)
    busy.sort(key=_fullest)
    alike = groupby(busy, key=lambda ways: _likeness(ways, ailing))
    rows = [_row([*same], arrays, ailing) for _, same in alike]
    most_serious_first = DEAD, DOWN, NO_LINK, AILING, UNREAD, AT_REST
    for text in filter(still.get, most_serious_first):
        for (path, why), same in groupby(still[text], key=lambda w: (w[0].path, w[0].why)):
            names = tuple(ways[0].device for ways in same)
            name, told = device_ranges(names, " "), f"{text}, {why}" if why else text
            rows.append(PathRow(path=path, name=name, devices=names, moves=False, text=told))
    return tuple(rows)


def _fault(way: PathStatus, ailing: Ailing) -> Level | None:
    return ailing.get(("" if way.gpu is None else way.path, way.device))


def _remark(ways: Device, ailing: Ailing) -> str:
    if any(way.up is False for way in ways):
        return DEAD if ways[0].path == "disk" else DOWN if _fault(ways[0], ailing) else NO_LINK
    if _fault(ways[0], ailing):
        return AILING
    return UNREAD if any(way.bytes_per_second is None for way in ways) else AT_REST


def _moves(way: PathStatus) -> bool:
    if way.ratio is not None:
        return way.ratio >= QUIET
    return (way.bytes_per_second or 0.0) >= MOVES


def _fullest(ways: Device) -> tuple[object, ...]:
    """Return a key that sorts devices: those at their limit first, then by utilization of the
    busier direction (in tenths of the threshold), by traffic (in powers of 4), and by name."""
    nearest = max([(way.ratio or 0.0) / (way.threshold_ratio or 1.0) for way in ways])
    moved = max([way.bytes_per_second or 0.0 for way in ways])
    power = round(log(moved, 4)) if moved else 0
    full = any(way.level for way in ways)
    return not full, -round(nearest, 1), -power, ways[0].path, natural(ways[0].device)


def _likeness(ways: Device, ailing: Ailing) -> list[object]:
    """Return a key that is equal for devices that share a row. It contains the utilization in steps
    of 5 %, or the traffic in powers of 2."""
    steps = (
        round(20 * way.ratio)
        if way.ratio is not None
        else round(log2(max(way.bytes_per_second or 0.0, MOVES)))
        for way in ways
    )
    alike = [(way.direction, way.limit_bytes_per_second, way.level) for way in ways]
    return [ways[0].path, bool(_fault(ways[0], ailing)), *steps, *alike]


def _row(alike: Sequence[Device], arrays: Mapping[str, str], ailing: Ailing) -> PathRow:
    first = alike[0]
    full = [way for way in first if way.level]
    array = arrays.get(first[0].device)
    limited = any(way.limit_bytes_per_second for way in full)
    text = ["full" if limited else "busy" if full else "", f"of {array}" if array else ""]
    text += ["with a fault"] * bool(_fault(first[0], ailing))
    text += ["no limit known"] * (not array and first[0].limit_bytes_per_second is None)
    inward, outward = (
        [way for ways in alike for way in ways if (way.direction in INWARD) is side]
        for side in (True, False)
    )
    return PathRow(
        path=first[0].path,
        name=device_ranges(tuple(ways[0].device for ways in alike), " "),
        devices=tuple(ways[0].device for ways in alike),
        moves=True,
        level=Level.WARNING if full else None,
        inward=_mean_rate(inward),
        inward_ratio=_mean(way.ratio for way in inward),
        outward=_mean_rate(outward),
        outward_ratio=_mean(way.ratio for way in outward),
        text=", ".join(filter(None, text)),
    )


def _mean_rate(ways: Sequence[PathStatus]) -> str | None:
    moved = _mean(way.bytes_per_second for way in ways)
    return None if moved is None else rate(moved, ways[0].limit_bytes_per_second, ways[0].path)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), DIGITS) if known else None


def path_kinds(
    paths: Sequence[PathStatus], rates: Mapping[str, str], ailing: Ailing
) -> tuple[PathKind, ...]:
    """Return one summary per kind of path."""
    found = []
    for path, group in groupby(paths, key=lambda one: one.path):
        ways = [*group]
        ratios = [way.ratio for way in ways if way.ratio is not None]
        moved = [way.bytes_per_second for way in ways if way.bytes_per_second is not None]
        full = any(way.level for way in ways)
        unread = f"not known: {ways[0].why}" if ways[0].why else "not known"
        most = percent(max(ratios)) if ratios else speed(max(moved), path) if moved else ""
        busy = ", nearly always busy" if full and not ratios else ""
        at_work = max(ratios, default=0.0) >= 0.1 or full
        devices = tuple(dict.fromkeys(way.device for way in ways))
        directions = {way.direction for way in ways}
        faults = {way.device: level for way in ways if (level := _fault(way, ailing))}
        found.append(
            PathKind(
                path=path,
                title=PATHS.get(path, (path,))[0],
                directions=tuple(d for d in DIRECTIONS if d in directions),
                devices=devices,
                threshold_ratio=ways[0].threshold_ratio if ratios else None,
                highest=f"highest {most}{busy}" if most else unread,
                rates=rates.get(path),
                limits=_limits(path, ways),
                moves=len(devices) <= 16 and (at_work or bool(faults)),  # keeps the page short
                faults=faults,
                level=Level.WARNING if full else None,
            )
        )
    return tuple(found)


def _limits(path: str, ways: Sequence[PathStatus]) -> str:
    """Return a text about the limits of a kind of path, most frequent first, for example `limit 150
    GB/s (spec sheet), 125 GB/s on gpu0 (hardware now)`."""
    each: dict[str, list[PathStatus]] = {}
    for way in ways:
        each.setdefault(way.direction, []).append(way)
    by_way = {direction: _limits_of(path, its) for direction, its in each.items()}
    alike = len(set(by_way.values())) == 1
    words = [*by_way.values()][:1] if alike else [f"{d}: {text}" for d, text in by_way.items()]
    if path == "nvlink":
        words.append("% of raw link; payload in GB/s")
    busy = [way for way in ways if way.level and way.limit_bytes_per_second is None]
    words += [f"busy: requests {percent(way.threshold_ratio or 1)} of the time" for way in busy[:1]]
    return "; ".join(words)


def _limits_of(path: str, ways: Sequence[PathStatus]) -> str:
    groups: defaultdict[tuple[float | None, str | None], list[str]] = defaultdict(list)
    for way in ways:
        groups[way.limit_bytes_per_second, way.origin].append(way.device)
    rest = groups.pop((None, None), [])
    known = sorted(groups.items(), key=lambda item: -len(item[1]))
    if not known:
        return "no limit known"
    words = []
    for place, ((limit, origin), devices) in enumerate(known):
        most = place == 0 and len(devices) > len(ways) / 2
        where = "" if most else f" on {device_ranges(tuple(devices))}"
        words.append(f"{speed(limit or 0.0, path)}{where} ({ORIGINS.get(origin or '', origin)})")
    if rest:
        others = device_ranges(tuple(rest)) if len(rest) <= 3 else "the rest"
        words.append(f"none known for {others}")
    return f"limit {', '.join(words)}"
