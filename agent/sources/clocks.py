"""Clocks, performance states, and the seconds for which each throttle reason held them down."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.model import (
    GPU_LABELS,
    PERMANENT,
    Absent,
    GpuMetric,
    InDefault,
    Metric,
    Reason,
    counter,
    gauge,
)
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import STEPWISE, Range
from agent.sources.context import GpuContext

HERTZ = Range(0, 1e10)
CLOCK = gauge(
    "dgx_gpu_clock_hertz",
    "Current clock in hertz; it falls when the GPU is idle.",
    "nvmlDeviceGetClockInfo",
    (*GPU_LABELS, "clock"),
    HERTZ,
    shown=InDefault.WHICH,
    which=lambda labels: "sm" in labels,
)
CLOCK_LIMIT = gauge(
    "dgx_gpu_clock_limit_hertz",
    "Highest clock of this GPU, in hertz.",
    "nvmlDeviceGetMaxClockInfo",
    (*GPU_LABELS, "clock"),
    HERTZ,
    shown=InDefault.WHICH,
    which=lambda labels: "sm" in labels,
)
PERFORMANCE_STATE = GpuMetric.gauge(
    "dgx_gpu_performance_state",
    "Performance state: 0 (P0) is the fastest, 15 the slowest. Data centre GPUs stay at 0; on "
    "others a higher one under load means reduced clocks.",
    "nvmlDeviceGetPerformanceState",
    possible=Range(0, 15),
    shown=InDefault.FULL,
)
THROTTLE = counter(
    "dgx_gpu_throttle_seconds_total",
    "Seconds for which the clocks were held down, by reason. Reasons overlap; power_cap is normal "
    "while the clocks stay high. From the driver's counters if it has them, else from the reason "
    "bits at each tick.",
    "nvmlDeviceGetFieldValues 74-79 and 269-271 (driver 580.82 and newer), else "
    "nvmlDeviceGetCurrentClocksEventReasons",
    (*GPU_LABELS, "reason"),
    fastest=STEPWISE,
    shown=InDefault.MOVED,
    parts=("reason",),
)
REASONS = GpuMetric.internal(
    "dgx_gpu_throttle_state",
    "What holds the clocks down now, as NVML's mask of bits.",
    "nvmlDeviceGetCurrentClocksEventReasons (older drivers: ...ThrottleReasons)",
    possible=Range(0, 1 << 53),
)

CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # Label `clock` to `nvmlClockType_t`

MHZ, STATE = 1e6, "PerformanceState"

KNOWN_REASONS, UNKNOWN = 0x1FF, "unknown"
"""Bits of the mask that NVML's header names, and the reason for all others."""

APPLICATION_CLOCKS = 0x2
"""Bit of the mask: somebody set the clocks (nvidia-smi -ac or -lgc)."""


class Throttle(NamedTuple):
    """A reason: its bit in the event mask and the field that counts its nanoseconds, if any."""

    reason: str
    bit: int
    field: FieldId | None


THROTTLES = (
    Throttle("power_cap", 0x4, FieldId.POWER_CAP_TIME),
    Throttle("sync_boost", 0x10, FieldId.SYNC_BOOST_TIME),
    Throttle("software_thermal", 0x20, FieldId.SOFTWARE_THERMAL_TIME),
    Throttle("hardware_thermal", 0x40, FieldId.HARDWARE_THERMAL_TIME),
    Throttle("power_brake", 0x80, FieldId.POWER_BRAKE_TIME),
    Throttle("hardware_slowdown", 0x8, None),
    Throttle("board_limit", 0, FieldId.BOARD_LIMIT_TIME),
    Throttle("reliability", 0, FieldId.RELIABILITY_TIME),
)


def event_reasons(device: NvmlDevice) -> int:
    """The mask of reasons that hold the clocks down now; the older symbol on older drivers."""
    try:
        mask = device.number("CurrentClocksEventReasons")
    except Absent as absent:
        if absent.reason is not Reason.DRIVER:
            raise
        mask = device.number("CurrentClocksThrottleReasons")
    return int(REASONS.checked(mask))


class Throttling:
    """The event mask every tick, and the driver's counters of throttled nanoseconds. A reason that
    has no counter, or whose counter this driver refuses, is integrated from the mask."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._integrals = {t: Integral(THROTTLE, 3 * intervals.TICK) for t in THROTTLES if t.bit}
        self._unknown = Integral(THROTTLE, 3 * intervals.TICK)
        self._refused: set[Throttle] | None = None  # None before the counters were asked

    def read_mask(self, out: ReadOutput) -> None:
        mask = event_reasons(self._device)
        out.add(REASONS, mask)
        unknown = self._unknown.add(float(mask > KNOWN_REASONS), out.at)
        if unknown:
            out.add(THROTTLE, unknown, UNKNOWN)
        for throttle, integral in self._integrals.items():
            seconds = integral.add(float(bool(mask & throttle.bit)), out.at)
            if self._refused is not None and (throttle.field is None or throttle in self._refused):
                out.add(THROTTLE, seconds, throttle.reason)

    def read_counters(self, out: ReadOutput) -> None:
        asked = {throttle: (throttle.field, 0) for throttle in THROTTLES if throttle.field}
        refused: set[Throttle] = set()
        for throttle, answer in zip(asked, self._device.fields([*asked.values()]), strict=True):
            if isinstance(answer, Absent):
                if answer.reason in PERMANENT and throttle.bit:
                    refused.add(throttle)
                    continue
                out.absent(THROTTLE, answer, throttle.reason)
            else:
                out.add(THROTTLE, answer * 1e-9, throttle.reason)
        self._refused = refused


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of a GPU."""
    throttling, both = Throttling(gpu_context.device), (REASONS, THROTTLE)
    state = gpu_context.state

    def sm_clock(device: NvmlDevice) -> float:
        """The clock of each tick, which the throughput of the tensor cores needs too."""
        state.sm_clock = None  # if the call raises
        state.sm_clock = device.number("ClockInfo", CLOCKS["sm"])
        return state.sm_clock

    def clock(name: str, metric: Metric = CLOCK, call: str = "ClockInfo") -> GpuRow:
        return GpuRow(metric, (call, CLOCKS[name]), (name,), times=MHZ)

    now = GpuRow(CLOCK, sm_clock, ("sm",), times=MHZ)
    slower = (*map(clock, ("graphics", "memory", "video")), GpuRow(PERFORMANCE_STATE, STATE))
    limits = (clock(name, CLOCK_LIMIT, "MaxClockInfo") for name in CLOCKS)
    yield gpu_context.rows("clocks", "now", intervals.TICK, now)
    yield gpu_context.read("clocks", "reasons", both, throttling.read_mask, intervals.TICK)
    yield gpu_context.read(
        "clocks", "throttle", (THROTTLE,), throttling.read_counters, intervals.THROTTLE
    )
    yield gpu_context.rows("clocks", "slower", intervals.THROTTLE, *slower)
    yield gpu_context.rows("clocks", "limits", intervals.TOPOLOGY, *limits)
