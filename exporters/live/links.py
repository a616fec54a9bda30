"""NVLink link by link: what is at the far end, whether it is up, and the graph they make."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.limits.paths import PathAccounts
from agent.limits.resolution import PathKey
from agent.model import Labels
from agent.ranges import device_ranges, pci_address
from agent.series import SampleStore
from agent.sources import gpu, nvlink
from agent.specs.sheets import SystemSpec
from exporters.live.paths import DIGITS, INWARD, PORTS
from exporters.messages import Document, rate

KINDS = {"nvswitch": "switch", "cube-mesh": "mesh", "fully-connected": "full"}
"""Names of a graph in the sheets, and on the page."""

AFRESH = 5.0
"""Seconds between two checks of all links."""

FULL = 0.99
"""Share of the spec sheet's rate from which a link runs at full rate."""

Row = tuple[bool | None, float | None, float | None]
"""State of a link (up or not), and the ratios of both directions."""


class Remote(NamedTuple):
    """The far end of a link: its kind, and the index of a GPU of this machine."""

    kind: str
    gpu: str | None = None


UNKNOWN = Remote("unknown")


class LinkState(NamedTuple):
    """One link of one GPU; `ways` are its data path, transmit and receive, where it is counted."""

    labels: Labels  # gpu, uuid, link
    remote: Remote
    ways: tuple[PathKey, ...]


@dataclass(slots=True)
class LinkStates:
    """All NVLinks of this machine."""

    bandwidth: PathAccounts
    links: list[LinkState] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    _at: float = 0.0  # when the rows were made
    _ends: dict[Labels, Remote] = field(default_factory=dict)  # that a link had while it was up
    graph: Document = field(default_factory=lambda: {"kind": "none", "expected": []})

    def survey(self, samples: SampleStore, spec: SystemSpec | None) -> None:
        self._ends.update(_far_ends(samples))
        found = sorted(
            samples.all(nvlink.LINK_UP), key=lambda labels: (int(labels[0]), int(labels[2]))
        )
        drawn = spec.nvlink_graph if spec else None
        silent = Remote("switch") if drawn and not drawn.pairs else UNKNOWN  # links that are down
        self.links = []
        for labels in found:
            index, uuid, number = labels
            device = f"gpu{index}:{number}"
            ways = tuple(PathKey("nvlink", device, index, uuid, w) for w in ("transmit", "receive"))
            counted = ways if ways[0] in self.bandwidth.limits else ()
            self.links.append(LinkState(labels, self._ends.get(labels, silent), counted))
        kinds = {link.remote.kind for link in self.links}
        kind = "switch" if "switch" in kinds else "direct" if self.links else "none"
        self.graph = {
            "kind": KINDS[drawn.kind] if drawn else kind,
            "expected": [list(pair) for pair in drawn.pairs] if drawn else [],
        }
        self.rows = []

    def static(self) -> list[Document]:
        return [
            {
                "gpu": link.labels[0],
                "link": link.labels[2],
                "remote": {"kind": link.remote.kind, "gpu": link.remote.gpu},
            }
            for link in self.links
        ]

    def dynamic(self, samples: SampleStore) -> list[Row]:
        """The links as they are now, or were a few ticks ago: they are read once a minute."""
        if not self.rows or samples.now - self._at >= AFRESH:
            self._at = samples.now
            ups = [samples.value(nvlink.LINK_UP, *link.labels) for link in self.links]
            self.rows = [
                (None if up is None else bool(up), *self._ratios(link, samples.now))
                for up, link in zip(ups, self.links, strict=True)
            ]
        return self.rows

    def _ratios(self, link: LinkState, now: float) -> tuple[float | None, float | None]:
        if not link.ways:
            return None, None
        paths = (self.bandwidth.paths.get(way) for way in link.ways)
        transmit, receive = (
            None if p is None or p.ratio is None or p.until < now else round(p.ratio, DIGITS)
            for p in paths
        )
        return transmit, receive


def _far_ends(samples: SampleStore) -> dict[Labels, Remote]:
    by_address = {
        where: labels["gpu"]
        for labels in samples.labelled(gpu.INFO)
        if (where := pci_address(labels["pci_bus_id"]))
    }
    ends: dict[Labels, Remote] = {}
    for end in samples.labelled(nvlink.LINK_INFO):
        peer = by_address.get(pci_address(end["remote_pci_bus_id"]))
        kind = end["remote"]
        if kind != "unknown":  # a guest may see addresses of its host
            known = kind != "gpu" or peer is not None
            ends[end["gpu"], end["uuid"], end["link"]] = Remote(kind, peer) if known else UNKNOWN
    return ends


def link_rates(machine: Document) -> dict[str, str]:
    """`8 x 400 Gb/s, all at full rate`, by path: what ports and PCIe links negotiated, against the
    spec sheet or what GPU and slot allow; `negotiated` where there is none."""
    found: dict[str, Counter[str]] = {}
    most: dict[str, dict[str, str]] = {}
    off: Counter[str] = Counter()
    for way in machine["paths"]:
        path, now, sheet = way["path"], way.get("negotiated"), way.get("sheet")
        if path in PORTS and way["direction"] in INWARD:
            off[path] += way["up"] is False
            words = rate(now, None, path) if now else "rate not read"
            found.setdefault(path, Counter())[words] += way["up"] is not False
            if now and sheet:
                full = now >= FULL * sheet
                most.setdefault(path, {})[words] = words if full else rate(sheet, None, path)
    # A link's generation falls while its GPU rests, so its width alone says what is wrong.
    for _, lanes, newest, widest in (one["pcie"] for one in machine["gpus"]):
        most_here = f"generation {newest:.0f} " if newest else ""
        words = f"{most_here}x{lanes:.0f}" if lanes else "width not read"
        found.setdefault("pcie", Counter())[words] += 1
        if lanes and widest:
            best = words if lanes >= widest else f"x{widest:.0f}"
            most.setdefault("pcie", {})[words] = best
    return {
        path: ", ".join(
            [
                *_rates(+rates, most.get(path, {}), "full rate" if path in PORTS else "full width"),
                *[f"{off[path]} without link"] * bool(off[path]),
            ]
        )
        for path, rates in found.items()
    }


def _rates(rates: Mapping[str, int], most: Mapping[str, str], full: str) -> Iterator[str]:
    for words, number in rates.items():
        of = most.get(words, "")
        yield f"{number} x {words}" + f" (of {of})" * bool(of and of != words)
    if rates and all(most.get(words) == words for words in rates):
        yield f"all at {full}" if sum(rates.values()) > 1 else f"at {full}"
    elif any(words not in most and "not read" not in words for words in rates):
        yield "negotiated"


def slow_links(machine: Document, links: Iterable[Row]) -> list[str]:
    """`links below full speed: pcie gpu0, x8 of x16; nvlink gpu1, 17 of 18 links up`: ports by what
    they negotiated of the spec sheet, NVLink and PCIe by what the GPU reports; empty if none is."""
    links_of = [*zip(machine["links"], links, strict=True)]
    found: dict[tuple[str, str], list[str]] = {}
    for way in machine["paths"]:
        now, most = way.get("negotiated") or 0.0, way.get("sheet") or 0.0
        if way["up"] and 0 < now < FULL * most and way["direction"] in INWARD:
            key = way["path"], rate(now, most, way["path"])
            found.setdefault(key, []).append(way["device"])
    for one in machine["gpus"]:
        name = f"gpu{one['gpu']}"
        ups = [up for link, (up, *_) in links_of if link["gpu"] == one["gpu"]]
        if any(up is not None for up in ups) and not all(ups):
            key = "nvlink", f"{ups.count(True)} of {len(ups)} links up"
            found.setdefault(key, []).append(name)
        _, lanes, _, widest = one["pcie"]
        if lanes and widest and lanes < widest:
            found.setdefault(("pcie", f"x{lanes:.0f} of x{widest:.0f}"), []).append(name)
    parts = [f"{path} {device_ranges(of, ' ')}, {text}" for (path, text), of in found.items()]
    return [f"links below full speed: {'; '.join(parts)}"] if parts else []
