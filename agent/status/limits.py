"""Texts about the limits of data paths, as rows of a table, and about negotiated link rates."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from agent.limits.resolution import PathKey
from agent.model import GpuIdentity
from agent.ranges import device_ranges
from agent.series import SampleStore
from agent.sources import pcie
from agent.status.findings import Ailing
from agent.status.model import PathStatus
from agent.status.paths import INWARD, PORTS, Way, port_labels, speed, works
from agent.status.words import rate


def limit_rows(paths: Iterable[PathStatus]) -> list[tuple[str, ...]]:
    """Return table rows with the columns path, devices, direction, limit, and the origin and source
    of the limit. Devices and directions with the same limit share a row."""
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


def link_rates(
    ways: Sequence[Way],
    gpus: Iterable[GpuIdentity],
    lost: Collection[str],
    specs: Mapping[PathKey, float],
    samples: SampleStore,
    *,
    ailing: Ailing,
) -> dict[str, str]:
    """Return texts about negotiated rates of ports and PCIe links, for example `8 x 400 Gb/s, each
    at full rate`, by kind of path. The full rate of a port is in the spec sheet. The full rate of a
    PCIe link is the limit of the GPU and slot. If it is unknown, the text contains `negotiated`."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    most: defaultdict[str, dict[str, str]] = defaultdict(dict)
    keys = (way.key for way in ways)
    ports = [key for key in keys if key.path in PORTS and key.direction in INWARD]
    off = Counter((key.path, _off(key, samples, ailing)) for key in ports)
    for key in ports:
        now, sheet = samples.value(PORTS[key.path][1], *port_labels(key)), specs.get(key)
        words = rate(now, None, key.path) if now else "rate not read"
        found[key.path][words] += works(key, samples) is not False
        if now and sheet:
            full = now >= 0.99 * sheet
            most[key.path][words] = words if full else rate(sheet, None, key.path)
    # The PCIe generation drops while a GPU is idle, so only the width can indicate a fault.
    for gpu in gpus:
        off["nvlink", "with a fault"] += ("nvlink", f"gpu{gpu.index}") in ailing
        if gpu.uuid in lost:
            off["pcie", "lost"] += 1
            continue
        lanes, newest, widest = (
            samples.value(metric, *gpu.key.labels)
            for metric in (pcie.WIDTH, pcie.GENERATION_LIMIT, pcie.WIDTH_LIMIT)
        )
        ahead = f"generation {newest:.0f} " if newest else ""
        words = f"{ahead}x{lanes:.0f}" if lanes else "width not read"
        found["pcie"][words] += 1
        if lanes and widest:
            most["pcie"][words] = words if lanes >= widest else f"x{widest:.0f}"
    texts = {path: [*_rates(path, found[path], most[path])] for path, _ in (*+off, *found.items())}
    for (path, why), number in (+off).items():
        texts[path] += [f"{number} {why}"] * bool(why)
    return {path: ", ".join(words) for path, words in texts.items()}


def _off(key: PathKey, samples: SampleStore, ailing: Ailing) -> str:
    """Return a remark (such as `down`) on a port that is down or has a fault, or nothing."""
    up = works(key, samples) is not False
    if ("", key.device) in ailing:
        return "with a fault" if up else "down"
    return "" if up else "not in use"


def _rates(path: str, rates: Counter[str], most: Mapping[str, str]) -> Iterator[str]:
    there = +rates
    for words, number in there.items():
        of = most.get(words, "")
        less = of and of != words
        yield f"{number} x {words} (of {of})" if less else f"{number} x {words}"
    full = "full rate" if path in PORTS else "full width"
    if there and all(most.get(words) == words for words in there):
        yield f"each at {full}" if there.total() > 1 else f"at {full}"
    elif there.keys() - most.keys() - {"rate not read", "width not read"}:
        yield "negotiated"
