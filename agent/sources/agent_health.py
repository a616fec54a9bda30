"""Metrics of the agent itself: sources that are up, their cost, absent values and the reasons, and
how each GPU answers calls of the driver."""

import platform
from collections import Counter

from agent import __version__
from agent.model import (
    Absent,
    GpuMetric,
    InDefault,
    Kind,
    Reading,
    ReadKey,
    Reason,
    Snapshot,
    counter,
    gauge,
    internal,
)
from agent.polling import intervals
from agent.polling.gpu_watch import GpuWatch
from agent.polling.poller import HEALTH_KEY, AgentHealth
from agent.polling.reads import Read, ReadOutput, fixed

BUILD_INFO = gauge(
    "dgx_agent_build_info",
    "1, with the version of the agent and of its Python in the labels.",
    "the agent",
    ("version", "python"),
)
SOURCE_UP = gauge(
    "dgx_agent_source_up",
    "1 while the source delivers; 0 while its call hangs, it failed, or there is no driver.",
    "the agent",
    ("source",),
    shown=InDefault.ZERO,
)
READ_SECONDS = counter(
    "dgx_agent_read_seconds_total",
    "Wall seconds spent in the reads of the source.",
    "the agent's monotonic clock",
    ("source",),
    shown=InDefault.FULL,
)
READ_CPU_SECONDS = counter(
    "dgx_agent_read_cpu_seconds_total",
    "CPU seconds that the reads of the source used; driver calls use CPU even while they wait.",
    "CLOCK_THREAD_CPUTIME_ID",
    ("source",),
    shown=InDefault.FULL,
)
ABSENT_VALUES = gauge(
    "dgx_agent_absent_values",
    "Values of the metric that are absent, by reason; `dgx-telemetry check` prints the details.",
    "the agent",
    ("metric", "reason"),
)
LAST_TICK = gauge(
    "dgx_agent_last_tick_timestamp_seconds",
    "Wall time of the agent's last tick, in seconds since the epoch.",
    "the agent",
)
CONFIG_OK = gauge(
    "dgx_agent_config_last_reload_successful",
    "1 if the configuration was valid when it was last read.",
    "the agent",
)
CERTIFICATE_ENDS = gauge(
    "dgx_agent_tls_certificate_expiry_timestamp_seconds",
    "Wall time at which the TLS certificate that the agent serves ends, in seconds since the "
    "epoch; absent without TLS.",
    "notAfter of the first certificate in cert_file",
)
CLOCK_STEPS = counter(
    "dgx_agent_clock_steps_total",
    "Number of times that the machine's wall clock was set by a second or more since the agent "
    "started; the first ten minutes after boot do not count.",
    "CLOCK_REALTIME against CLOCK_BOOTTIME",
)
CLOCK_STEPPED_AT = internal(
    "dgx_agent_clock_stepped_seconds",
    "When the wall clock was last set, in seconds of the agent's clock.",
    "as dgx_agent_clock_steps_total",
)
PROCESSOR_WAIT = counter(
    "dgx_agent_processor_wait_seconds_total",
    "Seconds for which threads of the agent were ready to run and had no processor, added up. A "
    "read that is late for it counts as no fault of a GPU.",
    "/proc/self/task/TID/schedstat",
)
SHORT_OF_PROCESSORS = internal(
    "dgx_agent_processor_wait_per_second",
    "Growth of dgx_agent_processor_wait_seconds_total per second, mean of the last minute.",
    "as dgx_agent_processor_wait_seconds_total",
)
GPU_READ_SECONDS = GpuMetric.gauge(
    "dgx_gpu_read_seconds",
    "Total seconds of the driver calls of the GPU in the longest turn of the last 30 to 60 s; "
    "there is a turn every second. While the GPU does not respond, the longest since then, "
    "including the time so far of a call that has not returned. Without the time for which the "
    "agent itself waited for a processor.",
    "the agent's monotonic clock",
)
GPU_READ_FAILURES = GpuMetric.counter(
    "dgx_gpu_read_failures_total",
    "Reads of the GPU since the agent started in which a driver call failed, timed out, or, twice "
    "in a row, no longer answered or answered what cannot be. Calls that this GPU always refuses "
    "(not supported, no permission, not found, MIG) do not count, nor does a GPU that is lost.",
    "NVML's return codes",
)


def reading(snapshot: Snapshot, health: AgentHealth) -> Reading:
    """Samples of all metrics of this file; `snapshot` has the absences to count."""
    out = ReadOutput(snapshot.at)
    out.add(BUILD_INFO, 1, __version__, platform.python_version())
    out.add(LAST_TICK, snapshot.wall)
    for source, delivers in sorted(health.sources_up.items()):
        out.add(SOURCE_UP, delivers, source)
    for read_costs in health.read_costs:
        for source, (wall, cpu) in sorted(read_costs.by_source.items()):
            out.add(READ_SECONDS, wall, source)
            out.add(READ_CPU_SECONDS, cpu, source)
    absent = Counter(
        (absence.metric.name, absence.reason.value)
        for absence in snapshot.absences(snapshot.at)
        if absence.metric.kind is not Kind.INTERNAL
    )
    for (metric, reason), count in sorted(absent.items()):
        out.add(ABSENT_VALUES, count, metric, reason)
    out.add(CONFIG_OK, health.config_ok)
    if health.certificate_ends is not None:
        out.add(CERTIFICATE_ENDS, health.certificate_ends)
    out.add(CLOCK_STEPS, health.clock_steps.count)
    if health.clock_steps.at is not None:
        out.add(CLOCK_STEPPED_AT, health.clock_steps.at)
    waits = health.processor_waits
    uncounted = Absent(Reason.UNSUPPORTED, "this kernel does not count it")
    out.add(PROCESSOR_WAIT, waits.seconds if waits.counted else uncounted)
    out.add(SHORT_OF_PROCESSORS, waits.mean)
    return Reading(HEALTH_KEY, snapshot.at, intervals.TICK, tuple(out.samples), tuple(out.absences))


def answers(gpus: GpuWatch) -> Read:
    """The read of how each GPU answers."""
    both = (GPU_READ_SECONDS, GPU_READ_FAILURES)

    def read(out: ReadOutput) -> None:
        for labels, *found in gpus.answers():
            for metric, value in zip(both, found, strict=True):
                out.add(metric, value, *labels)

    return Read(ReadKey("gpu", "answers"), both, read, fixed(intervals.TICK))
