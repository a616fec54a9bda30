"""The GPUs of this machine: connecting to the driver, losing a GPU, taking it back."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent import beats
from agent.agenda import is_due
from agent.backends.device import Device, Identity
from agent.backends.nvml import Nvml
from agent.clock import Clock
from agent.lane import Emit
from agent.model import Absent, Reading, ReadKey, Reason
from agent.reads import Ledger, Read, everything_absent, perform

log = logging.getLogger(__name__)

WITHOUT_DRIVER = (
    "GPU metrics are absent until the NVIDIA driver answers; --simulate dgx-h100 shows the agent "
    "without a GPU"
)

CONNECTION = ReadKey("nvml", "connection")


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of the GPUs at one moment; replaced whole, read by every thread."""

    generation: int = 0  # grows with each connection to the driver
    driver_version: str = ""
    nvml_version: str = ""
    gpus: tuple[Identity, ...] = ()
    lost: frozenset[str] = frozenset()  # UUIDs
    most: int = 0  # the most GPUs that answered since the agent started
    why_not: str = "not asked yet"  # why there is no driver; empty while connected

    @property
    def connected(self) -> bool:
        return not self.why_not

    @property
    def answering(self) -> int:
        return len(self.gpus) - len(self.lost)


@dataclass(slots=True, eq=False)
class Member:
    """One GPU with its reads."""

    device: Device
    reads: tuple[Read, ...]


BuildReads = Callable[[Device, Sequence[Identity]], Iterable[Read]]
"""From a device and all GPUs of the machine to its reads: a probe of what this GPU answers."""


@dataclass(slots=True, eq=False)
class Gpus:
    """All GPUs of one NVML library. Runs on the NVML lane; only `fleet` is read by others."""

    library: Callable[[], Any]
    build: BuildReads
    clock: Clock
    ledger: Ledger
    fleet: Fleet = field(default_factory=Fleet)
    nvml: Nvml | None = None
    _members: dict[str, Member] = field(default_factory=dict)
    _next_roll_call: float = 0.0
    _next_probe: float = 0.0
    _generation: int = 0
    _silent: set[int] = field(default_factory=set)  # indices already complained about

    def run(self, emit: Emit) -> None:
        """One turn: see to the connection and to lost GPUs, then every read that is due."""
        if self.clock.monotonic() >= self._next_roll_call:
            self._roll_call(emit)
        if self.fleet.connected:
            self._read_all(emit)
        emit(self._connection())

    def complete(self) -> bool:
        """Whether every read of every GPU that answers has run at least once."""
        return self._next_roll_call > 0.0 and all(
            read.runs for m in self._members.values() if not m.device.lost for read in m.reads
        )

    def reads(self) -> list[Read]:
        """All reads of the GPUs that answer, quick beats first so that dear ones delay none."""
        reads = [r for m in self._members.values() if not m.device.lost for r in m.reads]
        return sorted(reads, key=lambda read: read.every() > beats.TICK)

    def _read_all(self, emit: Emit) -> None:
        for read in self.reads():
            member = self._members.get(read.key.device)
            if member is None or member.device.lost:
                continue
            if is_due(read, self.clock) or (read.prompt and member.device.woken):
                reading, raised = perform(read, self.clock, self.ledger)
                emit(reading)
                if raised is not None:
                    self._see_to(raised, member, emit)
        for member in self._members.values():
            member.device.woken = False

    def _see_to(self, raised: Absent, member: Member, emit: Emit) -> None:
        if raised.reason is Reason.LOST:
            self._lose(member, emit, raised)
        elif raised.reason is Reason.NO_DRIVER:
            self._disconnect(str(raised), emit)

    def _roll_call(self, emit: Emit) -> None:
        now = self.clock.monotonic()
        self._next_roll_call = now + beats.ROLL_CALL
        if not self.fleet.connected:
            self._connect(emit)
        elif now >= self._next_probe:
            self._next_probe = now + beats.TOPOLOGY
            self._probe(emit)
        else:
            for index in range(self._count()):
                self._take_back(index, emit)

    def _connect(self, emit: Emit) -> None:
        self.nvml = Nvml(self.library())
        try:
            self.nvml.connect()
        except Absent as absent:
            self._set_why_not(str(absent))
            return
        self._generation += 1
        self._next_probe = self.clock.monotonic() + beats.TOPOLOGY
        self.fleet = Fleet(
            generation=self._generation,
            driver_version=self.nvml.driver_version,
            nvml_version=self.nvml.nvml_version,
            most=self.fleet.most,
            why_not="",
        )
        self._probe(emit)
        log.info("event=nvml_connected driver=%s gpus=%d", *self._greeting())

    def _greeting(self) -> tuple[str, int]:
        return self.fleet.driver_version, self.fleet.answering

    def _disconnect(self, why: str, emit: Emit) -> None:
        if self.nvml is not None:
            self.nvml.disconnect()
        for member in self._members.values():
            absent = Absent(Reason.NO_DRIVER, why)
            for read in member.reads:
                emit(everything_absent(read, absent, self.clock.monotonic()))
        self._members = {}
        self._set_why_not(why)
        self._next_roll_call = self.clock.monotonic() + beats.TICK

    def _set_why_not(self, why: str) -> None:
        self.fleet = Fleet(most=self.fleet.most, why_not=why)

    def _count(self) -> int:
        assert self.nvml is not None
        try:
            return int(self.nvml.call("nvmlDeviceGetCount"))
        except Absent:
            return 0

    def _probe(self, emit: Emit) -> None:
        """Ask every GPU anew what it answers; forget those that are no longer listed."""
        before, self._members = self._members, {}
        devices = [d for d in map(self._meet, range(self._count())) if d is not None]
        for device in devices:
            self._adopt(device, [d.identity for d in devices])
        for member in before.values():
            kept = self._members.get(member.device.identity.uuid)
            forget(member, kept, emit)
        self._publish()

    def _take_back(self, index: int, emit: Emit) -> None:
        """Meet a GPU that was lost, or that never answered, if it answers now."""
        here = {m.device.identity.index for m in self._members.values() if not m.device.lost}
        device = None if index in here else self._meet(index)
        if device is None:
            return
        before = self._members.get(device.identity.uuid)
        identities = [*self.fleet.gpus] if before else [*self.fleet.gpus, device.identity]
        self._adopt(device, identities)
        if before is not None:
            forget(before, self._members.get(device.identity.uuid), emit)
        self._publish()
        log.info("event=gpu_back gpu=%d uuid=%s", index, device.identity.uuid)

    def _meet(self, index: int) -> Device | None:
        """The GPU of this index, or None where it does not answer."""
        assert self.nvml is not None
        try:
            device = Device(self.nvml, index)
        except Absent as absent:
            self._mute(index, str(absent))
            return None
        self._silent.discard(index)
        return device

    def _adopt(self, device: Device, identities: Sequence[Identity]) -> None:
        """Build the reads of a GPU that answers; one that is lost meanwhile waits for its turn."""
        try:
            reads = tuple(self.build(device, identities))
        except Absent as absent:
            self._mute(device.identity.index, str(absent))
            return
        self._members[device.identity.uuid] = Member(device, reads)

    def _mute(self, index: int, why: str) -> None:
        if index not in self._silent:
            log.warning('event=gpu_not_answering gpu=%d error="%s"', index, why)
        self._silent.add(index)

    def _lose(self, member: Member, emit: Emit, absent: Absent) -> None:
        member.device.lost = True
        for read in member.reads:
            emit(everything_absent(read, absent, self.clock.monotonic()))
        self._publish()
        log.error('event=gpu_lost gpu=%s uuid=%s error="%s"', *member.device.labels, absent)

    def _publish(self) -> None:
        members = sorted(self._members.values(), key=lambda m: m.device.identity.index)
        lost = frozenset(m.device.identity.uuid for m in members if m.device.lost)
        gpus = tuple(m.device.identity for m in members)
        self.fleet = Fleet(
            generation=self._generation,
            driver_version=self.fleet.driver_version,
            nvml_version=self.fleet.nvml_version,
            gpus=gpus,
            lost=lost,
            most=max(self.fleet.most, len(gpus) - len(lost)),
            why_not="",
        )

    def listener(self) -> tuple[int, Nvml, dict[str, Any]] | None:
        """What the XID watch listens to: the connection and the handles of the GPUs that answer."""
        if self.nvml is None or not self.fleet.connected:
            return None
        members = tuple(self._members.items())
        handles = {uuid: m.device.handle for uuid, m in members if not m.device.lost}
        return (self.fleet.generation, self.nvml, handles) if handles else None

    def _connection(self) -> Reading:
        failure = f"{self.fleet.why_not}: {WITHOUT_DRIVER}" if self.fleet.why_not else ""
        return Reading(CONNECTION, self.clock.monotonic(), beats.TICK, failure=failure)


def forget(member: Member, kept: Member | None, emit: Emit) -> None:
    """Drop the readings of reads that a GPU no longer has."""
    keys = {read.key for read in kept.reads} if kept else set()
    for read in member.reads:
        if read.key not in keys:
            emit(read.key)
