"""Duration and failures of each GPU's answers to calls of the driver."""

from collections.abc import Iterator

from agent.model import GpuMetric, ReadKey
from agent.polling import intervals
from agent.polling.gpu_watch import GpuWatch
from agent.polling.reads import Read, ReadOutput, fixed

READ_SECONDS = GpuMetric.gauge(
    "dgx_gpu_read_seconds",
    "Total seconds of the driver calls of the GPU in the longest turn of the last 30 to 60 s; "
    "there is a turn each second. While the GPU does not answer, the longest since then, "
    "including the time so far of a call that has not returned.",
    "the agent's monotonic clock",
)
READ_FAILURES = GpuMetric.counter(
    "dgx_gpu_read_failures_total",
    "Reads of the GPU since the agent started in which a driver call failed or timed out. Calls "
    "that this GPU always refuses (not supported, no permission, not found, MIG) do not count, "
    "nor does a GPU that is lost.",
    "NVML's return codes",
)


def reads(gpus: GpuWatch) -> Iterator[Read]:
    def read(out: ReadOutput) -> None:
        for labels, seconds, failures in gpus.answers():
            out.add(READ_SECONDS, seconds, *labels)
            out.add(READ_FAILURES, failures, *labels)

    yield Read(
        ReadKey("gpu", "answers"), (READ_SECONDS, READ_FAILURES), read, fixed(intervals.TICK)
    )
