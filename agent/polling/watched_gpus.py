"""The known GPUs, including lost GPUs, and the order in which their reads run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.errors import Failure, LogEvent, log
from agent.hardware.device import BY_INDEX, NvmlDevice
from agent.hardware.nvml import Nvml
from agent.model import EXPIRY_INTERVALS, FINAL, Absent, Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuAnswers, GpuState
from agent.polling.gpu_threads import GpuThreads, Left, LeftGpu
from agent.polling.reads import Read, everything_absent
from agent.polling.worker import Emit

MOST_GPUS = 1024  # More than in any machine; larger counts from the driver are invalid

BuildReads = Callable[[NvmlDevice, GpuState, int], Iterable[Read]]
"""A function that returns the reads of a device. The last argument is the number of GPUs."""


def count_of(nvml: Nvml) -> int:
    """Return the number of GPUs that the driver lists. Raise Absent if the number is unknown."""
    count = nvml.call("nvmlDeviceGetCount")
    if not isinstance(count, int) or not 0 <= count <= MOST_GPUS:
        raise Absent(Reason.UNKNOWN, f"nvmlDeviceGetCount says {count!r:.60}")
    return count


@dataclass(slots=True, eq=False)
class WatchedGpu:
    """A GPU, its reads, and its state."""

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


@dataclass(slots=True, eq=False)
class WatchedGpus:
    """All GPUs by UUID. A GPU that is lost, or whose driver is being reloaded, is kept, and its
    values are absent. A GPU that the driver no longer lists is removed with its readings. A fault
    of a GPU does not affect other GPUs. If the driver is gone, methods raise Absent(no_driver)."""

    build: BuildReads
    clock: Clock
    threads: GpuThreads
    in_order: tuple[tuple[WatchedGpu, Read], ...] = ()  # of GPUs that respond
    unasked: list[int] | None = None
    """Indices of the GPUs that the current query of all GPUs, if any, has not asked yet. If a GPU
    hangs, another thread queries the remaining GPUs."""
    unanswered: dict[int, str] = field(default_factory=dict)  # reasons in the last query
    doubted: bool = False  # whether the last check found changes of supported queries
    _gpus: dict[str, WatchedGpu] = field(default_factory=dict)
    _found: dict[str, WatchedGpu] = field(default_factory=dict)  # in the current query, by UUID
    _answers: dict[str, GpuAnswers] = field(default_factory=dict)  # including GPUs that are gone
    _silent: dict[Read, float] = field(default_factory=dict)
    """When each read last ran whose reading has expired because its GPU does not respond."""

    def query_all(self, nvml: Nvml, emit: Emit) -> None:
        """Query every GPU, or continue another thread's query. A GPU that supports the same NVML
        calls as before keeps its reads. Raise Left if another thread has taken over."""
        if self.unasked is None:
            self.threads.gpus = count_of(nvml)
            self.unasked, self._found = list(range(self.threads.gpus)), {}
        while self.unasked:
            index = self.unasked.pop(0)
            gpu = None if index in self.threads.left else self._visited(nvml, index)
            others = (other.device for other in self._found.values())
            if gpu is not None and self._is_single(gpu.device, others):
                self._found[gpu.uuid] = gpu
        self.unasked = None
        self._replace(emit)
        self._found = {}

    def _visited(self, nvml: Nvml, index: int) -> WatchedGpu | None:
        gpu = None
        try:
            with self.threads.visit(index):
                gpu = self.query(nvml, index)
        except Left:
            if gpu is not None:
                gpu.device.close()
            raise
        return gpu

    def query(self, nvml: Nvml, index: int) -> WatchedGpu | None:
        """Return a GPU with its reads, or None if it does not respond. Any thread may call this."""
        device = self._device(nvml, index)
        if device is None:
            return None
        try:
            state = GpuState()
            return WatchedGpu(device, state, tuple(self.build(device, state, self.threads.gpus)))
        except Exception as error:
            device.close()
            self._refused(index, error, nvml)
            return None

    def _device(self, nvml: Nvml, index: int) -> NvmlDevice | None:
        try:
            return NvmlDevice(nvml, index)
        except Exception as error:
            self._refused(index, error, nvml)
            return None

    def other_answers(self, nvml: Nvml, index: int) -> bool:
        """Return whether a call for another GPU succeeds. In this case, the driver is loaded, even
        if the GPU at `index` reports that it is not."""
        for other in range(self.threads.gpus):
            if other != index and other not in self.threads.left:
                try:
                    nvml.call("nvmlDeviceGetPowerUsage", nvml.call(BY_INDEX, other))
                except Absent as absent:
                    if absent.reason in FINAL:
                        continue
                return True
        return False

    def _refused(self, index: int, error: Exception, nvml: Nvml | None = None) -> None:
        """Store and log once that a GPU does not respond. If the driver is gone, raise `error`."""
        no_driver = isinstance(error, Absent) and error.reason is Reason.NO_DRIVER
        if no_driver and not (nvml and self.other_answers(nvml, index)):
            raise error
        why = str(error) if isinstance(error, Absent) else str(Failure.of(error))
        if index not in self.unanswered:
            log.warning(LogEvent("gpu_not_answering", gpu=index, error=why))
        self.unanswered[index] = why

    def _replace(self, emit: Emit) -> None:
        before = self._gpus
        self._gpus = {uuid: self._unchanged(gpu) or gpu for uuid, gpu in self._found.items()}
        for uuid, gpu in before.items():
            why = self.unanswered.get(gpu.index)
            if uuid not in self._gpus and gpu.index < self.threads.gpus:
                if gpu.index in self.threads.left:
                    self._gpus[uuid] = gpu
                elif why is not None:
                    self._gpus[uuid] = gpu  # still listed, but does not respond
                    self._mark_lost(gpu, Absent(Reason.LOST, why), emit)
            kept = self._gpus.get(uuid)
            forget_reads(gpu, kept, emit)
            if kept is not gpu:
                gpu.device.close()
        self._set_order()

    def query_missing(self, nvml: Nvml, index: int, emit: Emit) -> bool:
        """Add the lost or unknown GPU at `index` if it responds. Return whether it was added."""
        if index in self.threads.left or index in {gpu.index for gpu in self.answering()}:
            return False
        gpu = self._visited(nvml, index)
        if gpu is None:
            return False
        same = (known for known in self.answering() if known.uuid == gpu.uuid)
        if (known := next(same, None)) is not None:  # renumbered or a duplicate
            with self.threads.visit(known.index):
                other = self._device(nvml, known.index)
            if other is not None:
                other.close()
                if not self._is_single(gpu.device, [other]):
                    return False
        self.take_in(gpu, emit)
        return True

    def _is_single(self, device: NvmlDevice, others: Iterable[NvmlDevice]) -> bool:
        """Return whether no other device has the same UUID. Otherwise, close the device."""
        who = device.identity
        for other in others:
            if other.identity.uuid == who.uuid:
                device.close()
                why = f"GPU {other.identity.index} has the same UUID, {who.uuid}"
                self._refused(who.index, Absent(Reason.IMPLAUSIBLE, why))
                return False
        self.unanswered.pop(who.index, None)
        return True

    def take_in(self, gpu: WatchedGpu, emit: Emit) -> None:
        """Add a GPU that is new, responds again, or supports other NVML calls than before."""
        self.unanswered.pop(gpu.index, None)
        if self._unchanged(gpu):
            return
        before = self._gpus.get(gpu.uuid)
        self._gpus[gpu.uuid] = gpu
        if before is not None:
            before.device.close()
            forget_reads(before, gpu, emit)
            self._forget_silent(before)
        self._set_order()
        log.info(LogEvent("gpu_back", gpu=gpu.index, uuid=gpu.uuid))

    def lose(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        self._mark_lost(gpu, absent, emit)
        self.unanswered[gpu.index] = str(absent)  # log it here, not in each query
        self._set_order()
        log.error(LogEvent("gpu_lost", gpu=gpu.index, uuid=gpu.uuid, error=str(absent)))

    def expire(self, left: LeftGpu, emit: Emit) -> None:
        """For each read of a GPU that does not respond, emit a reading of absent values when the
        last reading is about to expire. The read runs as soon as the GPU responds."""
        now, gpu = self.clock.monotonic(), self.of(left.index)
        if gpu is None or gpu.state.lost_at is not None:
            return
        if left.why is None:
            self._forget_silent(gpu)
            return
        for read in gpu.reads:
            expired = now + intervals.TICK > read.at + EXPIRY_INTERVALS * read.every()
            if expired and self._silent.get(read) != read.at:
                self._silent[read] = read.at
                emit(everything_absent(read, left.why, now))

    def _forget_silent(self, gpu: WatchedGpu) -> None:
        for read in gpu.reads:
            self._silent.pop(read, None)

    def close(self) -> None:
        """Release the NVML resources of all GPUs but those whose threads may be using them."""
        for gpu in self._gpus.values():
            if gpu.index not in self.threads.left:
                gpu.device.close()

    def must_be_queried(self) -> bool:
        """Return whether all GPUs must be queried again. This is the case if two checks in
        succession find a GPU whose MIG mode has changed or whose reads depend on a temporary
        refusal. Raise Left if another thread has taken over the other GPUs."""
        for gpu in self.answering():
            if gpu.index not in self.threads.left:
                with self.threads.visit(gpu.index):
                    changed = gpu.state.doubtful or gpu.device.mig_switched()
                if changed:
                    before, self.doubted = self.doubted, not self.doubted
                    return before
        self.doubted = False
        return False

    def all_gpus(self) -> list[WatchedGpu]:
        return sorted(self._gpus.values(), key=lambda gpu: gpu.index)

    def of(self, index: int) -> WatchedGpu | None:
        return next((gpu for gpu in self.all_gpus() if gpu.index == index), None)

    def answering(self) -> list[WatchedGpu]:
        return [gpu for gpu in self.all_gpus() if gpu.state.lost_at is None]

    def _unchanged(self, gpu: WatchedGpu) -> WatchedGpu | None:
        """Return the known object for a GPU, whose counters continue, or None if it is unknown or
        supports other NVML calls than before."""
        before = self._gpus.get(gpu.uuid)
        if before is None or before.state.lost_at is not None:
            return None
        doubted = before.state.doubtful and not gpu.state.doubtful
        one, other = (
            (of.device.nvml, of.device.labels, of.device.mig, {read.key for read in of.reads})
            for of in (before, gpu)
        )
        if one != other or doubted:
            return None
        gpu.device.close()
        before.device.ask_again()
        return before

    def _mark_lost(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        gpu.state.lost_at = self.clock.monotonic()
        self.emit_absent(gpu, absent, emit)

    def emit_absent(self, gpu: WatchedGpu, absent: Absent, emit: Emit) -> None:
        for read in gpu.reads:
            emit(everything_absent(read, absent, self.clock.monotonic()))

    def _set_order(self) -> None:
        """Sort the reads of all GPUs. Reads that run in every tick precede less frequent reads."""
        for gpu in self._gpus.values():
            gpu.answers = self._answers.setdefault(gpu.uuid, gpu.answers)
        pairs = [(gpu, read) for gpu in self.answering() for read in gpu.reads]
        self.in_order = tuple(sorted(pairs, key=lambda pair: pair[1].every() > intervals.TICK))


def forget_reads(gpu: WatchedGpu, kept: WatchedGpu | None, emit: Emit) -> None:
    """Drop the readings of those reads of `gpu` that `kept` (if not None) does not have."""
    keys = {read.key for read in kept.reads} if kept else set()
    for read in gpu.reads:
        if read.key not in keys:
            emit(read.key)
