"""The driver's sample buffers: utilisation at 5 Hz for 14 s, power at 50 Hz for 2.4 s.

Nothing is stored: a sample is worked out from the counters when somebody asks for it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from agent.simulator.gpu_models import ADA, GpuModel
from agent.simulator.noise import noise
from agent.simulator.step_meter import StepMeter

SLACK = 1e-9  # s: a sample is due although floating point says that it is just not
USAGE_WINDOW = 1.0  # s, over which, from Ada on, `nvmlDeviceGetPowerUsage` averages
USAGE_UPDATE = 0.1  # s


class BufferModel(NamedTuple):
    """One buffer: how many samples it holds, and the seconds between two of them."""

    length: int
    every: float


UTILISATION = BufferModel(71, 0.2)
POWER = BufferModel(119, 0.02)

LONGEST = 18.0  # Seconds that any buffer reaches back: less than the counters remember


class SampleBuffers:
    """Content of the sample buffers of one GPU; times in seconds of machine time."""

    def __init__(self, model: GpuModel, index: int, meter: StepMeter) -> None:
        self._model = model
        self._index = index
        self._meter = meter
        self.begin = 0.0  # samples taken up to then are gone
        self.ripple = 0.0  # of the power, from one sample to the next
        self.speed = 1.0  # of the clock: who asks must come back as soon as on a real machine

    def utilisation(self, name: str, now: float, seen: float) -> Iterator[tuple[float, int]]:
        """Return samples (time, percent): mean of the counter `name` over each fifth of a second.
        `seen` is the time of the last sample that is not wanted any more."""
        return ((at, self.percent(name, at)) for at in self._moments(UTILISATION, now, seen))

    def percent(self, name: str, now: float) -> int:
        """The newest utilisation sample."""
        at = _grid(now, UTILISATION.every)
        return min(100, round(100 * self._meter.mean(name, at - UTILISATION.every, at)))

    def power(self, now: float, seen: float) -> Iterator[tuple[float, float]]:
        """Return samples (time, watts). Where the sensor's windows follow each other, or one window
        makes several samples, each is worked out once."""
        window, every = self._model.power_window, self._model.power_update
        before, joules, watts = -1.0, 0.0, 0.0
        for at in self._moments(POWER, now, seen):
            update = _grid(at, every)
            if update != before:
                follows = abs(update - before - window) < SLACK
                begin = joules if follows else self._meter.read("energy", update - window)
                before, joules = update, self._meter.read("energy", update)
                watts = self._noisy((joules - begin) / window, update)
            yield at, watts

    def watts(self, now: float) -> float:
        """The newest power sample: the mean over the sensor's window before its last update."""
        update = _grid(now, self._model.power_update)
        mean = self._meter.mean("energy", update - self._model.power_window, update)
        return self._noisy(mean, update)

    def _noisy(self, watts: float, update: float) -> float:
        return watts * (1.0 + self.ripple * noise(round(update / POWER.every), self._index))

    def usage(self, now: float) -> float:
        """Watts of `nvmlDeviceGetPowerUsage`: from Ada on a mean over the last second."""
        if self._model.architecture < ADA:
            return self.watts(now)
        at = _grid(now, USAGE_UPDATE)
        return self._meter.mean("energy", at - USAGE_WINDOW, at)

    def _moments(self, buffer: BufferModel, now: float, seen: float) -> Iterator[float]:
        last = int(now / buffer.every + SLACK)
        gone = int(max(0.0, seen, self.begin) / buffer.every + SLACK)
        length = max(buffer.length, min(buffer.length * self.speed, LONGEST / buffer.every))
        first = max(last - int(length), gone)
        return (number * buffer.every for number in range(first + 1, last + 1))


def _grid(now: float, every: float) -> float:
    return int(now / every + SLACK) * every
