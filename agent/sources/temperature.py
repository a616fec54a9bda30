"""GPU temperatures, their limits, the margin to the limit, and the fans on the GPU board."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.nvml import unless_final
from agent.metrics import declared_beside
from agent.model import FINAL, PERMANENT, Absent, Figure, Labels, Reason, checked
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import Range
from agent.series import SampleStore
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
TEMPERATURE = _METRICS["dgx_gpu_temperature_celsius"]
MEMORY_TEMPERATURE = _METRICS["dgx_gpu_memory_temperature_celsius"]
LIMIT = _METRICS["dgx_gpu_temperature_limit_celsius"]
MARGIN = _METRICS["dgx_gpu_temperature_margin_celsius"]
FAN = _METRICS["dgx_gpu_fan_ratio"]

CORE = 0  # The only member of `nvmlTemperatureSensors_t`
SLOWDOWN, OPERATING = "slowdown", "operating"


def core_and_limit(samples: SampleStore, labels: Labels) -> list[Figure]:
    """Return a figure with a GPU's core temperature and its limit, or none if one is unknown. It is
    named `cool_core` if the core is 10 degrees Celsius below its limit, and so is not the part that
    is too hot, and `core` otherwise."""
    core, limit = samples.value(TEMPERATURE, *labels), samples.value(LIMIT, *labels, SLOWDOWN)
    if core is None or limit is None:
        return []
    name = "cool_core" if core <= limit - 10.0 else "core"
    operating = samples.value(LIMIT, *labels, OPERATING)
    return [Figure(name, core, limit if operating is None else operating, "celsius")]


def core_temperature(device: NvmlDevice) -> float:
    """Return the core temperature in degrees Celsius, with a deprecated call on older drivers."""
    try:
        return device.number("TemperatureV", CORE)
    except Absent as absent:
        if absent.reason not in PERMANENT:
            raise
        return device.number("Temperature", CORE)


def _limit(device: NvmlDevice) -> float | Absent:
    """Return the maximum operating temperature, or the slowdown temperature if it is unknown."""
    limit: float | Absent = Absent(Reason.UNSUPPORTED, "no threshold answered")
    for which in (1, 3):  # `nvmlTemperatureThresholds_t`: slowdown, maximum operating temperature
        try:
            limit = LIMIT.checked(device.number("TemperatureThreshold", which))
        except Absent as absent:
            if absent.reason in FINAL:
                raise
    return limit


def _fans(device: NvmlDevice) -> Iterator[GpuRow]:
    """Yield a GPU row for each fan. If the number of fans is unknown, yield one row."""

    def count() -> int:
        return int(checked(device.get("NumFans"), Range(0, 16), "nvmlDeviceGetNumFans"))

    for fan in range(unless_final(count, otherwise=1)):
        yield GpuRow(FAN, ("FanSpeed_v2", fan), (str(fan),), per=100)


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the temperature and fan reads of a GPU. The core temperature is read every tick."""
    device, both = gpu_context.device, (TEMPERATURE, MARGIN)
    limit: float | Absent | None = None  # queried in the first read of the core

    def core(out: ReadOutput) -> None:
        nonlocal limit
        celsius = TEMPERATURE.checked(core_temperature(device))
        out.add(TEMPERATURE, celsius)
        limit = _limit(device) if limit is None else limit
        out.add(MARGIN, limit if isinstance(limit, Absent) else limit - celsius)

    yield gpu_context.read("temperature", "core", both, core, intervals.TICK)
    yield from gpu_context.declared("temperature", _METRICS)
    fans = partial(_fans, device)
    yield gpu_context.table("temperature", "fans", (FAN,), intervals.FANS, fans)
