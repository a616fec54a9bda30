"""Asking the driver which GPUs there are, and each of them which reads it answers."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agent.errors import LogEvent
from agent.hardware.device import NvmlDevice
from agent.hardware.nvml import Nvml
from agent.model import Absent, GpuIdentity, Reason
from agent.polling.gpu_state import GpuAnswers, GpuState
from agent.polling.reads import Read, failure_of

log = logging.getLogger(__name__)

MOST_GPUS = 1024
"""More than any machine has: a driver that lists more is not to be believed."""

BuildReads = Callable[[NvmlDevice, GpuState, Sequence[GpuIdentity]], Iterable[Read]]
"""From a device, its state and all GPUs of the machine to its reads; asks the GPU what it
answers."""


@dataclass(slots=True, eq=False)
class WatchedGpu:
    """One GPU with its reads."""

    device: NvmlDevice
    state: GpuState
    reads: tuple[Read, ...]
    answers: GpuAnswers = field(default_factory=GpuAnswers)

    @property
    def uuid(self) -> str:
        return self.device.identity.uuid

    @property
    def index(self) -> int:
        return self.device.identity.index

    def answers_like(self, before: "WatchedGpu") -> bool:
        """Whether it answers the same questions as `before`, under the same index, of the same
        connection to the driver."""
        here, there = self.device, before.device
        return (
            here.nvml is there.nvml
            and before.state.lost_at is None
            and (here.labels, here.mig) == (there.labels, there.mig)
            and {read.key for read in self.reads} == {read.key for read in before.reads}
        )


@dataclass(slots=True, eq=False)
class GpuQueries:
    """Queries one GPU at a time: what is odd about one must not cost the others. Only the end of
    the driver, Absent(no_driver), is raised."""

    build: BuildReads
    unanswered: dict[int, str] = field(default_factory=dict)  # index to why, of the last query

    def device(self, nvml: Nvml, index: int) -> NvmlDevice | None:
        """The GPU of this index, or None where it does not answer."""
        try:
            return NvmlDevice(nvml, index)
        except Exception as error:
            self.refused(index, error)
            return None

    def watched(self, device: NvmlDevice, all_gpus: Sequence[GpuIdentity]) -> WatchedGpu | None:
        """The GPU with its reads, or None where it no longer answers: `device` is closed then."""
        try:
            state = GpuState()
            gpu = WatchedGpu(device, state, tuple(self.build(device, state, all_gpus)))
        except Exception as error:
            device.close()
            self.refused(device.identity.index, error)
            return None
        self.unanswered.pop(gpu.index, None)
        return gpu

    def refused(self, index: int, error: Exception) -> None:
        """Log a GPU that does not answer, once."""
        if isinstance(error, Absent) and error.reason is Reason.NO_DRIVER:
            raise error
        why = str(error) if isinstance(error, Absent) else str(failure_of(error))
        if index not in self.unanswered:
            log.warning(LogEvent("gpu_not_answering", gpu=index, error=why))
        self.unanswered[index] = why


def count_of(nvml: Nvml) -> int:
    """How many GPUs the driver lists; raises Absent."""
    count = nvml.call("nvmlDeviceGetCount")
    if not isinstance(count, int) or not 0 <= count <= MOST_GPUS:
        raise Absent(Reason.UNKNOWN, f"nvmlDeviceGetCount says {count!r:.60}")
    return count
