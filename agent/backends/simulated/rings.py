"""The driver's sample buffers: utilisation at 5 Hz for 14 s, power at 50 Hz for 2.4 s."""

from collections import deque
from typing import NamedTuple

UTILISATION_SAMPLES = 71
POWER_SAMPLES = 119
POWER_STEP = 0.02


class Percent(NamedTuple):
    """One utilisation sample: seconds of world time, percent."""

    at: float
    gpu: int
    memory: int


class Rings:
    """What one GPU remembers. Power is kept at its turning points and sampled when asked."""

    def __init__(self) -> None:
        self.utilisation: deque[Percent] = deque(maxlen=UTILISATION_SAMPLES)
        self._power: deque[tuple[float, float]] = deque(maxlen=24)

    def note(self, at: float, gpu: int, memory: int, watts: float) -> None:
        """One step of the world has ended."""
        self.utilisation.append(Percent(at, gpu, memory))
        self._power.append((at, watts))

    def power(self) -> list[tuple[float, float]]:
        """(seconds, watts) each 20 ms, oldest first, up to the last step."""
        points = list(self._power)
        if len(points) < 2:
            return points
        last = int(points[-1][0] / POWER_STEP + 1e-6)
        earliest = max(last - POWER_SAMPLES + 1, int(points[0][0] / POWER_STEP) + 1)
        samples: list[tuple[float, float]] = []
        place = 0
        for number in range(earliest, last + 1):
            at = number * POWER_STEP
            while place < len(points) - 2 and points[place + 1][0] < at:
                place += 1
            samples.append((at, _between(points[place], points[place + 1], at)))
        return samples

    def clear(self) -> None:
        self.utilisation.clear()
        self._power.clear()


def _between(left: tuple[float, float], right: tuple[float, float], at: float) -> float:
    share = (at - left[0]) / (right[0] - left[0])
    return left[1] + (right[1] - left[1]) * share
