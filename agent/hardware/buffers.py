"""The driver's sample buffers: what happened between two reads is not lost."""

from typing import Any, NamedTuple

from agent.hardware.device import NvmlDevice
from agent.model import Absent, Reason

POWER_SAMPLES = 0  # NVML_TOTAL_POWER_SAMPLES: mW, one each 20 ms, the last 2.4 s
UTILISATION_SAMPLES = 1  # NVML_GPU_UTILIZATION_SAMPLES: %, one each 200 ms, the last 14 s

LONGEST_SAMPLE = 1.0
"""A hole in the buffer longer than this (s) is a gap: no sample stands for it."""

PATIENCE = 4
"""Looks without a new sample before the driver's clock is suspected; idle GPUs may give none."""


class TimedValue(NamedTuple):
    """One sample, in NVML's unit, the seconds that it stands for, and when it was taken (s on the
    driver's clock)."""

    value: float
    seconds: float
    at: float = 0.0


class SampleBuffer:
    """`nvmlDeviceGetSamples` of one kind, drained: each sample is given once."""

    def __init__(self, device: NvmlDevice, kind: int) -> None:
        self._device = device
        self._kind = kind
        self._last = 0  # microseconds, the driver's clock
        self._empty = 0  # looks without a new sample, one after the other

    def take(self) -> list[TimedValue]:
        """Samples since the last call, oldest first; none at the first, which sets the mark.

        Raises Absent where the buffer is not supported; an empty buffer is an empty list.
        """
        fresh = [s for s in self._newer_than(self._last) if s.timeStamp > self._last]
        taken = self._timed(fresh) if self._last else []
        self._empty = 0 if fresh else self._empty + 1
        if fresh:
            self._last = fresh[-1].timeStamp
        elif self._empty % PATIENCE == 0:
            self._follow_clock()
        return taken

    def _newer_than(self, mark: int) -> list[Any]:
        try:
            return list(self._device.get("Samples", self._kind, mark)[1])
        except Absent as absent:
            if absent.reason is Reason.UNKNOWN:  # NOT_FOUND: nothing newer
                return []
            raise

    def _follow_clock(self) -> None:
        """Where the driver's clock stepped back, go on from its newest sample."""
        newest = max((s.timeStamp for s in self._newer_than(0)), default=self._last)
        self._last = min(self._last, newest)

    def _timed(self, samples: list[Any]) -> list[TimedValue]:
        taken, before = [], self._last
        for sample in samples:
            seconds = (sample.timeStamp - before) / 1e6
            before = sample.timeStamp
            if 0 < seconds <= LONGEST_SAMPLE:
                value = float(sample.sampleValue.uiVal)
                taken.append(TimedValue(value, seconds, sample.timeStamp / 1e6))
        return taken
