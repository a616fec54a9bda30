"""The GPUs of this machine: connecting to the driver, losing a GPU, taking it back."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.clock import Clock
from agent.errors import LogEvent
from agent.hardware.device import GpuIdentity, NvmlDevice
from agent.hardware.nvml import Nvml
from agent.jobs.gpu_processes import GpuProcesses
from agent.model import Absent, Failure, Reading, ReadKey, Reason
from agent.polling import intervals
from agent.polling.reads import (
    Read,
    ReadCosts,
    everything_absent,
    failure_of,
    is_due,
    is_pending,
    perform,
)
from agent.polling.schedule import SOON
from agent.polling.worker import Emit

log = logging.getLogger(__name__)

WITHOUT_DRIVER = (
    "GPU metrics are absent until the NVIDIA driver answers; --simulate dgx-h100 shows the agent "
    "without a GPU"
)

MOST_GPUS = 1024
"""More than any machine has: a driver that lists more is not to be believed."""

CONNECTION = ReadKey("nvml", "connection")
NO_ANSWER_YET = "the driver has not answered yet"


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """What is known of the GPUs at one moment; replaced whole, read by every thread."""

    generation: int = 0  # grows with each connection to the driver, and with each GPU met anew
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    lost: frozenset[str] = frozenset()  # UUIDs
    most: int = 0  # the most GPUs that answered since the agent started
    why_not: str = NO_ANSWER_YET  # why there is no driver; empty while connected

    @property
    def connected(self) -> bool:
        return not self.why_not

    @property
    def answering(self) -> int:
        return len(self.gpus) - len(self.lost)


@dataclass(slots=True, eq=False)
class WatchedGpu:
    """One GPU with its reads."""

    device: NvmlDevice
    reads: tuple[Read, ...]


BuildReads = Callable[[NvmlDevice, Sequence[GpuIdentity]], Iterable[Read]]
"""From a device and all GPUs of the machine to its reads: a query of what this GPU answers."""

EventSubscription = tuple[int, Nvml, dict[str, Any]]
"""What to listen to for events: the fleet's generation, the library, device handles by UUID."""


@dataclass(slots=True, eq=False)
class GpuWatch:
    """All GPUs of one NVML library. Runs on the NVML worker; only `inventory` is read by others."""

    library: Callable[[], Any]
    build: BuildReads
    clock: Clock
    read_costs: ReadCosts
    gpu_processes: GpuProcesses = field(default_factory=GpuProcesses)
    inventory: GpuInventory = field(default_factory=GpuInventory)
    nvml: Nvml | None = None
    _members: dict[str, WatchedGpu] = field(default_factory=dict)
    _next_rediscovery: float = 0.0
    _next_probe: float = 0.0
    _next_mode_check: float = 0.0
    _turned: bool = False  # whether the first turn is over
    _listener: EventSubscription | None = None
    _order: tuple[tuple[WatchedGpu, Read], ...] = ()  # in the order of one turn
    _unresponsive: dict[int, str] = field(
        default_factory=dict
    )  # indices that do not answer, and why

    def run(self, emit: Emit) -> None:
        """One turn: see to the connection and to lost GPUs, then every read that is due."""
        if self.clock.monotonic() >= self._next_rediscovery:
            self._rediscover(emit)
        if self.inventory.connected:
            self._read_all(emit)
        emit(self._connection())
        self._turned = True

    def complete(self) -> bool:
        """Whether every read of every GPU that answers has run at least once; for any thread."""
        members = tuple(self._members.values())
        return self._turned and all(
            read.runs for m in members if not m.device.lost for read in m.reads
        )

    def reads(self) -> list[Read]:
        """All reads of the GPUs that answer."""
        return [read for _, read in self._order]

    def _read_all(self, emit: Emit) -> None:
        now = self.clock.monotonic() + SOON
        for member, read in self._order:
            if not (is_due(read, now) or (read.run_on_wake and member.device.activity_changed)):
                continue
            if not member.device.lost and self.inventory.connected:
                reading, raised = perform(read, self.clock, self.read_costs)
                if not is_pending(read, reading):
                    emit(reading)
                if raised is not None:
                    self._see_to(raised, member, emit)
        for member in self._members.values():
            member.device.activity_changed = False

    def _see_to(self, raised: Absent, member: WatchedGpu, emit: Emit) -> None:
        if raised.reason is Reason.LOST:
            self._lose(member, emit, raised)
        elif raised.reason is Reason.NO_DRIVER:
            self._disconnect(str(raised), emit)

    def _rediscover(self, emit: Emit) -> None:
        now = self.clock.monotonic()
        self._next_rediscovery = now + intervals.REDISCOVERY
        try:
            if not self.inventory.connected:
                self._connect(emit)
            elif now >= self._next_probe:
                self._probe(emit)
            else:
                for index in range(self._count()):
                    self._take_back(index, emit)
                self._check_modes(emit)
        except Absent as absent:
            if not self.inventory.connected:
                self._set_why_not(str(absent))
            elif absent.reason is Reason.NO_DRIVER:
                self._disconnect(str(absent), emit)

    def _check_modes(self, emit: Emit) -> None:
        """Where MIG was switched on or off, or a GPU was met in a bad moment, it answers other
        questions: query anew."""
        now = self.clock.monotonic()
        if now < self._next_mode_check:
            return
        self._next_mode_check = now + intervals.LINKS
        alive = [m.device for m in self._members.values() if not m.device.lost]
        if any(device.unsure or device.mig_switched() for device in alive):
            self._probe(emit)

    def _connect(self, emit: Emit) -> None:
        self.nvml = Nvml(self.library())
        self.nvml.connect()
        self._listener = None
        try:
            self._probe(emit)
        except Absent:
            self.nvml.disconnect()
            raise
        greeting = self.inventory.driver_version, self.inventory.answering
        driver, gpus = greeting
        log.info(LogEvent("nvml_connected", driver=driver, gpus=gpus))

    def _disconnect(self, why: str, emit: Emit) -> None:
        for member in self._members.values():
            member.device.close()
        if self.nvml is not None:
            self.nvml.disconnect()
        for member in self._members.values():
            absent = Absent(Reason.NO_DRIVER, why)
            for read in member.reads:
                emit(everything_absent(read, absent, self.clock.monotonic()))
        self._set_why_not(why)
        self._next_rediscovery = self.clock.monotonic() + intervals.TICK

    def _set_why_not(self, why: str) -> None:
        self.inventory = GpuInventory(
            self.inventory.generation, most=self.inventory.most, why_not=why
        )
        self.gpu_processes.keep(())

    def _count(self) -> int:
        assert self.nvml is not None
        count = self.nvml.call("nvmlDeviceGetCount")
        if not isinstance(count, int) or not 0 <= count <= MOST_GPUS:
            raise Absent(Reason.UNKNOWN, f"nvmlDeviceGetCount says {count!r:.60}")
        return count

    def _probe(self, emit: Emit) -> None:
        """Ask every GPU anew what it answers; forget those that are no longer listed."""
        count = self._count()
        self._next_probe = self.clock.monotonic() + intervals.TOPOLOGY
        devices = [d for d in map(self._meet, range(count)) if d is not None]
        identities = [d.identity for d in devices]
        met = [
            self._unless_unchanged(m)
            for d in devices
            if (m := self._adopted(d, identities)) is not None
        ]
        before = self._members
        self._members = {m.device.identity.uuid: m for m in met}
        for uuid, member in before.items():
            if uuid not in self._members and self._listed(member, count):
                self._members[uuid] = member
                why = self._unresponsive[member.device.identity.index]
                self._declare_lost(member, emit, Absent(Reason.LOST, why))
            forget(member, self._members.get(uuid), emit)
            if self._members.get(uuid) is not member:
                member.device.close()
        self._publish()

    def _unless_unchanged(self, member: WatchedGpu) -> WatchedGpu:
        """The member as it was, if the GPU answers the same questions: its totals go on."""
        before = self._members.get(member.device.identity.uuid)
        if before is None or not same(before, member):
            return member
        member.device.close()
        for read in before.reads:
            read.again()
        return before

    def _listed(self, member: WatchedGpu, count: int) -> bool:
        """Whether the driver still lists a GPU that does not answer, under its old index."""
        index = member.device.identity.index
        return index < count and index in self._unresponsive

    def _take_back(self, index: int, emit: Emit) -> None:
        """Meet a GPU that was lost, or that never answered, if it answers now."""
        here = {m.device.identity.index for m in self._members.values() if not m.device.lost}
        device = None if index in here else self._meet(index)
        if device is None:
            return
        before = self._members.get(device.identity.uuid)
        identities = [*self.inventory.gpus] if before else [*self.inventory.gpus, device.identity]
        member = self._adopted(device, identities)
        if member is None:
            return
        self._members[device.identity.uuid] = member
        if before is not None:
            before.device.close()
            forget(before, member, emit)
        self._publish()
        log.info(LogEvent("gpu_back", gpu=index, uuid=device.identity.uuid))

    def _meet(self, index: int) -> NvmlDevice | None:
        """The GPU of this index, or None where it does not answer."""
        assert self.nvml is not None
        try:
            return NvmlDevice(self.nvml, index)
        except Exception as error:  # what is odd about one GPU must not cost the others
            self._report_unresponsive(index, error)
            return None

    def _adopted(self, device: NvmlDevice, identities: Sequence[GpuIdentity]) -> WatchedGpu | None:
        """A GPU with its reads; None for one that is lost meanwhile, which waits for its turn."""
        try:
            member = WatchedGpu(device, tuple(self.build(device, identities)))
        except Exception as error:  # as above
            device.close()
            self._report_unresponsive(device.identity.index, error)
            return None
        self._unresponsive.pop(device.identity.index, None)
        return member

    def _report_unresponsive(self, index: int, error: Exception) -> None:
        """Complain once of a GPU that does not answer; the driver's end is everyone's."""
        if isinstance(error, Absent) and error.reason is Reason.NO_DRIVER:
            raise error
        why = str(error) if isinstance(error, Absent) else str(failure_of(error))
        if index not in self._unresponsive:
            log.warning(LogEvent("gpu_not_answering", gpu=index, error=why))
        self._unresponsive[index] = why

    def _lose(self, member: WatchedGpu, emit: Emit, absent: Absent) -> None:
        self._declare_lost(member, emit, absent)
        self._unresponsive[member.device.identity.index] = str(
            absent
        )  # told below, and not once more
        self._publish()
        gpu = member.device.identity.key
        log.error(LogEvent("gpu_lost", gpu=gpu.index, uuid=gpu.uuid, error=str(absent)))

    def _declare_lost(self, member: WatchedGpu, emit: Emit, absent: Absent) -> None:
        member.device.lost = True
        for read in member.reads:
            emit(everything_absent(read, absent, self.clock.monotonic()))

    def _publish(self) -> None:
        assert self.nvml is not None
        members = sorted(self._members.values(), key=lambda m: m.device.identity.index)
        self._order = in_turn(members)
        lost = frozenset(m.device.identity.uuid for m in members if m.device.lost)
        gpus = tuple(m.device.identity for m in members)
        handles = {m.device.identity.uuid: m.device.handle for m in members if not m.device.lost}
        self.gpu_processes.keep(m.device.labels for m in members if not m.device.lost)
        heard = self._listener[2].keys() if self._listener else set()
        generation = self.inventory.generation + bool(handles.keys() - heard)
        self._listener = (generation, self.nvml, handles)
        self.inventory = GpuInventory(
            generation=generation,
            driver_version=self.nvml.driver_version,
            nvml_version=self.nvml.nvml_version,
            gpus=gpus,
            lost=lost,
            most=max(self.inventory.most, len(gpus) - len(lost)),
            why_not="",
        )

    def listener(self) -> EventSubscription | None:
        """What the XID watch listens to; None without a driver or a GPU. For any thread."""
        listener = self._listener
        return listener if self.inventory.connected and listener and listener[2] else None

    def _connection(self) -> Reading:
        why_not = self.inventory.why_not
        failure = Failure(why_not, "", WITHOUT_DRIVER) if why_not else None
        return Reading(CONNECTION, self.clock.monotonic(), intervals.TICK, failure=failure)


def same(before: WatchedGpu, now: WatchedGpu) -> bool:
    """Whether a GPU answers the same questions, under the same index, of the same connection."""
    one, other = before.device, now.device
    keys = [{read.key for read in member.reads} for member in (before, now)]
    return (
        one.nvml is other.nvml
        and not one.lost
        and (one.labels, one.mig) == (other.labels, other.mig)
        and keys[0] == keys[1]
    )


def forget(member: WatchedGpu, kept: WatchedGpu | None, emit: Emit) -> None:
    """Drop the readings of reads that a GPU no longer has."""
    keys = {read.key for read in kept.reads} if kept else set()
    for read in member.reads:
        if read.key not in keys:
            emit(read.key)


def in_turn(members: Sequence[WatchedGpu]) -> tuple[tuple[WatchedGpu, Read], ...]:
    """The reads of the GPUs that answer, quick intervals first so that dear ones delay none."""
    pairs = [(m, read) for m in members if not m.device.lost for read in m.reads]
    return tuple(sorted(pairs, key=lambda pair: pair[1].every() > intervals.TICK))
