"""GPU power and energy."""

from collections.abc import Iterator

from agent.hardware.buffers import POWER_SAMPLES, SampleBuffer
from agent.metrics import declared_beside
from agent.model import PERMANENT, Absent, TimedSeries
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read, ReadOutput
from agent.sources.context import GpuContext

_METRICS = declared_beside(__file__)
POWER = _METRICS["dgx_gpu_power_watts"]
POWER_LIMIT = _METRICS["dgx_gpu_power_limit_watts"]
DEFAULT_LIMIT = _METRICS["dgx_gpu_power_default_limit_watts"]
ENERGY = _METRICS["dgx_gpu_energy_joules_total"]
SAMPLES = _METRICS["dgx_gpu_power_samples_watts"]

MILLI = 1e3


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    """Yield the reads of a GPU's power and energy. The driver's 20 ms power samples are read only
    while the GPU has processes, or always if it has no energy counter."""
    yield from gpu_context.declared("power", _METRICS)
    buffer = SampleBuffer(gpu_context.device, POWER_SAMPLES, SAMPLES, MILLI)
    counted, joules = True, 0.0
    try:
        gpu_context.device.get("TotalEnergyConsumption")
    except Absent as absent:
        counted = absent.reason not in PERMANENT
    if counted:
        row = GpuRow(ENERGY, ("TotalEnergyConsumption",), per=MILLI)
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
