"""Active seconds of a load whose duty cycle is known."""

import time
from collections.abc import Iterator

from agent.hardware.buffers import UTILISATION_SAMPLES, SampleBuffer
from agent.hardware.device import NvmlDevice
from agent.sources import activity
from tests.hardware.bench import Figure, Load, Watcher, running, slope
from tests.hardware.traffic import device_of


def duty(seconds: float = 40.0) -> Iterator[Figure]:
    """Matrix products for 0.3 s, then none for 0.7 s: active seconds against the load's own."""
    watcher = Watcher()
    watcher.ticks(2.5)
    buffer = DriverBuffer(device_of(watcher, "0"))
    with running("duty", seconds + 40) as load:
        watcher.ticks(3)
        buffer.take()
        first, start = buffer.active, time.monotonic()
        while time.monotonic() < start + seconds:
            watcher.ticks(4.0)  # the driver keeps 14 s of samples
            buffer.take()
        end = time.monotonic()
        sampled = (buffer.active - first) / (end - start)
        true = _share_busy(load, start, end)
    points = watcher.points(activity.ACTIVE_SECONDS, "0")
    mine = slope([point for point in points if start <= point.at <= end])
    note = f"grows {mine:.4f} a second, the load was busy {true:.4f}"
    yield Figure("active seconds a second less the truth", mine - true, -0.02, 0.02, "", note)
    note = f"{sampled:.4f} by the driver's samples"
    yield Figure("the same without GPM", sampled - true, -0.05, 0.05, "", note)


class DriverBuffer:
    """Count of the agent on a GPU without GPM."""

    def __init__(self, device: NvmlDevice) -> None:
        self._buffer = SampleBuffer(device, UTILISATION_SAMPLES, activity.ACTIVITY, 100)
        self.active = 0.0  # s

    def take(self) -> None:
        """Count the samples since the last read."""
        self.active += sum(sample.value * sample.seconds for sample in self._buffer.take())


def _share_busy(load: Load, start: float, end: float) -> float:
    """Whole cycles of the load within the time: busy seconds over all seconds."""
    lines = [line for line in list(load.lines) if start <= line["at"] <= end]
    cycles = lines[-1]["at"] - lines[0]["at"]
    return sum(line["busy"] for line in lines[1:]) / cycles
