"""The NVML worker's tasks: connect to the driver, detect new and lost GPUs, and run reads."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from queue import SimpleQueue
from typing import Any

from agent.clock import Clock, Stopwatch
from agent.errors import Failure, LogEvent, log
from agent.hardware.nvml import Nvml
from agent.model import FINAL, Absent, GpuIdentity, Labels, Reading, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_state import EventSubscription, GpuInventory, GpuProcesses
from agent.polling.gpu_threads import OVERTAKEN, GpuThreads, Left, LeftGpu, Visit
from agent.polling.reads import SOON_SECONDS, Read, ReadCosts, is_due, is_pending, perform
from agent.polling.watched_gpus import BuildReads, WatchedGpu, WatchedGpus, count_of
from agent.polling.worker import Emit

CONNECTION = ReadKey("nvml", "connection")


@dataclass(slots=True, eq=False)
class GpuWatch:
    """All GPUs of an NVML library. While NVML is not initialized, `nvml` is None, and `inventory`
    contains the reason. The methods run on the NVML worker, but any thread may use `inventory`,
    `events`, and `complete`."""

    library: Callable[[], Any]
    build: BuildReads
    clock: Clock
    read_costs: ReadCosts
    gpu_processes: GpuProcesses = field(default_factory=GpuProcesses)
    asked_back: Callable[[], str] = str  # why to release the driver, or empty
    inventory: GpuInventory = field(default_factory=GpuInventory)
    nvml: Nvml | None = None  # set while connected
    # Time of the next run of each query (s on the agent's clock); 0 stands for immediately.
    next_rediscovery: float = 0.0  # checks of the driver and of lost GPUs
    next_all_gpus: float = 0.0
    next_modes: float = 0.0  # checks for changes of supported queries
    threads: GpuThreads = field(init=False)
    watched: WatchedGpus = field(init=False)
    _heard: SimpleQueue[Callable[[Emit], None]] = field(default_factory=SimpleQueue)
    """Functions that the GPUs' own threads have queued for the shared thread to call."""
    _connecting: Nvml | None = None  # set while the GPUs are queried
    _events: EventSubscription | None = None
    is_pending: bool = False  # a read has requested a second run within the tick
    _first_turn_over: bool = False

    def __post_init__(self) -> None:
        self.threads = GpuThreads(self.clock)
        self.watched = WatchedGpus(self.build, self.clock, self.threads)

    def run(self, emit: Emit) -> None:
        """Run all due reads and checks. If a GPU hangs, another thread takes over the other GPUs,
        and this thread reads only this GPU until it has recovered."""
        try:
            self._turn(emit)
        except Left as left:
            self._stay_with(left.gpu, emit)

    def _turn(self, emit: Emit) -> None:
        """Run all due reads. Then check the connection to the driver, and whether lost GPUs have
        returned. In this order, a check that hangs does not delay reads."""
        self.is_pending = False
        if why := self.asked_back():
            self._release(why, emit)
        else:
            if self.threads.left:
                self._see_to_left(emit)
            before = self.nvml
            if before is not None:
                self._read_all(emit)
            if self.clock.monotonic() >= self.next_rediscovery or self.watched.unasked is not None:
                self._rediscover(emit)
            if self.nvml is not None and self.nvml is not before:
                self._read_all(emit)
            self.threads.start_attempts()
        why_not = "no GPU answers" if self.threads.blind() else self.inventory.why_not
        wrong = why_not and self.inventory.reason is not Reason.RELEASED
        means = "GPU metrics are absent until the NVIDIA driver answers"
        helps = "--simulate dgx-h100 shows the agent without a GPU"
        failure = Failure(why_not, "", f"{means}; {helps}") if wrong else None
        now, speed = self.clock.monotonic(), self.clock.speed
        emit(Reading(CONNECTION, now, intervals.TICK, failure=failure, speed=speed))
        self._first_turn_over = True

    def complete(self) -> bool:
        """Return whether every read of all GPUs that respond has run at least once."""
        gpus = [gpu for gpu in self.watched.answering() if gpu.index not in self.threads.left]
        return self._first_turn_over and all(read.runs for gpu in gpus for read in gpu.reads)

    def events(self) -> EventSubscription | None:
        events = self._events
        return events if self.inventory.connected and events and events.handles else None

    def reads(self) -> list[Read]:
        return [read for _, read in self.watched.in_order]

    def _read_all(self, emit: Emit) -> None:
        for gpu, pairs in groupby(self.watched.in_order, key=itemgetter(0)):
            if gpu.index in self.threads.left:
                continue
            reads = [read for _, read in pairs]
            due = self._due(gpu, reads)
            # After a GPU has just hung, a read of another GPU shows whether the driver's lock
            # hangs, even if that read is not due.
            first = next(due, reads[0] if self.threads.in_vain else None)
            if first is not None:
                with self.threads.visit(gpu.index, OVERTAKEN) as visit:
                    self._visit(gpu, chain((first,), due), visit, emit)
                gpu.answers.took(visit.watch.took, self.clock.monotonic())
        answers = [gpu.answers for gpu in self.watched.answering()]
        of_gpus = not all(one.timeouts for one in answers)  # otherwise, the driver hangs
        for one in answers:
            one.failures += one.timeouts * of_gpus
            one.timeouts = 0
        for gpu in self.watched.all_gpus():  # run_on_wake reads have run
            gpu.state.woken &= gpu.index in self.threads.left

    def _due(self, gpu: WatchedGpu, reads: Iterable[Read]) -> Iterator[Read]:
        now = self.clock.monotonic() + SOON_SECONDS
        return (r for r in reads if is_due(r, now) or (r.run_on_wake and gpu.state.woken))

    def _visit(self, gpu: WatchedGpu, due: Iterable[Read], visit: Visit, emit: Emit) -> None:
        """Run the due reads of a GPU. If another thread has taken over, discard the results."""
        for read in due:
            if self.threads.late(visit) or gpu.state.lost_at is not None or self.nvml is None:
                return
            reading, raised = self._read(gpu, read)
            if not is_pending(read, reading) and not self.threads.late(visit):
                emit(reading)
            if raised is not None and not visit.left:
                self._follow_up(raised, gpu, emit)

    def _read(self, gpu: WatchedGpu, read: Read) -> tuple[Reading, Absent | None]:
        reading, raised = perform(read, self.clock, self.read_costs)
        self.is_pending |= is_pending(read, reading)
        ceased = read.ceased(reading) and not self._mig_switched(gpu)
        if reading.absences and gpu.answers.failed(reading.absences, ceased=ceased):
            read.due = min(read.due, reading.at + intervals.RETRY)
        return reading, raised

    def _mig_switched(self, gpu: WatchedGpu) -> bool:
        """Return whether MIG mode has changed, or True if the mode cannot be read."""
        try:
            return gpu.device.mig_switched()
        except Absent:
            return True

    def _follow_up(self, raised: Absent, gpu: WatchedGpu, emit: Emit) -> None:
        """Handle the exception of a read: the GPU or the driver may be gone."""
        gone = raised.reason is Reason.NO_DRIVER
        if gone and self.nvml is not None and self.watched.other_answers(self.nvml, gpu.index):
            raised, gone = Absent(Reason.LOST, str(raised)), False
        if raised.reason is Reason.LOST:
            self.watched.lose(gpu, raised, emit)
            self._publish()
        elif gone:
            self._disconnect(raised, emit)

    # GPUs with their own threads.

    def _stay_with(self, left: LeftGpu, emit: Emit) -> None:
        """Read a GPU on its own thread until the thread is no longer needed. While the GPU does not
        respond promptly, make attempts at increasing intervals."""
        answered = True
        while True:
            gpu, took = self.watched.of(left.index), left.took
            self.threads.ended(left, answered=answered)
            if gpu is not None:
                gpu.answers.took(took, self.clock.monotonic())
            if not left.attempts.get():
                return
            left.watch = Stopwatch(self.clock)
            try:
                answered = self._try(left, emit)
            except Exception:  # the thread must survive for the next attempt
                log.exception(LogEvent("attempt_failed", gpu=left.index))

    def _try(self, left: LeftGpu, emit: Emit) -> bool:
        """Run the due reads of a GPU, or query the GPU if it is new or lost, or if its MIG mode has
        changed. Return whether the GPU exists and responds."""
        gpu, nvml, now = self.watched.of(left.index), self.nvml, self.clock.monotonic()
        if nvml is None:
            return False
        there = gpu if gpu and gpu.state.lost_at is None and gpu.device.nvml is nvml else None
        if there is not None and now >= left.modes:
            left.modes = now + intervals.LINKS
            with suppress(Absent):  # the reads will fail for the same reason
                there = None if there.state.doubtful or there.device.mig_switched() else there
        if there is None:
            found = self.watched.query(nvml, left.index)
            if found is not None:
                self._heard.put(partial(self._take_in, found))
            return found is not None
        for read in self._due(there, there.reads):
            reading, raised = self._read(there, read)
            if raised is not None and raised.reason in FINAL:
                self._heard.put(partial(self._follow_up, raised, there))
                return False
            if not is_pending(read, reading):
                emit(reading)
        there.state.woken = False
        return True

    def _take_in(self, gpu: WatchedGpu, emit: Emit) -> None:
        if gpu.device.nvml is self.nvml:
            self.watched.take_in(gpu, emit)

    def _see_to_left(self, emit: Emit) -> None:
        self.threads.judge()
        while not self._heard.empty():
            self._heard.get()(emit)
        self.threads.take_back()
        if self.nvml is not None:
            for left in self.threads.left.values():
                self.watched.expire(left, emit)
            self._publish()

    def answers(self) -> Iterator[tuple[Labels, float, int | Absent]]:
        """Yield for each GPU its labels, the wall-clock seconds of the longest recent run of its
        reads (finished or not), and the number of failed reads. For a GPU that has never responded,
        yield an empty UUID, the seconds without a response, and the reason. Yield nothing while no
        GPU responds. Any thread may call this method."""
        if not self.inventory.connected or self.threads.blind():
            return
        for gpu in self.watched.answering():
            left = self.threads.left.get(gpu.index)
            took = left.took if left else 0.0
            yield gpu.device.labels, max(*gpu.answers.longest, took), gpu.answers.failures
        for one in self.threads.left.values():
            if (why := one.why) and not self.watched.of(one.index):
                silent = (self.clock.monotonic() - one.since) / self.clock.speed
                yield (str(one.index), ""), silent, why.without_traceback()

    def _rediscover(self, emit: Emit) -> None:
        self.next_rediscovery = self.clock.monotonic() + intervals.REDISCOVERY
        try:
            if self.nvml is None:
                self._connect(emit)
            else:
                self._query(self.nvml, emit)
        except Absent as absent:
            if self.nvml is None:
                self._set_disconnected(absent)
            elif absent.reason is Reason.NO_DRIVER:
                self._disconnect(absent, emit)
        except Left:
            raise
        except Exception as error:  # an error in the agent or the bindings, not in GPUs
            if self.nvml is not None:
                raise
            log.exception(LogEvent("connecting_failed"))
            self._set_disconnected(Absent(Reason.FAILED, str(Failure.of(error))))

    def _query(self, nvml: Nvml, emit: Emit) -> None:
        """Query all GPUs once an hour, and when a GPU may support other NVML calls than before.
        Otherwise, query only missing GPUs, which may have returned."""
        now = self.clock.monotonic()
        if now >= self.next_all_gpus or self.watched.unasked is not None:
            self._query_all(nvml, emit)
            return
        for index in range(count_of(nvml)):
            if self.watched.query_missing(nvml, index, emit):
                self._publish()
        if now >= self.next_modes:
            again = self.watched.must_be_queried()
            self.next_modes = now + (0.0 if self.watched.doubted else intervals.LINKS)
            if again:
                self._query_all(nvml, emit)

    def _query_all(self, nvml: Nvml, emit: Emit) -> None:
        self.watched.query_all(nvml, emit)
        self.next_all_gpus = self.clock.monotonic() + intervals.TOPOLOGY
        self._publish()

    def _connect(self, emit: Emit) -> None:
        nvml = self._connecting or Nvml(self.library())
        if self._connecting is None:
            nvml.connect()
            self._connecting = nvml
        try:
            self.watched.query_all(nvml, emit)
        except Left:
            raise
        except Exception:
            self.watched.unasked = self._connecting = None
            nvml.disconnect()
            raise
        self.nvml, self._connecting = nvml, None
        self.next_all_gpus = self.clock.monotonic() + intervals.TOPOLOGY
        self._publish()
        driver, gpus = self.inventory.driver_version, self.inventory.answering
        log.info(LogEvent("nvml_connected", driver=driver, gpus=gpus))

    def _release(self, why: str, emit: Emit) -> None:
        """Shut NVML down as soon as the thread for NVML events has freed its event set."""
        if self._events is not None:
            self._events = None
        elif self.nvml is not None and self.nvml.event_set is not None:
            return
        elif self.inventory.reason is not Reason.RELEASED:
            self._disconnect(Absent(Reason.RELEASED, why), emit)
            log.info(LogEvent("driver_released", why=why))
        self.next_rediscovery = 0.0

    def _disconnect(self, why: Absent, emit: Emit) -> None:
        self.watched.unasked = None
        self.threads.take_back(unused=True)
        self.watched.close()
        if self.nvml is not None and not self.threads.left:  # calls in progress need it
            self.nvml.disconnect()
        for gpu in self.watched.all_gpus():
            self.watched.emit_absent(gpu, why, emit)
        self._set_disconnected(why)
        self.next_rediscovery = self.clock.monotonic() + intervals.TICK

    def _set_disconnected(self, why: Absent) -> None:
        self.nvml = self._events = None
        self.inventory = GpuInventory(
            self.inventory.generation, most=self.inventory.most, why_not=str(why), reason=why.reason
        )
        self.gpu_processes.keep(())

    def _publish(self) -> None:
        assert self.nvml is not None
        answering = [gpu.device for gpu in self.watched.answering()]
        self.gpu_processes.keep(device.labels for device in answering)
        handles = {device.identity.uuid: device.handle for device in answering}
        subscribed = self._events.handles.keys() if self._events else set()
        generation = self.inventory.generation + bool(handles.keys() - subscribed)
        self._events = EventSubscription(generation, self.nvml, handles)
        gpus, unanswered = self.watched.all_gpus(), self.watched.unanswered
        left = self.threads.left.items()
        silent = {k: (one.since, str(one.why)) for k, one in left if one.why is not None}
        there = {device.identity.index for device in answering}
        self.inventory = GpuInventory(
            generation=generation,
            driver_version=self.nvml.driver_version,
            nvml_version=self.nvml.nvml_version,
            gpus=tuple(gpu.device.identity for gpu in gpus),
            lost={gpu.uuid: gpu.state.lost_at for gpu in gpus if gpu.state.lost_at is not None},
            not_answering={gpu.uuid: silent[gpu.index] for gpu in gpus if gpu.index in silent},
            missing=tuple(n for n in sorted(unanswered) if self.watched.of(n) is None),
            unmet=tuple(GpuIdentity(n) for n in self.threads.left if self.watched.of(n) is None),
            most=max(self.inventory.most, len(unanswered.keys() | there)),
            why_not="",
        )
