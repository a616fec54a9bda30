"""GPU Performance Monitoring (GPM) of Hopper and newer GPUs: means between two samples."""

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple

from agent.hardware.device import NvmlDevice
from agent.model import Absent, Reason, checked
from agent.ranges import FASTEST_PCIE, Range

SHORTEST_SECONDS = 0.15
"""Minimum number of seconds between two samples. NVML requires more than 100 ms. On an H200 (driver
580.159), the counters are refreshed every 100.0 ms. In a shorter measurement (2.5 to 20 ms), the
means are 0 or NaN unless it includes a refresh. A sample takes 0.12 to 0.3 ms of CPU time on this
GPU, and the means of twelve IDs take 1.3 to 1.5 ms."""

WINDOW = 0.1  # Interval (s) at which counters are refreshed

PCIE_UNIT = 1_054_800.0
"""Bytes of wire traffic in one unit of GPM's PCIe metrics. NVML documents the unit as MiB, but the
byte counters of two H100s yield 1.0547e6 and 1.0548e6. With this unit, copies to the GPU have 1.078
times as much traffic as payload, and copies from the GPU have 1.094 times as much (20 and 24 bytes
of overhead per 256 bytes).
"""

NVLINK_UNIT = 1_024_000.0
"""Bytes in one unit of GPM's NVLink metrics, also documented as MiB (measured on H200 GPUs)."""


class GpmId(IntEnum):
    """Metric IDs of `nvmlGpmMetricsGet`.

    IDs 100 to 103 (C2C traffic) are omitted, because their unit is unknown. NVML documents it as
    MiB, as for PCIe and NVLink, where it is wrong. No Grace system was available to measure it.
    """

    GRAPHICS = 1  # %
    SM = 2  # %
    OCCUPANCY = 3  # %
    TENSOR = 5  # %
    DRAM = 10  # % of the memory bandwidth
    PCIE_TRANSMITTED = 20  # PCIE_UNIT per second
    PCIE_RECEIVED = 21
    NVLINK_RECEIVED = 60  # NVLINK_UNIT of payload per second
    NVLINK_TRANSMITTED = 61


NVLINK_WAYS = GpmId.NVLINK_RECEIVED, GpmId.NVLINK_TRANSMITTED

COUNTABLE = {
    GpmId.GRAPHICS: Range(0, 105),
    GpmId.TENSOR: Range(0, 105),
    GpmId.PCIE_TRANSMITTED: Range(0, FASTEST_PCIE / PCIE_UNIT),
    GpmId.PCIE_RECEIVED: Range(0, FASTEST_PCIE / PCIE_UNIT),
}
"""Valid ranges of the metrics that are integrated over time. Other values are driver errors."""

NO_GPM = Absent(Reason.UNSUPPORTED, "needs GPM (data-centre GPUs, Hopper and newer)")

IN_WINDOW = GpmId.GRAPHICS, GpmId.SM, GpmId.DRAM
"""Metrics that `Gpm.window` measures. Each metric takes 0.1 ms of CPU time."""


class Measurement(NamedTuple):
    """Mean values of GPM metrics for the `seconds` before time `at` (monotonic). Metrics that GPM
    did not report are omitted. The values may be outside the ranges of their metrics."""

    at: float
    seconds: float
    values: dict[GpmId, float]

    def value(self, metric: GpmId) -> float:
        """Return the mean of a metric in GPM's unit. Raise Absent if it is missing or invalid."""
        try:
            return self.values[metric]
        except KeyError:
            raise Absent(Reason.UNKNOWN, f"GPM gives no usable {metric.name}") from None

    def share(self, metric: GpmId) -> float:
        """Return the mean of a percentage metric as a fraction (0-1). Raise Absent if missing."""
        return self.value(metric) / 100


class Gpm:
    """Reads GPM metrics of a GPU or a MIG GPU instance. The end of a measurement is the start of
    the next, so two samples suffice. A third one ends a `window`. Raises Absent if GPM fails."""

    def __init__(
        self, device: NvmlDevice, now: Callable[[], float], instance: int | None = None
    ) -> None:
        self._device = device
        self._now = now
        if not getattr(device.ask("nvmlGpmQueryDeviceSupport"), "isSupportedDevice", False):
            raise Absent(Reason.UNSUPPORTED, "nvmlGpmQueryDeviceSupport: this GPU has no GPM")
        self._questions: dict[tuple[GpmId, ...], Any] = {}
        """NVML request structures by metrics. Filling one in takes as long as the call."""
        library = device.nvml.library
        for metrics in (tuple(GpmId), IN_WINDOW):
            question = self._questions[metrics] = library.c_nvmlGpmMetricsGet_t()
            question.version = library.NVML_GPM_METRICS_GET_VERSION
            question.numMetrics = len(metrics)
            for slot, metric in zip(question.metrics, metrics, strict=False):
                slot.metricId = metric
        self._take = partial(device.ask, "nvmlGpmSampleGet")
        if instance is not None:
            self._take = partial(device.ask, "nvmlGpmMigSampleGet", instance)
        self._samples: list[Any] = []
        device.releases.add(self.close)
        try:
            for _ in range(3):
                self._samples.append(device.nvml.call("nvmlGpmSampleAlloc"))
            self._older, self._newer, self._third = self._samples
            self._take(self._older)
        except Absent:
            self.close()
            raise
        self._since = now()
        self.latest: Measurement | None = None
        self._failure: Absent | None = None  # why the last attempt failed
        self._tried = -inf
        self._totals = dict.fromkeys(COUNTABLE, 0.0)

    def close(self) -> None:
        self._device.releases.discard(self.close)
        while self._samples:
            with suppress(Absent):  # the driver may be gone, and its memory with it
                self._device.nvml.call("nvmlGpmSampleFree", self._samples.pop())

    def measurement(self) -> Measurement | None:
        """Return the measurement of this tick, which all sources share. It covers the time since
        the previous measurement. Return None if that was too recent. Raise Absent if it failed."""
        now = self._now()
        if now - self._tried < 0.5:  # in the same tick
            if self._failure is not None:
                raise self._failure.without_traceback()
            return self.latest
        if now - self._since < SHORTEST_SECONDS:
            return None
        self._tried = now
        try:
            self._take(self._newer)
            values = self._means(tuple(GpmId), self._newer)
        except Absent as absent:
            self.latest, self._failure = None, absent.without_traceback()
            raise
        measurement = Measurement(now, now - self._since, values)
        for which, possible in COUNTABLE.items():
            if possible.low <= values.get(which, nan) <= possible.high:
                self._totals[which] += values[which] * measurement.seconds
        self._older, self._newer = self._newer, self._older
        self._since, self.latest, self._failure = now, measurement, None
        return measurement

    def total(self, which: GpmId) -> float:
        """Return the integral of a metric over all measurements, in GPM units times seconds. Raise
        Absent if the latest measurement has no valid value for the metric."""
        if self.latest is not None:
            checked(self.latest.value(which), COUNTABLE[which], f"GPM metric {which:d}")
        return self._totals[which]

    @property
    def links_carry(self) -> bool:
        """Whether the GPU's NVLinks carry at least 1 MB/s, as in a job on several GPUs."""
        values = self.latest.values if self.latest is not None else {}
        return max(values.get(way, 0.0) for way in NVLINK_WAYS) >= 1.0

    def window(self) -> tuple[float, ...] | None:
        """Return the mean graphics, SM, and DRAM activity (0-1) since the latest measurement. An
        unknown value is NaN. Return None if that was too recent. Raise Absent if GPM fails."""
        if self._now() - self._since < WINDOW:
            return None
        self._take(self._third)
        values = self._means(IN_WINDOW, self._third)
        return tuple(values.get(one, nan) / 100 for one in IN_WINDOW)

    def _means(self, metrics: tuple[GpmId, ...], newer: Any) -> dict[GpmId, float]:
        question = self._questions[metrics]
        question.sample1, question.sample2 = self._older, newer
        self._device.nvml.call("nvmlGpmMetricsGet", question)
        return {
            metric: slot.value
            for metric, slot in zip(metrics, question.metrics, strict=False)
            if not slot.nvmlReturn
        }
