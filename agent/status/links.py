"""The NVLink graph, of which an edge is one link between two GPUs, or all links of a GPU to
NVSwitches, and texts about the limits of data paths and about negotiated link rates."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from agent.faults.watch import ActiveFault
from agent.limits.paths import PathAccounts
from agent.limits.resolution import PathKey
from agent.limits.topology import gpus_by_address
from agent.model import GpuIdentity, Labels
from agent.ranges import device_ranges, pci_address
from agent.series import SampleStore
from agent.sources import nvlink, pcie
from agent.specs.sheets import SystemSpec
from agent.status.findings import Ailing
from agent.status.model import LinkLoad, LinkStatus, NvlinkGraph, PathStatus
from agent.status.paths import INWARD, PORTS, Way, port_labels, speed, works
from agent.status.words import rate

KINDS = {"nvswitch": "switch", "cube-mesh": "mesh", "fully-connected": "full"}
"""Maps the kinds of NVLink graphs in the spec sheets to the kinds in the status."""

TITLES = {"switch": "through NVSwitch", "mesh": "hybrid cube-mesh", "full": "fully connected"}

LITTLE = 0.01
MID = 0.4
"""Minimum utilization at which the load of an edge is `low` (LITTLE) and `mid` (MID)."""


@dataclass(slots=True)
class FarEnds:
    """Remote ends of all NVLinks: GPU indices, or None for NVSwitches. The remote end of a link is
    remembered after the link goes down, because the link then no longer reports it."""

    ends: dict[Labels, int | None] = field(default_factory=dict)

    def take(self, samples: SampleStore, spec: SystemSpec | None) -> None:
        found = [labels for labels, _ in samples.fresh(nvlink.LINK_INFO)]
        if not found:
            return
        by_address = gpus_by_address(samples)
        for index, uuid, link, remote, address in found:
            peer = by_address.get(pci_address(address))
            if remote == "switch":
                self.ends[index, uuid, link] = None
            elif remote == "gpu" and peer is not None:  # a VM may see addresses of its host
                self.ends[index, uuid, link] = peer
        if spec and spec.nvlink_graph and spec.nvlink_graph.pairs:
            self._join(samples)

    def _join(self, samples: SampleStore) -> None:
        """Add the remote ends of links that have been down since the agent started. If exactly two
        GPUs have such links, and the same number of them, the links connect these GPUs."""
        unknown: defaultdict[int, list[Labels]] = defaultdict(list)
        for labels, up in samples.all(nvlink.LINK_UP).items():
            if not up and labels not in self.ends:
                unknown[int(labels[0])].append(labels)
        if len(unknown) == 2 and len({*map(len, unknown.values())}) == 1:
            (one, its), (other, others) = unknown.items()
            self.ends |= dict.fromkeys(its, other) | dict.fromkeys(others, one)

    def links(
        self, samples: SampleStore, ratios: Mapping[Labels, float], *, all_of: bool
    ) -> list["Link"]:
        """Return the links with a known remote end, or all links if `all_of` is true."""
        return sorted(
            Link(int(one[0]), int(one[2]), self.ends.get(one), bool(up), ratios.get(one))
            for one, up in samples.all(nvlink.LINK_UP).items()
            if one in self.ends or all_of
        )


class Link(NamedTuple):
    """An NVLink as one of its GPUs reports it."""

    gpu: int
    number: int
    peer: int | None
    up: bool | None
    ratio: float | None


def nvlink_graph(
    samples: SampleStore,
    spec: SystemSpec | None,
    ends: FarEnds,
    bandwidth: PathAccounts,
    paths: Sequence[PathStatus],
    *,
    faults: Iterable[ActiveFault],
    ailing: Ailing,
) -> tuple[NvlinkGraph, tuple[LinkStatus, ...]]:
    """Return the NVLink graph and its edges. `faults` determines which links have errors, and
    `ailing` determines which GPUs have an NVLink fault."""
    errs = {
        (one.finding.gpu.index, int(one.finding.device))
        for one in faults
        if one.finding.kind == "link_errors" and one.finding.gpu and not one.over
    }
    drawn = spec.nvlink_graph if spec else None
    switched = bool(drawn and not drawn.pairs)
    links = ends.links(samples, _ratios(bandwidth, samples.now), all_of=switched)
    totals: dict[int, float] = {}
    for path in paths:
        if path.path == "nvlink" and path.gpu is not None and path.ratio is not None:
            totals[path.gpu] = max(totals.get(path.gpu, 0.0), path.ratio)
    full = bandwidth.threshold("nvlink")
    to_switch = [link for link in links if link.peer is None]
    edges = [
        *_spokes(to_switch, totals, full, errs, ailing),
        *_meshes([link for link in links if link.peer is not None], totals, full, errs),
    ]
    kind = "switch" if to_switch else "direct" if links else "none"
    kind = KINDS[drawn.kind] if drawn else kind
    return NvlinkGraph(
        kind=kind,
        expected=tuple((int(a), int(b), int(n)) for a, b, n in drawn.pairs) if drawn else (),
        text=_caption(kind, edges, spec),
    ), tuple(edges)


def _caption(kind: str, edges: Sequence[LinkStatus], spec: SystemSpec | None) -> str:
    """Return the title of the graph, with the number of links that are up, and of all."""
    up, all_of = sum(edge.up for edge in edges), sum(edge.links for edge in edges)
    if spec and kind == "switch":
        all_of = max(all_of, spec.gpus * (spec.nvlink_links or 0))
    words = TITLES.get(kind, ""), f"{up} of {all_of} links up" if edges else ""
    return ", ".join(filter(None, words))


def _ratios(bandwidth: PathAccounts, now: float) -> dict[Labels, float]:
    """Return the utilization of each link with its own counters, for the busier direction."""
    found: dict[Labels, float] = {}
    for key, path in bandwidth.paths.items():
        if key.path == "nvlink" and key.is_link and path.ratio is not None and path.until >= now:
            labels = key.gpu, key.uuid, key.device.rpartition(":")[2]
            found[labels] = max(path.ratio, found.get(labels, 0.0))
    return found


def load_of(up: bool, ratio: float | None, full: float) -> LinkLoad:
    """Return the `LinkLoad` of a link, which determines its colour."""
    if not up:
        return LinkLoad.DOWN
    if ratio is None:
        return LinkLoad.UNKNOWN
    if ratio >= full:
        return LinkLoad.FULL
    return LinkLoad.MID if ratio >= MID else LinkLoad.LOW if ratio >= LITTLE else LinkLoad.NONE


def _spokes(
    links: Iterable[Link],
    totals: Mapping[int, float],
    full: float,
    errs: Set[tuple[int, int]],
    ailing: Ailing,
) -> Iterator[LinkStatus]:
    """Yield one edge per GPU. The edge represents all links between the GPU and the NVSwitches."""
    for number, group in groupby(links, key=lambda link: link.gpu):
        its = [*group]
        down = [link.number for link in its if link.up is False]
        known = [link.ratio for link in its if link.ratio is not None]
        ratio = totals.get(number, max(known, default=None))
        erring = [link.number for link in its if errs and link.up and (number, link.number) in errs]
        bad = erring or (("nvlink", f"gpu{number}") in ailing and len(down) < len(its))
        load = LinkLoad.ERRING if bad else load_of(len(down) < len(its), ratio, full)
        notes = _note(number, down), _note(number, erring, verb="had errors")
        yield LinkStatus(
            gpu=number,
            peer=None,
            lane=0,
            lanes=1,
            up=len(its) - len(down),
            links=len(its),
            down=tuple(down),
            ratio=ratio,
            load=LinkLoad.LESS if 0 < len(down) < len(its) else load,
            text="; ".join(filter(None, notes)) or None,
        )


def _note(gpu: int, links: Sequence[int], peer: int | None = None, verb: str = "") -> str | None:
    if not links:
        return None
    noun, state = ("links", "are down") if len(links) > 1 else ("link", "is down")
    text = f"GPU {gpu}, {noun} {', '.join(map(str, links))} {verb or state}"
    return text if peer is None else f"{text} (to GPU {peer})"


def _meshes(
    links: Iterable[Link], totals: Mapping[int, float], full: float, errs: Set[tuple[int, int]]
) -> Iterator[LinkStatus]:
    """Yield one edge for each link between two GPUs. Both GPUs report the link, so the links are
    counted on the GPU that reports more of them, and the higher utilization is used. If links have
    no counters of their own, the utilization of an edge is that of the less busy GPU."""
    pairs: defaultdict[tuple[int, int], defaultdict[int, list[Link]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for link in links:
        if link.peer is not None:
            a, b = sorted((link.gpu, link.peer))
            pairs[a, b][link.gpu].append(link)
    for (a, b), sides in pairs.items():
        near, far = sorted((sides[a], sides[b]), key=len, reverse=True)
        guess = min(totals[a], totals[b]) if a in totals and b in totals else None
        for lane, link in enumerate(near):
            both = [link, *far[lane : lane + 1]]
            down = [end for end in both if end.up is False]
            bad = [end for end in both if end.up and (end.gpu, end.number) in errs]
            notes = [_note(e.gpu, [e.number], e.peer) for e in down]
            notes += [_note(e.gpu, [e.number], e.peer, "had errors") for e in bad]
            known = [end.ratio for end in both if end.ratio is not None]
            ratio = max(known, default=guess)
            yield LinkStatus(
                gpu=a,
                peer=b,
                lane=lane,
                lanes=len(near),
                up=int(not down),
                links=1,
                down=tuple(end.number for end in down if end.gpu == a),
                ratio=ratio,
                load=LinkLoad.ERRING if bad and not down else load_of(not down, ratio, full),
                text="; ".join(filter(None, notes)) or None,
            )


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
