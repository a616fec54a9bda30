"""The NVML worker's turn: connect to the driver, find and lose GPUs, run the reads that are due."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.clock import Clock
from agent.errors import LogEvent
from agent.hardware.nvml import Nvml
from agent.model import Absent, Failure, Reading, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_processes import GpuProcesses
from agent.polling.gpu_queries import BuildReads, GpuQueries, WatchedGpu, count_of
from agent.polling.inventory import EventSubscription, GpuInventory
from agent.polling.reads import Read, ReadCosts, failure_of, is_due, is_pending, perform
from agent.polling.schedule import SOON
from agent.polling.watched_gpus import WatchedGpus
from agent.polling.worker import Emit

log = logging.getLogger(__name__)

WITHOUT_DRIVER = (
    "GPU metrics are absent until the NVIDIA driver answers; --simulate dgx-h100 shows the agent "
    "without a GPU"
)

CONNECTION = ReadKey("nvml", "connection")


@dataclass(slots=True)
class NextQueries:
    """When (s of the agent's clock) which query runs next; 0 is at once."""

    rediscovery: float = 0.0  # is the driver there, is a lost GPU back
    all_gpus: float = 0.0
    modes: float = 0.0  # do GPUs answer other questions than when they were queried


@dataclass(slots=True, eq=False)
class GpuWatch:
    """All GPUs of one NVML library. It is in one of two states: connected, with `nvml`, or not, and
    then `inventory` says why. Runs on the NVML worker; `inventory`, `events` and `complete` are for
    any thread."""

    library: Callable[[], Any]
    build: BuildReads
    clock: Clock
    read_costs: ReadCosts
    gpu_processes: GpuProcesses = field(default_factory=GpuProcesses)
    inventory: GpuInventory = field(default_factory=GpuInventory)
    nvml: Nvml | None = None  # while connected
    next: NextQueries = field(default_factory=NextQueries)
    watched: WatchedGpus = field(init=False)
    _events: EventSubscription | None = None
    _first_turn_over: bool = False

    def __post_init__(self) -> None:
        self.watched = WatchedGpus(GpuQueries(self.build), self.clock)

    def run(self, emit: Emit) -> None:
        """One turn: see to the connection and to lost GPUs, then every read that is due."""
        if self.clock.monotonic() >= self.next.rediscovery:
            self._rediscover(emit)
        if self.nvml is not None:
            self._read_all(emit)
        why_not = self.inventory.why_not
        failure = Failure(why_not, "", WITHOUT_DRIVER) if why_not else None
        emit(Reading(CONNECTION, self.clock.monotonic(), intervals.TICK, failure=failure))
        self._first_turn_over = True

    def complete(self) -> bool:
        """Whether every read of every GPU that answers has run at least once."""
        return self._first_turn_over and self.watched.have_run()

    def events(self) -> EventSubscription | None:
        """What there is to wait for; None without a driver or a GPU."""
        events = self._events
        return events if self.inventory.connected and events and events.handles else None

    def reads(self) -> list[Read]:
        """All reads of the GPUs that answer."""
        return [read for _, read in self.watched.in_order]

    def _read_all(self, emit: Emit) -> None:
        now = self.clock.monotonic() + SOON
        for gpu, read in self.watched.in_order:
            if not (is_due(read, now) or (read.run_on_wake and gpu.device.activity_changed)):
                continue
            if not gpu.device.lost and self.nvml is not None:
                reading, raised = perform(read, self.clock, self.read_costs)
                if not is_pending(read, reading):
                    emit(reading)
                if raised is not None:
                    self._follow_up(raised, gpu, emit)
        self.watched.clear_wakes()

    def _follow_up(self, raised: Absent, gpu: WatchedGpu, emit: Emit) -> None:
        """What a read raised may mean the end of its GPU, or of the driver."""
        if raised.reason is Reason.LOST:
            self.watched.lose(gpu, raised, emit)
            self._publish()
        elif raised.reason is Reason.NO_DRIVER:
            self._disconnect(str(raised), emit)

    def _rediscover(self, emit: Emit) -> None:
        self.next.rediscovery = self.clock.monotonic() + intervals.REDISCOVERY
        try:
            if self.nvml is None:
                self._connect(emit)
            else:
                self._query(self.nvml, emit)
        except Absent as absent:
            if self.nvml is None:
                self._set_disconnected(str(absent), absent.reason)
            elif absent.reason is Reason.NO_DRIVER:
                self._disconnect(str(absent), emit)
        except Exception as error:  # a fault of the agent or its bindings, not of the GPUs
            if self.nvml is not None:
                raise
            log.exception(LogEvent("connecting_failed"))
            self._set_disconnected(str(failure_of(error)), Reason.FAILED)

    def _query(self, nvml: Nvml, emit: Emit) -> None:
        """Each hour of all GPUs what they answer, or where one may answer otherwise; else of the
        missing ones whether they are back."""
        now = self.clock.monotonic()
        if now >= self.next.all_gpus:
            self._query_all(nvml, emit)
            return
        for index in range(count_of(nvml)):
            if self.watched.query_missing(nvml, index, emit):
                self._publish()
        if now >= self.next.modes:
            self.next.modes = now + intervals.LINKS
            if self.watched.must_be_queried():
                self._query_all(nvml, emit)

    def _query_all(self, nvml: Nvml, emit: Emit) -> None:
        self.watched.query_all(nvml, emit)
        self.next.all_gpus = self.clock.monotonic() + intervals.TOPOLOGY
        self._publish()

    def _connect(self, emit: Emit) -> None:
        nvml = Nvml(self.library())
        nvml.connect()
        try:
            self.watched.query_all(nvml, emit)
        except Exception:
            nvml.disconnect()
            raise
        self.nvml = nvml
        self.next.all_gpus = self.clock.monotonic() + intervals.TOPOLOGY
        self._publish()
        driver, gpus = self.inventory.driver_version, self.inventory.answering
        log.info(LogEvent("nvml_connected", driver=driver, gpus=gpus))

    def _disconnect(self, why: str, emit: Emit) -> None:
        self.watched.close()
        if self.nvml is not None:
            self.nvml.disconnect()
        self.watched.all_absent(Absent(Reason.NO_DRIVER, why), emit)
        self._set_disconnected(why)
        self.next.rediscovery = self.clock.monotonic() + intervals.TICK

    def _set_disconnected(self, why: str, reason: Reason = Reason.NO_DRIVER) -> None:
        self.nvml = self._events = None
        self.inventory = GpuInventory(
            self.inventory.generation, most=self.inventory.most, why_not=why, reason=reason
        )
        self.gpu_processes.keep(())

    def _publish(self) -> None:
        """Tell all threads which GPUs there are."""
        assert self.nvml is not None
        answering = [gpu.device for gpu in self.watched.answering()]
        self.gpu_processes.keep(device.labels for device in answering)
        handles = {device.identity.uuid: device.handle for device in answering}
        subscribed = self._events.handles.keys() if self._events else set()
        generation = self.inventory.generation + bool(handles.keys() - subscribed)
        self._events = EventSubscription(generation, self.nvml, handles)
        gpus = self.watched.all_gpus()
        self.inventory = GpuInventory(
            generation=generation,
            driver_version=self.nvml.driver_version,
            nvml_version=self.nvml.nvml_version,
            gpus=tuple(self.watched.identities()),
            lost={gpu.uuid: gpu.device.lost_at for gpu in gpus if gpu.device.lost_at is not None},
            most=max(self.inventory.most, len(answering) + len(self.watched.queries.unanswered)),
            why_not="",
        )
