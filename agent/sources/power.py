"""Power and energy."""

from collections.abc import Iterator

from agent.hardware.buffers import POWER_SAMPLES, SampleBuffer
from agent.model import PERMANENT, Absent, GpuMetric, InDefault, TimedSeries
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.ranges import Range
from agent.sources.context import GpuContext

MOST_WATTS = 5_000.0  # No board draws more

WATTS = Range(0, MOST_WATTS)

POWER = GpuMetric.gauge(
    "dgx_gpu_power_watts",
    "Power drawn by the board in watts: a mean over one second on Hopper and newer, instantaneous "
    "on A100 and older.",
    "nvmlDeviceGetPowerUsage",
    possible=WATTS,
)
POWER_LIMIT = GpuMetric.gauge(
    "dgx_gpu_power_limit_watts",
    "Enforced power limit in watts.",
    "nvmlDeviceGetEnforcedPowerLimit",
    possible=WATTS,
)
DEFAULT_LIMIT = GpuMetric.gauge(
    "dgx_gpu_power_default_limit_watts",
    "Default power limit of the board in watts; if dgx_gpu_power_limit_watts is lower, it was "
    "lowered.",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    possible=WATTS,
    shown=InDefault.FULL,
)
ENERGY = GpuMetric.counter(
    "dgx_gpu_energy_joules_total",
    "Energy used in joules since the driver was loaded; on GPUs without an energy counter the "
    "driver's 50 Hz power samples, integrated since the agent started.",
    "nvmlDeviceGetTotalEnergyConsumption, else nvmlDeviceGetSamples(TOTAL_POWER)",
    fastest=MOST_WATTS,
)

SAMPLES = GpuMetric.internal(
    "dgx_gpu_power_samples_watts",
    "Power drawn by the board in watts, a sample every 20 ms; read while a process is on the GPU.",
    "nvmlDeviceGetSamples(TOTAL_POWER)",
    possible=WATTS,
)


MILLI = 1e3
TABLES = {
    ("draw", intervals.TICK): (GpuRow(POWER, "PowerUsage", per=MILLI),),
    ("limit", intervals.THROTTLE): (GpuRow(POWER_LIMIT, "EnforcedPowerLimit", per=MILLI),),
    ("board", intervals.TOPOLOGY): (
        GpuRow(DEFAULT_LIMIT, "PowerManagementDefaultLimit", per=MILLI),
    ),
}


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """The reads of a GPU. The driver's 20 ms samples are read without a gap while a process is on
    it; without a counter of energy they serve for that too, always."""
    for (part, every), rows in TABLES.items():
        yield gpu_context.rows("power", part, every, *rows)
    buffer = SampleBuffer(gpu_context.device, POWER_SAMPLES, SAMPLES, MILLI)
    counted, joules = True, 0.0
    try:
        gpu_context.device.get("TotalEnergyConsumption")
    except Absent as absent:
        counted = absent.reason not in PERMANENT
    if counted:
        row = GpuRow(ENERGY, "TotalEnergyConsumption", per=MILLI)
        yield gpu_context.rows("power", "energy", intervals.ENERGY, row)

    def interval() -> float:
        wanted = not counted or gpu_context.state.has_processes
        return intervals.POWER_BUFFER if wanted else intervals.POWER_BUFFER_AT_REST

    def read(out: ReadOutput) -> None:
        nonlocal joules
        samples = buffer.take()
        if samples:
            times = tuple(sample.at for sample in samples)
            watts = tuple(sample.value for sample in samples)
            out.series.append(TimedSeries(SAMPLES, out.labels, times, watts))
        if not counted:
            joules += sum(sample.value * sample.seconds for sample in samples)
            out.add(ENERGY, joules)

    metrics = (SAMPLES,) if counted else (ENERGY, SAMPLES)
    yield gpu_context.read("power", "samples", metrics, read, interval, run_on_wake=True)
