"""GPU activity, measured with GPM, or on GPUs without GPM by the driver's utilization samples."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf

from agent.hardware.buffers import UTILISATION_SAMPLES, SampleBuffer
from agent.hardware.gpm import NO_GPM, NVLINK_UNIT, Gpm, GpmId
from agent.metrics import declared_beside
from agent.model import PERMANENT, Absent, Reason
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import SM_CLOCK, GpuContext

_METRICS = declared_beside(__file__)
ACTIVITY = _METRICS["dgx_gpu_activity_ratio"]
ACTIVE_SECONDS = _METRICS["dgx_gpu_active_seconds_total"]
SM_ACTIVE = _METRICS["dgx_gpu_sm_active_ratio"]
TENSOR_ACTIVE = _METRICS["dgx_gpu_tensor_active_ratio"]
TENSOR_THROUGHPUT = _METRICS["dgx_gpu_tensor_throughput_ratio"]
TENSOR_SECONDS = _METRICS["dgx_gpu_tensor_throughput_seconds_total"]
MEMORY_BANDWIDTH = _METRICS["dgx_gpu_memory_bandwidth_ratio"]
WINDOW_SM = _METRICS["dgx_gpu_window_sm_ratio"]
WINDOW_DRAM = _METRICS["dgx_gpu_window_dram_ratio"]
NVLINK_RATE = _METRICS["dgx_gpu_nvlink_payload_bytes_per_second"]

SHARES = {
    GpmId.GRAPHICS: ACTIVITY,
    GpmId.SM: SM_ACTIVE,
    GpmId.OCCUPANCY: _METRICS["dgx_gpu_sm_occupancy_ratio"],
    GpmId.TENSOR: TENSOR_ACTIVE,
    GpmId.DRAM: MEMORY_BANDWIDTH,
}
NVLINK_WAYS = {GpmId.NVLINK_TRANSMITTED: "transmit", GpmId.NVLINK_RECEIVED: "receive"}
ALL = (*SHARES.values(), ACTIVE_SECONDS, TENSOR_THROUGHPUT, TENSOR_SECONDS)


@dataclass(slots=True)
class ActivityFromGpm:
    """Reads the mean activity of a GPU between two GPM samples."""

    gpm: Gpm
    gpu: GpuContext
    _highest: float = 0.0  # maximum SM clock in MHz
    _clock: float | None = None  # MHz in the last reading; None if that failed
    _tensor: float = 0.0  # seconds of tensor core activity
    _throughput: float = 0.0  # the same time, weighted by the relative SM clock

    def read(self, out: ReadOutput) -> None:
        measurement = self.gpm.measurement()
        if measurement is None:
            out.pending = True
            return
        for which, metric in SHARES.items():
            out.ask(metric, partial(measurement.share, which))
        for which, way in NVLINK_WAYS.items():  # no values without NVLink
            if which in measurement.values:
                out.add(NVLINK_RATE, measurement.values[which] * NVLINK_UNIT, way)
        out.ask(ACTIVE_SECONDS, lambda: self.gpm.total(GpmId.GRAPHICS) / 100)
        try:
            clock = self._mean_clock()
            active = self.gpm.total(GpmId.TENSOR) / 100
            self._throughput += clock * (active - self._tensor)
            self._tensor = active
            out.add(TENSOR_THROUGHPUT, clock * measurement.value(GpmId.TENSOR) / 100)
            out.add(TENSOR_SECONDS, self._throughput)
        except Absent as absent:
            out.absent(TENSOR_THROUGHPUT, absent)
            out.absent(TENSOR_SECONDS, absent)

    def _mean_clock(self) -> float:
        """Return the SM clock as a fraction of its maximum. The result is based on the mean of the
        last two clock readings. Raise Absent if the current or maximum clock is unknown."""
        before, self._clock = self._clock, None
        if not self._highest:
            self._highest = self.gpu.device.number("MaxClockInfo", SM_CLOCK)
        if not self._highest:
            raise Absent(Reason.UNKNOWN, "nvmlDeviceGetMaxClockInfo gives 0 for the SM clock")
        self._clock = self.gpu.state.sm_clock
        if self._clock is None:
            self._clock = self.gpu.device.number("ClockInfo", SM_CLOCK)
        mean = self._clock if before is None else (before + self._clock) / 2
        return TENSOR_THROUGHPUT.checked(mean / self._highest)


@dataclass(slots=True)
class WindowFromGpm:
    """Measures SM and DRAM activity over about 100 ms while the GPU exchanges data with other GPUs.
    It measures once per second at first, and less often after eight measurements of a job."""

    gpm: Gpm
    taken: int = 0

    def interval(self) -> float:
        if not self.gpm.links_carry:
            return intervals.LINKS
        return intervals.ACTIVITY_BUSY if self.taken < 8 else intervals.WINDOWS

    def read(self, out: ReadOutput) -> None:
        if not self.gpm.links_carry:
            self.taken = 0
            return
        window = self.gpm.window()
        if window is None:
            out.pending = True
            return
        self.taken += 1
        # At an activity of 0.05 to 0.07, the ratios of two jobs on H100s were a sixth too high.
        if (active := window[0]) >= max(0.1, window[2]):
            out.add(WINDOW_SM, min(1.0, window[1] / active))
            out.add(WINDOW_DRAM, window[2] / active)


@dataclass(slots=True)
class ActivityFromSamples:
    """Computes activity from the driver's buffer of 200 ms utilization samples. If the driver has
    no such buffer, it integrates the utilization that NVML reports."""

    gpu: GpuContext
    _integral: Integral = field(
        default_factory=lambda: Integral(ACTIVE_SECONDS, 3 * intervals.TICK)
    )
    _buffer: SampleBuffer | None = None
    _buffered: bool | None = None  # None before the first buffer read
    _seconds: float = 0.0
    _activity: float = 0.0  # mean of the latest samples
    _at: float = -inf

    def interval(self) -> float:
        if self.gpu.state.has_processes or not self._buffered:
            return intervals.UTILISATION_BUSY
        return intervals.UTILISATION_IDLE

    def read(self, out: ReadOutput) -> None:
        if self._buffered is not False:
            try:
                self._read_buffer(out)
            except Absent as absent:
                if self._buffered or absent.reason not in PERMANENT:
                    raise
                self._buffered = False
        if not self._buffered:
            activity = self._utilization()
            out.add(ACTIVITY, activity)
            out.add(ACTIVE_SECONDS, self._integral.add(activity, out.at))
        for metric in ALL:
            if metric not in (ACTIVITY, ACTIVE_SECONDS):
                out.absent(metric, NO_GPM)

    def _read_buffer(self, out: ReadOutput) -> None:
        if self._buffer is None:
            self._buffer = SampleBuffer(self.gpu.device, UTILISATION_SAMPLES, ACTIVITY, 100)
            self._buffer.take()  # sets the position; raises without a buffer
        samples = self._buffer.take()
        self._buffered = True
        observed = sum(sample.seconds for sample in samples)
        active = sum(sample.value * sample.seconds for sample in samples)
        self._seconds += active
        if observed:
            self._activity, self._at = active / observed, out.at
        elif out.at - self._at > intervals.UTILISATION_IDLE:
            self._activity = self._utilization()
        out.add(ACTIVITY, self._activity)
        out.add(ACTIVE_SECONDS, self._seconds)

    def _utilization(self) -> float:
        return ACTIVITY.checked(self.gpu.device.get("UtilizationRates").gpu / 100)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the reads of a GPU: mean activity and, with GPM, activity over 100 ms."""
    samples, gpm = ActivityFromSamples(gpu_context), gpu_context.gpm
    run, every = samples.read, samples.interval
    if gpm is not None:
        run, every = ActivityFromGpm(gpm, gpu_context).read, gpu_context.gpm_interval
    yield gpu_context.read("activity", "mean", ALL, run, every, run_on_wake=True)
    if gpm is not None:
        of, window = (WINDOW_SM, WINDOW_DRAM), WindowFromGpm(gpm)
        yield gpu_context.read("activity", "window", of, window.read, window.interval)
