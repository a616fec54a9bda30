"""Bytes and joules against loads of known size."""

import time
from collections.abc import Iterator

from agent.hardware.buffers import POWER_SAMPLES, SampleBuffer
from agent.hardware.device import NvmlDevice
from agent.hardware.gpm import Gpm, GpmId
from agent.sources import activity, nvlink, pcie, power
from tests.hardware.bench import Figure, Watcher, running, slope

LINK_BYTES = 25e9
NCCL_WITHIN = 0.005
"""Tolerance between payload and NCCL's bus bandwidth."""


def device_of(watcher: Watcher, index: str) -> NvmlDevice:
    """One GPU of the watcher's agent."""
    gpus = watcher.agent.gpus.watched.all_gpus()
    return next(gpu.device for gpu in gpus if gpu.device.labels[0] == index)


def copies(watcher: Watcher, seconds: float = 12.0) -> Iterator[Figure]:
    """H2D and D2H, flat out and paced: the agent's bytes against the bytes copied."""
    for kind in ("h2d", "d2h", "h2d-paced", "d2h-paced"):
        with running(kind, 60) as load:
            watcher.ticks(3)
            start = watcher.clock.monotonic()
            watcher.ticks(seconds)
            end = watcher.clock.monotonic()
            moved, other = pcie.RECEIVED, pcie.TRANSMITTED
            if kind.startswith("d2h"):
                moved, other = other, moved
            points = [p for p in watcher.points(moved, "0") if start <= p.at <= end]
            truth = load.rate(points[0].at, points[-1].at)
            mine = slope(points)
            back = watcher.rate(other, "0", start, end)
            note = (
                f"agent {mine / 1e9:.3f} GB/s, copied {truth / 1e9:.3f}, other way {back / 1e9:.3f}"
            )
            yield Figure(f"pcie {kind}", mine / truth, 0.90, 1.10, "of the bytes copied", note)
            busy = watcher.mean(activity.ACTIVITY, "0", start, end)
            yield Figure(f"activity under {kind}", busy, 0.0, 0.02, "", "copies are no activity")


def gpm_unit(watcher: Watcher, seconds: float = 20.0) -> Iterator[Figure]:
    """GPM's PCIe figure against the 32-bit byte counters, unwrapped, over the same seconds.

    A paced copy keeps the counters from wrapping between two readings 50 ms apart.
    """
    device = device_of(watcher, "0")
    gpm = Gpm(device, watcher.clock.monotonic)  # of our own, beside the agent's
    with running("h2d-paced", seconds + 30) as load:
        time.sleep(2)
        gpm.measurement()
        before, total, start = _counters(device), [0, 0], time.monotonic()
        while time.monotonic() - start < seconds:
            time.sleep(0.05)
            now = _counters(device)
            total = [t + ((n - b) % 2**32) for t, n, b in zip(total, now, before, strict=True)]
            before = now
        measured = gpm.measurement()
        end = time.monotonic()
        truth = load.rate(start, end)
    assert measured is not None
    received = total[1] / (end - start)
    unit = received / measured.value(GpmId.PCIE_RECEIVED)
    note = (
        f"counter {received / 1e9:.4f} GB/s, copied {truth / 1e9:.4f}, ratio {received / truth:.4f}"
    )
    yield Figure("GPM's PCIe unit, received", unit, 1.03e6, 1.07e6, "bytes", note)


def _counters(device: NvmlDevice) -> list[int]:
    answers = device.get("FieldValues", [197, 198])  # PCIE_COUNT_TX_BYTES, PCIE_COUNT_RX_BYTES
    return [int(answer.value.uiVal) for answer in answers]


def energy(watcher: Watcher, seconds: float = 64.0) -> Iterator[Figure]:
    """The energy counter against the driver's power samples, integrated, under a duty cycle."""
    device = device_of(watcher, "0")
    buffer = SampleBuffer(device, POWER_SAMPLES, power.SAMPLES, 1e3)
    with running("duty", seconds + 40):
        watcher.ticks(3)
        start, before = watcher.clock.monotonic(), device.get("TotalEnergyConsumption") / 1e3
        buffer.take()
        joules, covered = 0.0, 0.0
        while watcher.clock.monotonic() - start < seconds:
            watcher.ticks(1.0)
            for sample in buffer.take():
                joules += sample.value / 1e3 * sample.seconds
                covered += sample.seconds
        after, end = device.get("TotalEnergyConsumption") / 1e3, watcher.clock.monotonic()
        mean_counter = (after - before) / (end - start)
        own = watcher.points(power.ENERGY, "0")
        mine = slope([p for p in own if start - 11 <= p.at <= end])
        polled = watcher.mean(power.POWER, "0", start, end)
        active = slope([p for p in watcher.points(activity.ACTIVE_SECONDS, "0") if p.at >= start])
    note = f"counter {mean_counter:.1f} W, samples {joules / covered:.1f} W over {covered:.1f} s"
    ratio = mean_counter / (joules / covered)
    yield Figure("energy counter over power samples", ratio, 0.97, 1.03, "", note)
    yield Figure("agent's energy over the counter", mine / mean_counter, 0.97, 1.03, "")
    yield Figure("polled power over the counter", polled / mean_counter, 0.9, 1.1, "")
    yield Figure("active seconds a second, duty 0.3", active, 0.28, 0.34, "s/s")


def all_reduce(watcher: Watcher, seconds: float = 30.0) -> Iterator[Figure]:
    """NVLink payload against NCCL's bus bandwidth, wire against the links' speed; every GPU."""
    with running("all-reduce", 150) as load:
        watcher.ticks(8)
        start = watcher.clock.monotonic()
        watcher.ticks(seconds)
        end = watcher.clock.monotonic()
        gpus = [identity.index for identity in watcher.agent.gpus.inventory.gpus]
        for index in map(str, gpus):
            yield from _links_of_one(watcher, load.rate, index, start, end)


def _links_of_one(watcher, rate, index: str, start: float, end: float):  # type: ignore[no-untyped-def]
    payload = (nvlink.TRANSMITTED, nvlink.RECEIVED)
    wire = (nvlink.WIRE_TRANSMITTED, nvlink.WIRE_RECEIVED)
    links = watcher.points(nvlink.LINKS, index)[-1].value
    for metric in payload:
        points = [p for p in watcher.points(metric, index) if start <= p.at <= end]
        truth = rate(points[0].at, points[-1].at)
        mine = slope(points)
        note = f"{mine / 1e9:.2f} GB/s, NCCL {truth / 1e9:.2f}, {len(points)} readings"
        bounds = 1 - NCCL_WITHIN, 1 + NCCL_WITHIN
        yield Figure(f"gpu{index} {metric}", mine / truth, *bounds, "of NCCL's", note)
    for metric in wire:
        mine = watcher.rate(metric, index, start, end)
        share = mine / (links * LINK_BYTES)
        note = f"{mine / 1e9:.1f} GB/s"
        yield Figure(f"gpu{index} {metric}", share, 0.85, 0.95, f"of {links:.0f} links", note)


def link_sum(watcher: Watcher) -> Iterator[Figure]:
    """The links of each GPU add up to its total, read in the same turn."""
    for read in watcher.agent.gpus.reads():
        read.due = 0.0
    watcher.ticks(1.0)
    for identity in watcher.agent.gpus.inventory.gpus:
        index = str(identity.index)
        total = watcher.points(nvlink.RECEIVED, index)[-1].value
        parts = [
            points[-1].value
            for (name, key), points in watcher.series.items()
            if name == [*nvlink.PER_LINK][1].name and key[0] == index
        ]
        yield Figure(f"gpu{index} sum of {len(parts)} links", sum(parts) / total, 0.999, 1.001, "")
