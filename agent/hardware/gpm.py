"""GPM, the GPU performance monitor of Hopper and newer: means between two samples."""

from collections.abc import Callable, Collection
from contextlib import suppress
from enum import IntEnum
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple

from agent.hardware.device import NvmlDevice
from agent.model import Absent, Reason, checked
from agent.ranges import FASTEST_PCIE, Range

SHORTEST_SECONDS = 0.15
"""Two samples closer than this (s) give no mean: NVML asks for more than 100 ms, and nothing
shorter exists. On an H200 (driver 580.159) the counters are refreshed every 100.0 ms: of windows of
2.5, 5, 10 and 20 ms only the window that contains the refresh reads a value, all others 0 or NaN.
There a sample costs 0.12 to 0.3 ms, and the means of two, with twelve ids, 1.3 to 1.5 ms of CPU."""

WINDOW = 0.1  # Seconds in which the counters advance once

SAME_TICK = 0.5
"""Seconds for which a measurement serves all sources of its GPU; the next tick measures again."""

PCIE_UNIT = 1_054_800.0
"""Bytes of wire traffic in a unit of GPM's PCIe figures, which NVML documents as MiB.

Measured on two H100s against the GPU's own byte counters: 1.0547e6 and 1.0548e6. With it a copy to
the GPU reads 1.078 of its payload and a copy from the GPU 1.094: 20 and 24 bytes around each 256.
"""

NVLINK_UNIT = 1_024_000.0
"""Bytes in a unit of GPM's NVLink figures, documented as MiB too; measured on H200s."""


class GpmId(IntEnum):
    """`nvmlGpmMetricsGet` ids.

    100 to 103, traffic of C2C, are left out: NVML documents them in MiB, as it does those of PCIe
    and NVLink, whose units measured otherwise; there was no GPU with a Grace to measure on.
    """

    GRAPHICS = 1  # %
    SM = 2  # %
    OCCUPANCY = 3  # %
    TENSOR = 5  # %
    DRAM = 10  # % of the memory bandwidth
    PCIE_TRANSMITTED = 20  # PCIE_UNIT a second
    PCIE_RECEIVED = 21
    NVLINK_RECEIVED = 60  # NVLINK_UNIT a second, payload
    NVLINK_TRANSMITTED = 61


NVLINK_WAYS = GpmId.NVLINK_RECEIVED, GpmId.NVLINK_TRANSMITTED

COUNTABLE = {
    GpmId.GRAPHICS: Range(0, 105),
    GpmId.TENSOR: Range(0, 105),
    GpmId.PCIE_TRANSMITTED: Range(0, FASTEST_PCIE / PCIE_UNIT),
    GpmId.PCIE_RECEIVED: Range(0, FASTEST_PCIE / PCIE_UNIT),
}
"""The means that are summed up, and their possible values: any other is the driver's mistake."""


NO_GPM = Absent(Reason.UNSUPPORTED, "needs GPM (data-centre GPUs, Hopper and newer)")


IN_WINDOW = GpmId.GRAPHICS, GpmId.SM, GpmId.DRAM
"""The means of a window: each costs 0.1 ms of CPU."""


def _question(library: Any, metrics: Collection[GpmId]) -> Any:
    """Return the part of a request that never changes, without the samples: writing it costs as
    much as asking."""
    question: Any = library.c_nvmlGpmMetricsGet_t()
    question.version = library.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(metrics)
    for slot, metric in zip(question.metrics, metrics, strict=False):
        slot.metricId = metric
    return question


class Measurement(NamedTuple):
    """Means over the `seconds` that ended at `at` (monotonic), as GPM gives them; the caller checks
    a value as a reading of its metric. Absent ids have no value."""

    at: float
    seconds: float
    values: dict[GpmId, float]

    def value(self, metric: GpmId) -> float:
        """A mean, in GPM's unit; raises Absent."""
        try:
            return self.values[metric]
        except KeyError:
            raise Absent(Reason.UNKNOWN, f"GPM gives no usable {metric.name}") from None

    def share(self, metric: GpmId) -> float | Absent:
        """A mean in percent as a share of 1, or why there is none."""
        try:
            return self.value(metric) / 100
        except Absent as absent:
            return absent.without_traceback()


class Gpm:
    """The two samples of a GPU, or of a GPU instance under MIG, taken in turns, and a third that
    ends a window. Raises Absent if GPM does not answer."""

    def __init__(
        self, device: NvmlDevice, now: Callable[[], float], instance: int | None = None
    ) -> None:
        self._device = device
        self._now = now
        if not getattr(device.ask("nvmlGpmQueryDeviceSupport"), "isSupportedDevice", False):
            raise Absent(Reason.UNSUPPORTED, "nvmlGpmQueryDeviceSupport: this GPU has no GPM")
        self._questions = {
            metrics: _question(device.nvml.library, metrics)
            for metrics in (tuple(GpmId), IN_WINDOW)
        }
        self._take = partial(device.ask, "nvmlGpmSampleGet")
        if instance is not None:
            self._take = partial(device.ask, "nvmlGpmMigSampleGet", instance)
        self._samples: list[Any] = []
        device.on_close(self.close)
        try:
            self._older = self._sample()
            self._newer = self._sample()
            self._third = self._sample()
            self._take(self._older)
        except Absent:
            self.close()
            raise
        self._since = now()
        self.latest: Measurement | None = None
        self._failure: Absent | None = None  # why the last attempt gave nothing
        self._tried = -inf
        self._totals = dict.fromkeys(COUNTABLE, 0.0)

    def _sample(self) -> Any:
        self._samples.append(self._device.nvml.call("nvmlGpmSampleAlloc"))
        return self._samples[-1]

    def close(self) -> None:
        self._device.released(self.close)
        while self._samples:
            with suppress(Absent):  # the driver may be gone, and its memory with it
                self._device.nvml.call("nvmlGpmSampleFree", self._samples.pop())

    def measurement(self) -> Measurement | None:
        """Return the measurement of this tick: another source's of a moment ago, or the means since
        the last measurement; None if too little time has passed. Raises Absent."""
        now = self._now()
        if now - self._tried < SAME_TICK:
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
        """The integral of a mean, in GPM's unit times seconds, over all measurements of all
        sources; raises Absent if the last measurement lacks it, or has an impossible value."""
        if self.latest is not None:
            checked(self.latest.value(which), COUNTABLE[which], f"GPM metric {which:d}")
        return self._totals[which]

    @property
    def links_carry(self) -> bool:
        """Whether NVLink carried a megabyte a second, as between the GPUs of a job."""
        values = self.latest.values if self.latest is not None else {}
        return max(values.get(way, 0.0) for way in NVLINK_WAYS) >= 1.0

    def window(self) -> tuple[float, ...] | None:
        """Return activity, and SM and DRAM activity (0-1), since the newest measurement: NaN if
        unknown, None if too little time has passed. Raises Absent."""
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
