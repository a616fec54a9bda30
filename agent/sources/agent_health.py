"""Metrics of the agent itself: the status and cost of sources, the number of absent values by
reason, and the duration and failures of driver calls for each GPU."""

import platform
from collections import Counter

from agent import __version__
from agent.metrics import declared_beside
from agent.model import Absent, Kind, Reading, ReadKey, Reason, Snapshot
from agent.polling import intervals
from agent.polling.gpu_watch import GpuWatch
from agent.polling.poller import HEALTH_KEY, Poller
from agent.polling.reads import OFF, Read, ReadOutput, fixed

_METRICS = declared_beside(__file__)
BUILD_INFO = _METRICS["dgx_agent_build_info"]
SOURCE_UP = _METRICS["dgx_agent_source_up"]
ABSENT_VALUES = _METRICS["dgx_agent_absent_values"]
LAST_TICK = _METRICS["dgx_agent_last_tick_timestamp_seconds"]
CONFIG_OK = _METRICS["dgx_agent_config_last_reload_successful"]
CERTIFICATE_ENDS = _METRICS["dgx_agent_tls_certificate_expiry_timestamp_seconds"]
CLOCK_STEPS = _METRICS["dgx_agent_clock_steps_total"]
PROCESSOR_WAIT = _METRICS["dgx_agent_processor_wait_seconds_total"]
GPU_READ_SECONDS = _METRICS["dgx_gpu_read_seconds"]
GPU_READ_FAILURES = _METRICS["dgx_gpu_read_failures_total"]


def reading(snapshot: Snapshot, poller: Poller) -> Reading:
    """Return the agent's own metrics, such as the number of absences in `snapshot`."""
    out = ReadOutput(snapshot.at)
    out.add(BUILD_INFO, 1, __version__, platform.python_version())
    out.add(LAST_TICK, snapshot.wall)
    up: dict[str, bool] = {}  # by source
    for key, one in snapshot.readings.items():
        if key.part != OFF:
            up[key.source] = up.get(key.source, True) and not one.failure
    for source, delivers in sorted((up | dict.fromkeys(poller.stalled, False)).items()):
        out.add(SOURCE_UP, delivers, source)
    for source, (wall, cpu) in sorted(poller.read_costs.by_source.items()):
        out.add(_METRICS["dgx_agent_read_seconds_total"], wall, source)
        out.add(_METRICS["dgx_agent_read_cpu_seconds_total"], cpu, source)
    absent = Counter(
        (absence.metric.name, absence.reason.value)
        for absence in snapshot.absences(snapshot.at)
        if absence.metric.kind is not Kind.INTERNAL
    )
    for (metric, reason), count in sorted(absent.items()):
        out.add(ABSENT_VALUES, count, metric, reason)
    out.add(CONFIG_OK, poller.config_ok())
    if (ends := poller.certificate_ends()) is not None:
        out.add(CERTIFICATE_ENDS, ends)
    steps, waits = poller.clock_steps, poller.processor_waits
    out.add(CLOCK_STEPS, steps.count)
    if steps.at is not None:
        out.add(_METRICS["dgx_agent_clock_stepped_seconds"], steps.at)
    uncounted = Absent(Reason.UNSUPPORTED, "this kernel does not count it")
    out.add(PROCESSOR_WAIT, waits.seconds if waits.counted else uncounted)
    out.add(_METRICS["dgx_agent_processor_wait_per_second"], waits.mean)
    return out.reading(HEALTH_KEY)


def answers(gpus: GpuWatch) -> Read:
    """Return a read that exports the duration and the failures of driver calls for each GPU."""
    both = (GPU_READ_SECONDS, GPU_READ_FAILURES)

    def read(out: ReadOutput) -> None:
        for labels, *found in gpus.answers():
            for metric, value in zip(both, found, strict=True):
                out.add(metric, value, *labels)

    return Read(ReadKey("gpu", "answers"), both, read, fixed(intervals.TICK))
