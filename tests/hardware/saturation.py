"""Data paths at their limit on real GPUs: what the agent calls saturated, for as long as it is."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from agent.limits import paths
from agent.model import Metric
from agent.specs.sheets import SaturationConfig
from tests.hardware.bench import Figure, Load, Point, Watcher

BOTH = ("transmit", "receive")
LOAD_SECONDS = 60.0
AFTERWARDS = 15.0  # seconds: the reading that holds the end comes within a quiet interval
CHUNK = 5.0  # seconds between two checks of whether the load is over
START_UP = 120.0  # seconds: PyTorch loads, NCCL meets
EDGE = 2.0  # seconds: the load begins and ends within a tick, and two ticks part such readings
INSIDE = 5.0  # seconds: means are taken from readings that lie wholly within the load
QUIET = 0.10  # share of its limit that a path carries at most when the load does not use it
NEVER_MORE = 1.05  # a ratio above it means that limit or counter is wrong


class Span(NamedTuple):
    """Time of the load (CLOCK_MONOTONIC, s)."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def span_of(lines: list[dict[str, float]]) -> Span:
    """Return the time of a load of equal pieces: each line reports the end of a piece, so the first
    piece began as long before its line as the second took."""
    if len(lines) < 3:
        raise RuntimeError(f"the load reported {len(lines)} pieces, which is too few to know more")
    first, second = lines[0]["at"], lines[1]["at"]
    return Span(first - (second - first), lines[-1]["at"])


def watched(watcher: Watcher, load: Load, seconds: float) -> Span:
    """Tick until the load is over and its last bytes are read; when it ran."""
    timeout = time.monotonic() + START_UP + seconds
    try:
        while load.process.poll() is None and time.monotonic() < timeout:
            watcher.ticks(CHUNK)
        if load.process.poll() is None:
            raise RuntimeError(f"the load did not end: {load.process.args!r}")
        if load.process.returncode:
            raise RuntimeError(f"the load failed with {load.process.returncode}")
    finally:
        load.stop()
    watcher.ticks(AFTERWARDS)
    return span_of(load.lines)


def points(watcher: Watcher, metric: Metric, path: str, device: str, way: str) -> list[Point]:
    """Every reading of one series of the family of data paths."""
    for (name, labels), found in watcher.series.items():
        if name == metric.name and (labels[0], labels[1], labels[4]) == (path, device, way):
            return found
    raise RuntimeError(f"{metric} of {path} {device} {way} was never read: has it a limit?")


def inside(ratios: list[Point], span: Span) -> list[float]:
    """The readings that lie wholly within the load."""
    found = [p.value for p in ratios if span.start + INSIDE <= p.at <= span.end - 1]
    if not found:
        raise RuntimeError(f"no ratio was read in the {span.seconds:.1f} s that the load ran")
    return found


def at(counted: list[Point], moment: float) -> float:
    """Return the value of a counter at a moment: its latest reading until then."""
    return max((p for p in counted if p.at <= moment), default=counted[0]).value


def full(watcher: Watcher, path: str, device: str, way: str, span: Span) -> Iterator[Figure]:
    """One path that the load fills: its ratio, and for how long it is called saturated."""
    threshold = getattr(watcher.agent.settings[SaturationConfig], path)
    ratios = inside(points(watcher, paths.RATIO, path, device, way), span)
    name = f"{device} {path} {way}"
    note = f"least {min(ratios):.3f}, most {max(ratios):.3f}, {len(ratios)} readings"
    mean = sum(ratios) / len(ratios)
    yield Figure(f"{name} ratio", mean, threshold, NEVER_MORE, "of the limit", note)
    counted = points(watcher, paths.SATURATED, path, device, way)
    grown = counted[-1].value - at(counted, span.start - EDGE)
    least, most = 0.95 * span.seconds - EDGE, 1.05 * span.seconds + EDGE
    note = f"the load ran {span.seconds:.2f} s, {grown / span.seconds:.4f} of it"
    yield Figure(f"{name} saturated", grown, least, most, "s", note)


def quiet(watcher: Watcher, path: str, device: str, way: str, span: Span) -> Iterator[Figure]:
    """One path that the load leaves alone: low, and never called saturated."""
    ratios = inside(points(watcher, paths.RATIO, path, device, way), span)
    yield Figure(f"{device} {path} {way} most", max(ratios), 0.0, QUIET, "of the limit")
    counted = points(watcher, paths.SATURATED, path, device, way)
    grown = counted[-1].value - at(counted, span.start - EDGE)
    yield Figure(f"{device} {path} {way} saturated", grown, 0.0, 0.0, "s")


def devices(watcher: Watcher) -> list[str]:
    return [f"gpu{identity.index}" for identity in watcher.agent.gpus.inventory.gpus]


def nvlink(watcher: Watcher, seconds: float = LOAD_SECONDS) -> Iterator[Figure]:
    """All-reduce fills the NVLinks of every GPU both ways, and only for as long as it runs."""
    found = devices(watcher)
    if len(found) < 2:
        raise RuntimeError("an all-reduce needs two GPUs")
    span = watched(watcher, Load("all-reduce", seconds), seconds)
    for device in found:
        for way in BOTH:
            yield from full(watcher, "nvlink", device, way, span)


def pcie(watcher: Watcher, seconds: float = LOAD_SECONDS) -> Iterator[Figure]:
    """Pinned copies to GPU 0 fill its PCIe towards it: not the way back, nor another GPU's."""
    span = watched(watcher, Load("h2d", seconds), seconds)
    yield from full(watcher, "pcie", "gpu0", "receive", span)
    yield from quiet(watcher, "pcie", "gpu0", "transmit", span)
    for device in devices(watcher):
        if device != "gpu0":
            for way in BOTH:
                yield from quiet(watcher, "pcie", device, way, span)
