"""Reads the driver's buffers of recent power and utilization samples."""

from struct import Struct
from typing import NamedTuple

from agent.errors import LogEvent, log
from agent.hardware.device import NvmlDevice
from agent.model import Absent, Metric, Reason

POWER_SAMPLES = 0  # NVML_TOTAL_POWER_SAMPLES: mW, every 20 ms, the last 2.4 s
UTILISATION_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES: %, every 200 ms, the last 14 s

SAMPLE = Struct("=QI4x")
"""Layout of `nvmlSample_t`: a timestamp in microseconds on the driver's clock, and an unsigned int
value. Unpacking a sample takes one call. Each GPU has 50 samples per second, and reading a single
attribute of a pynvml structure takes 2 us."""


class TimedValue(NamedTuple):
    """A sample from a driver buffer. The value is in the unit of the metric. It covers `seconds`,
    and its timestamp is in seconds on the driver's clock."""

    value: float
    seconds: float
    at: float = 0.0


class SampleBuffer:
    """Reads a driver buffer with `nvmlDeviceGetSamples`, and returns each sample once. Drops values
    outside the range of `metric`. `per` is the number of NVML units in a unit of the metric."""

    def __init__(self, device: NvmlDevice, kind: int, metric: Metric, per: float) -> None:
        self._device = device
        self._kind = kind
        self._per = per
        self._metric = metric
        self._odd = False  # whether an impossible value has been logged
        self._last = 0  # microseconds on the driver's clock
        self._empty = 0  # consecutive reads without a new sample

    def take(self) -> list[TimedValue]:
        """Return the samples since the last call, oldest first. The first call returns no samples.
        Raise Absent if the driver does not support the buffer."""
        fresh = [s for s in self._newer_than(self._last) if s[0] > self._last]
        taken = self._timed(fresh) if self._last else []
        self._empty = 0 if fresh else self._empty + 1
        if fresh:
            self._last = fresh[-1][0]
        elif self._empty % 4 == 0:  # fewer empty reads are normal on an idle GPU
            # The driver's clock may have been set back, so continue with its latest sample.
            newest = max((at for at, _ in self._newer_than(0)), default=self._last)
            self._last = min(self._last, newest)
        return taken

    def _newer_than(self, mark: int) -> list[tuple[int, int]]:
        try:
            raw = [SAMPLE.unpack(s) for s in self._device.get("Samples", self._kind, mark)[1]]
        except Absent as absent:
            if absent.reason is Reason.UNKNOWN:  # NOT_FOUND: nothing newer
                return []
            raise
        latest = min((at for at, _ in raw), default=0) + 60e6  # us, longer than any buffer
        return [sample for sample in raw if sample[0] <= latest]

    def _timed(self, samples: list[tuple[int, int]]) -> list[TimedValue]:
        taken, before = [], self._last
        low, high = self._metric.possible
        for at, raw in samples:
            value = raw / self._per
            seconds = (at - before) / 1e6
            before = at
            if not low <= value <= high:
                if not self._odd:
                    names, metric = ",".join(self._device.labels), self._metric.name
                    log.warning(LogEvent("implausible", metric=metric, labels=names, value=value))
                self._odd = True
            elif 0 < seconds <= 1.0:  # a sample covers no longer gap
                taken.append(TimedValue(value, seconds, at / 1e6))
        return taken
