"""The GPUs that were found, lost ones included, and the order in which their reads run."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.errors import LogEvent
from agent.hardware.nvml import Nvml
from agent.model import Absent, GpuIdentity, Reason
from agent.polling import intervals
from agent.polling.gpu_queries import GpuQueries, WatchedGpu, count_of
from agent.polling.reads import Read, everything_absent
from agent.polling.worker import Emit

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class WatchedGpus:
    """The GPUs by UUID. They stay through a driver reload, and while they are lost: their readings
    are absent then. A GPU that the driver no longer lists is forgotten, with its readings."""

    queries: GpuQueries
    clock: Clock
    in_order: tuple[tuple[WatchedGpu, Read], ...] = ()  # of the GPUs that answer
    _gpus: dict[str, WatchedGpu] = field(default_factory=dict)

    def query_all(self, nvml: Nvml, emit: Emit) -> None:
        """Ask every GPU anew what it answers; one that answers as before keeps its reads."""
        count = count_of(nvml)
        before, self._gpus = (
            self._gpus,
            {gpu.uuid: self._unchanged(gpu) or gpu for gpu in self.queries.every_gpu(nvml, count)},
        )
        for uuid, gpu in before.items():
            why = self.queries.unanswered.get(gpu.index)
            if uuid not in self._gpus and gpu.index < count and why is not None:
                self._gpus[uuid] = gpu  # listed still, though it does not answer
                self._mark_lost(gpu, Absent(Reason.LOST, why), emit)
            kept = self._gpus.get(uuid)
            forget_reads(gpu, kept, emit)
            if kept is not gpu:
                gpu.device.close()
        self._set_order()

    def query_missing(self, nvml: Nvml, index: int, emit: Emit) -> bool:
        """Take in the GPU of this index if it was lost, or never answered, and answers now."""
        if index in {gpu.index for gpu in self.answering()}:
            return False
        device = self.queries.device(nvml, index)
        if device is None:
            return False
        before = self._gpus.get(device.identity.uuid)
        identities = self.identities()
        gpu = self.queries.watched(device, identities if before else [*identities, device.identity])
        if gpu is None:
            return False
        self._gpus[gpu.uuid] = gpu
        if before is not None:
            before.device.close()
            forget_reads(before, gpu, emit)
        self._set_order()
        log.info(LogEvent("gpu_back", gpu=gpu.index, uuid=gpu.uuid))
        return True

    def lose(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        """This GPU answers no longer."""
        self._mark_lost(gpu, absent, emit)
        self.queries.unanswered[gpu.index] = str(absent)  # logged here, and not at each query
        self._set_order()
        log.error(LogEvent("gpu_lost", gpu=gpu.index, uuid=gpu.uuid, error=str(absent)))

    def close(self) -> None:
        """Give back what the driver holds for each GPU, before it is disconnected."""
        for gpu in self._gpus.values():
            gpu.device.close()

    def all_absent(self, absent: Absent, emit: Emit) -> None:
        """Nothing is known of any GPU, for this reason."""
        for gpu in self._gpus.values():
            self._emit_absent(gpu, absent, emit)

    def must_be_queried(self) -> bool:
        """Whether a GPU answers other questions now: MIG was switched, or it was first queried at a
        moment at which it refused what it may not refuse for good."""
        devices = [gpu.device for gpu in self.answering()]
        return any(device.unsure or device.mig_switched() for device in devices)

    def all_gpus(self) -> list[WatchedGpu]:
        """In the order of their indices, lost ones included."""
        return sorted(self._gpus.values(), key=lambda gpu: gpu.index)

    def answering(self) -> list[WatchedGpu]:
        """Those that are not lost."""
        return [gpu for gpu in self.all_gpus() if not gpu.device.lost]

    def identities(self) -> list[GpuIdentity]:
        """Of all, in the order of their indices."""
        return [gpu.device.identity for gpu in self.all_gpus()]

    def have_run(self) -> bool:
        """Whether every read of every GPU that answers has run at least once; for any thread."""
        gpus = tuple(self._gpus.values())
        return all(read.runs for gpu in gpus if not gpu.device.lost for read in gpu.reads)

    def clear_wakes(self) -> None:
        """The reads that run when a GPU wakes have run."""
        for gpu in self._gpus.values():
            gpu.device.activity_changed = False

    def _unchanged(self, gpu: WatchedGpu) -> WatchedGpu | None:
        """The GPU as it was, if it answers the same questions: its totals go on. What was decided
        at an odd moment is decided anew, once that is over."""
        before = self._gpus.get(gpu.uuid)
        if before is None or not gpu.answers_like(before):
            return None
        if before.device.unsure and not gpu.device.unsure:
            return None
        gpu.device.close()
        for read in before.reads:
            read.again()
        return before

    def _mark_lost(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        gpu.device.lost_at = self.clock.monotonic()
        self._emit_absent(gpu, absent, emit)

    def _emit_absent(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        for read in gpu.reads:
            emit(everything_absent(read, absent, self.clock.monotonic()))

    def _set_order(self) -> None:
        self.in_order = ordered(self.answering())


def forget_reads(gpu: WatchedGpu, kept: WatchedGpu | None, emit: Emit) -> None:
    """Drop the readings of reads that the GPU no longer has; all where nothing is kept."""
    keys = {read.key for read in kept.reads} if kept else set()
    for read in gpu.reads:
        if read.key not in keys:
            emit(read.key)


def ordered(gpus: Iterable[WatchedGpu]) -> tuple[tuple[WatchedGpu, Read], ...]:
    """The reads of these GPUs, short intervals first so that dear reads delay none of them."""
    pairs = [(gpu, read) for gpu in gpus for read in gpu.reads]
    return tuple(sorted(pairs, key=lambda pair: pair[1].every() > intervals.TICK))
