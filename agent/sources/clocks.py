"""GPU clocks, performance states, and the seconds for which clocks were throttled, by reason."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.hardware.device import NvmlDevice
from agent.metrics import declared_beside
from agent.model import PERMANENT, Absent, Reason
from agent.polling import intervals
from agent.polling.counters import Integral
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.sources.context import SM_CLOCK, GpuContext

_METRICS = declared_beside(__file__)
CLOCK = _METRICS["dgx_gpu_clock_hertz"]
CLOCK_LIMIT = _METRICS["dgx_gpu_clock_limit_hertz"]
THROTTLE = _METRICS["dgx_gpu_throttle_seconds_total"]
REASONS = _METRICS["dgx_gpu_throttle_state"]

KNOWN_REASONS, UNKNOWN = 0x1FF, "unknown"
"""KNOWN_REASONS: mask of the reasons in nvml.h. UNKNOWN: the reason reported for other bits."""

APPLICATION_CLOCKS = 0x2
"""Bit of the event mask: an administrator has limited the clocks (nvidia-smi -ac or -lgc)."""


class Throttle(NamedTuple):
    """A throttle reason: its bit in the event mask, and the field ID of its counter (0 if none)."""

    reason: str
    bit: int = 0
    field: int = 0


THROTTLES = tuple(Throttle(name, **row) for name, row in _METRICS.kinds[THROTTLE.name].items())


def event_reasons(device: NvmlDevice) -> int:
    """Return the bit mask of current throttle reasons, with an older NVML call if necessary."""
    try:
        mask = device.number("CurrentClocksEventReasons")
    except Absent as absent:
        if absent.reason is not Reason.DRIVER:
            raise
        mask = device.number("CurrentClocksThrottleReasons")
    return int(REASONS.checked(mask))


class Throttling:
    """Reads the event mask every tick, and the driver's counters of throttled nanoseconds. If the
    driver has no counter for a reason, its time is integrated from the mask."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._integrals = {t: Integral(THROTTLE, 3 * intervals.TICK) for t in THROTTLES if t.bit}
        self._unknown = Integral(THROTTLE, 3 * intervals.TICK)
        self._refused: set[Throttle] | None = None  # None before the first counter read

    def read_mask(self, out: ReadOutput) -> None:
        mask = event_reasons(self._device)
        out.add(REASONS, mask)
        unknown = self._unknown.add(float(mask > KNOWN_REASONS), out.at)
        if unknown:
            out.add(THROTTLE, unknown, UNKNOWN)
        for throttle, integral in self._integrals.items():
            seconds = integral.add(float(bool(mask & throttle.bit)), out.at)
            if self._refused is not None and (not throttle.field or throttle in self._refused):
                out.add(THROTTLE, seconds, throttle.reason)

    def read_counters(self, out: ReadOutput) -> None:
        asked = {one: (one.field, 0) for one in THROTTLES if one.field}
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
    """Yield the reads of a GPU's clocks and throttle reasons."""
    throttling, both = Throttling(gpu_context.device), (REASONS, THROTTLE)
    state, counters = gpu_context.state, throttling.read_counters

    def sm_clock(device: NvmlDevice) -> float:
        """Return the SM clock (MHz), and store it for the computation of tensor throughput."""
        state.sm_clock = None  # stays None if the call raises an error
        state.sm_clock = device.number("ClockInfo", SM_CLOCK)
        return state.sm_clock

    now = GpuRow(CLOCK, sm_clock, ("sm",), times=1e6)
    yield gpu_context.rows("clocks", "now", intervals.TICK, now)
    yield gpu_context.read("clocks", "reasons", both, throttling.read_mask, intervals.TICK)
    yield gpu_context.read("clocks", "counters", (THROTTLE,), counters, intervals.THROTTLE)
    yield from gpu_context.declared("clocks", _METRICS)
