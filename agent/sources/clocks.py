"""Clocks, performance states, and the seconds for which each throttle reason held them down."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from agent.hardware.device import NvmlDevice
from agent.hardware.fields import FieldId
from agent.model import GPU_LABELS, Absent, Reason, counter, gauge, internal
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.field_rows import FieldRow, FieldRows
from agent.polling.reads import PERMANENT, Read, ReadOutput, ValueRow
from agent.ranges import STEPWISE, Range
from agent.sources.gpu_context import GpuContext

HERTZ = Range(0, 1e10)
CLOCK = gauge(
    "dgx_gpu_clock_hertz",
    "Clock now, in hertz; it falls when the GPU idles.",
    "nvmlDeviceGetClockInfo",
    (*GPU_LABELS, "clock"),
    HERTZ,
)
CLOCK_LIMIT = gauge(
    "dgx_gpu_clock_limit_hertz",
    "Highest clock of this GPU, in hertz.",
    "nvmlDeviceGetMaxClockInfo",
    (*GPU_LABELS, "clock"),
    HERTZ,
)
PERFORMANCE_STATE = gauge(
    "dgx_gpu_performance_state",
    "Performance state: 0 (P0) is the fastest, 15 the slowest. Data centre GPUs stay at 0; on "
    "others a higher one under load means clocks that are held down.",
    "nvmlDeviceGetPerformanceState",
    GPU_LABELS,
    Range(0, 15),
)
THROTTLE = counter(
    "dgx_gpu_throttle_seconds_total",
    "Seconds for which the clocks were held down, by reason. Reasons overlap; power_cap is normal "
    "while the clocks stay high. From the driver's counters where it has one, else the reason "
    "bits seen at each tick.",
    "nvmlDeviceGetFieldValues 74-79 and 269-271 (driver 580.82 and newer), else "
    "nvmlDeviceGetCurrentClocksEventReasons",
    (*GPU_LABELS, "reason"),
    fastest=STEPWISE,
)
REASONS = internal(
    "dgx_gpu_throttle_state",
    "What holds the clocks down now, as NVML's mask of bits.",
    "nvmlDeviceGetCurrentClocksEventReasons (older drivers: ...ThrottleReasons)",
    GPU_LABELS,
    Range(0, 0xFFFF),
)

CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
"""Label `clock` to `nvmlClockType_t`."""

MHZ = 1e6

APPLICATION_CLOCKS = 0x2
"""Bit of the mask: the clocks stand where somebody set them (nvidia-smi -ac or -lgc)."""


class Throttle(NamedTuple):
    """One reason: its bit in the event mask and the field that counts its nanoseconds, if any."""

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


def _clock(device: NvmlDevice, call: str, which: int) -> float:
    return device.number(call, which) * MHZ


def _sm_clock(device: NvmlDevice) -> float:
    """The clock of each tick, which the throughput of the tensor cores needs too."""
    device.sm_clock = None  # where the call raises
    device.sm_clock = device.number("ClockInfo", CLOCKS["sm"])
    return device.sm_clock * MHZ


def _clock_rows(names: tuple[str, ...], of_limits: bool) -> tuple[ValueRow[NvmlDevice], ...]:
    metric, call = (CLOCK_LIMIT, "MaxClockInfo") if of_limits else (CLOCK, "ClockInfo")
    return tuple(
        ValueRow[NvmlDevice](metric, partial(_clock, call=call, which=CLOCKS[name]), (name,))
        for name in names
    )


NOW = (ValueRow[NvmlDevice](CLOCK, _sm_clock, ("sm",)),)
SLOWER = (
    *_clock_rows(("graphics", "memory", "video"), of_limits=False),
    ValueRow[NvmlDevice](PERFORMANCE_STATE, lambda d: d.number("PerformanceState")),
)
LIMITS = _clock_rows(tuple(CLOCKS), of_limits=True)


def event_reasons(device: NvmlDevice) -> int:
    """The mask of reasons that hold the clocks down now; the older symbol on older drivers."""
    try:
        mask = device.number("CurrentClocksEventReasons")
    except Absent as absent:
        if absent.reason is not Reason.DRIVER:
            raise
        mask = device.number("CurrentClocksThrottleReasons")
    return int(REASONS.checked(mask))


class ThrottleReasons:
    """The event mask each tick; reasons without a counter of their own are integrated from it."""

    def __init__(self, device: NvmlDevice, integrated: tuple[Throttle, ...]) -> None:
        self._device = device
        self._integrals = {t: Integral(THROTTLE, 3 * intervals.TICK) for t in integrated if t.bit}

    def read(self, out: ReadOutput) -> None:
        mask = event_reasons(self._device)
        out.add(REASONS, mask)
        for throttle, integral in self._integrals.items():
            active = bool(mask & throttle.bit)
            out.add(THROTTLE, integral.add(float(active), out.at), throttle.reason)


def _counters(device: NvmlDevice, counted: tuple[Throttle, ...]) -> FieldRows:
    """The driver's counters of throttled nanoseconds."""
    rows = [
        FieldRow((throttle.field, 0), THROTTLE, (throttle.reason,), 1e-9)
        for throttle in counted
        if throttle.field is not None
    ]
    return FieldRows(device, rows)


def _split(gpu_context: GpuContext) -> tuple[tuple[Throttle, ...], tuple[Throttle, ...]]:
    """Reasons that the driver counts, and reasons that only the mask shows."""
    asked = [t for t in THROTTLES if t.field is not None]
    answers = gpu_context.device.fields([(t.field, 0) for t in asked if t.field is not None])
    reasons = {t: a.reason for t, a in zip(asked, answers, strict=True) if isinstance(a, Absent)}
    refused = {t for t, reason in reasons.items() if reason in PERMANENT}
    if len(refused) < len(reasons):
        gpu_context.state.doubt()
    counted = tuple(t for t in asked if t not in refused or not t.bit)
    return counted, tuple(t for t in THROTTLES if t not in counted)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of one GPU."""
    device = gpu_context.device
    counted, integrated = _split(gpu_context)
    yield gpu_context.table("clocks", "now", NOW, intervals.TICK)
    yield gpu_context.read(
        "clocks",
        "reasons",
        (REASONS, THROTTLE),
        ThrottleReasons(device, integrated).read,
        intervals.TICK,
    )
    yield gpu_context.read(
        "clocks", "throttle", (THROTTLE,), _counters(device, counted).read, intervals.THROTTLE
    )
    yield gpu_context.table("clocks", "slower", SLOWER, intervals.THROTTLE)
    yield gpu_context.table("clocks", "limits", LIMITS, intervals.TOPOLOGY)
