"""XID errors: the thread that waits for NVML's events, and the check of lines of the kernel's log.

That NVML has no event of a line does not refute it: some codes have none, and events get lost. The
state of the GPU does, for a few codes. All others are believed: a line is matched whole, and no
program can write one that the kernel marks as its own. So are fatal errors of NVSwitches, of which
NVML shows nothing.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.errors import LogEvent
from agent.hardware.device import text_of
from agent.hardware.nvml import Nvml
from agent.model import Absent, Kind, Metric, Reason, Snapshot
from agent.polling.gpu_state import EventSubscription

FALLEN = 79

SETTLED = 10.0
"""Seconds after a line until NVML shows what it reports, and before it from which a value is one
that does not have the error."""

DISTINCT = 3
"""Sources that go on answering for a GPU that did not fall off the bus: the driver gives some
values from a copy of its own."""

SECOND_READING = 3.0  # Seconds within which a reading that differs from the one before is repeated
LONGEST = 90.0  # Seconds until a line is believed that NVML neither confirms nor contradicts


@dataclass(slots=True)
class Claim:
    """Lines of one code on one GPU that wait for NVML: since when (s), and what each names."""

    since: float
    who: list[str] = field(default_factory=list)
    before: float | None = None  # the value that must exceed this
    looked: bool = False
    denied: float | None = None  # since when


@dataclass(frozen=True, slots=True)
class XidChecks:
    """Says whether NVML confirms a claim. `shown` has, by code, the metric and one of its labels
    that shows the error: a counter that grows, or a gauge that is not 0. Of no code by default."""

    latest: Callable[[], Snapshot] = lambda: Snapshot(0, 0.0, 0.0)
    lost: Callable[[], Container[str]] = tuple  # UUIDs
    shown: Mapping[int, tuple[Metric, str]] = field(default_factory=dict)

    def covers(self, code: int) -> bool:
        return code in self.shown or (code == FALLEN and bool(self.shown))

    def verdict(self, code: int, uuid: str, claim: Claim, now: float) -> bool | None:
        """True: count it; False: NVML contradicts it; None: not known yet."""
        mine = [r for key, r in self.latest().readings.items() if key.device == uuid]
        after = claim.since + SETTLED
        if code == FALLEN:
            if uuid in self.lost():
                return True
            answering = {r.key.source for r in mine if r.at >= after and r.samples}
            denied = len(answering) >= DISTINCT
        else:
            metric, label = self.shown[code]
            at, value = 0.0, None
            for reading in mine:
                of_it = (s for s in reading.samples if s.metric is metric)
                found = [s.value for s in of_it if label in ("", *s.labels)]
                at, value = (reading.at, sum(found)) if found else (at, value)
            if not claim.looked:
                known = value is not None and at <= claim.since - SETTLED
                claim.before = (value if known else None) if metric.kind is Kind.COUNTER else 0.0
                claim.looked = True
            if value is None or claim.before is None or value > claim.before:
                return True
            denied = at >= after
        if denied:  # a change is exported once a second reading has it
            claim.denied = now if claim.denied is None else claim.denied
            return False if now - claim.denied >= SECOND_READING else None
        return True if now - claim.since >= LONGEST else None


log = logging.getLogger(__name__)

RECOVERABLE, LEVEL_ALL = 30, 0
"""The least severity and level that are asked for: an XID error is recoverable or worse."""

OPERATIONAL = 1  # NVML_EVENT_DATA_TYPE_GPU_OPERATIONAL_EVENT
LEGACY_XID = 1  # NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID
MOST_AT_ONCE, MOST_CONTEXTS = 100, 16


class OperationalEvents:
    """One connection's events; none where its driver or its bindings refuse them."""

    def __init__(self, nvml: Nvml, uuids: Iterable[str]) -> None:
        self._nvml = nvml
        self._events: Any = None
        try:
            self._events = nvml.call("nvmlEventSetCreate")
            for uuid in uuids:
                config = nvml.library.c_nvmlGpuOperationalEventConfig_v1_t(
                    uuid.encode(), LEVEL_ALL, RECOVERABLE
                )
                nvml.call("nvmlEventSetRegisterGpuOperationalEvents_v1", self._events, config)
        except (Absent, AttributeError) as refused:
            log.debug(LogEvent("operational_events_off", why=str(refused)))
            self.close()

    def close(self) -> None:
        """Give the event set back."""
        events, self._events = self._events, None
        if events is not None:
            with suppress(Absent):
                self._nvml.call("nvmlEventSetFree", events)

    def xids(self) -> Iterator[tuple[str, int]]:
        """UUID and code of each XID error that came since; waits for none."""
        for _ in range(MOST_AT_ONCE if self._events is not None else 0):
            event = self._nvml.library.c_nvmlEventSetWait_v3_t()
            try:
                self._nvml.call("nvmlEventSetWait_v3", self._events, event)
                if event.dataType == OPERATIONAL:
                    uuid = text_of(event, "uuid")
                    yield from ((uuid, code) for code in self._codes())
            except Absent:  # nothing more, or the driver has gone
                return

    def _codes(self) -> Iterator[int]:
        library = self._nvml.library
        count = library.c_nvmlEventSetGetContextCount_v1_t()
        self._nvml.call("nvmlEventSetGetContextCount_v1", self._events, count)
        for index in range(min(count.count, MOST_CONTEXTS)):
            info = library.c_nvmlEventSetGetContextInfo_v1_t(index=index)
            self._nvml.call("nvmlEventSetGetContextInfo_v1", self._events, info)
            if info.nvmlGpuOperationalEventContextType == LEGACY_XID:
                found = library.c_nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1_t(
                    index=index
                )
                self._nvml.call(
                    "nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1", self._events, found
                )
                yield int(found.xidCode)


XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
WAIT = 2_000  # ms; events are delivered at once, this only bounds how late a re-connection is seen
PAUSE = 1.0  # s, between attempts where the driver gives no event set
TIMEOUT = 10  # NVML_ERROR_TIMEOUT: nothing happened


class XidListener(Protocol):
    """Called with each XID error."""

    refused: Mapping[str, Absent]  # GPUs without events, by UUID

    def note(self, uuid: str, code: int, way: str = "nvml") -> None:
        """An XID error of a GPU, and by which way it came."""


def handle_address(handle: Any) -> Any:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle


class XidWatch:
    """Waits on the event set, and makes a new one after each connection to the driver."""

    def __init__(
        self, subscription: Callable[[], EventSubscription | None], counts: XidListener
    ) -> None:
        self._subscription = subscription
        self._counts = counts
        self._generation = 0
        self._nvml: Nvml | None = None
        self._operational: OperationalEvents | None = None
        self._uuids: dict[Any, str] = {}

    def start(self) -> None:
        """Listen for ever, on a daemon thread."""
        threading.Thread(target=self._loop, name="xid", daemon=True).start()

    def _loop(self) -> None:
        idle = threading.Event()
        failing = False
        while True:
            try:
                listens = self.poll()
            except Exception:  # the thread must live: the next event may be the one that matters
                if not failing:
                    log.exception(LogEvent("xid_watch_failed"))
                failing, listens = True, False
            else:
                failing = False
            if not listens:
                idle.wait(PAUSE)

    def poll(self, milliseconds: int = WAIT) -> bool:
        """Wait once for an event and count it; False where there is nothing to listen to."""
        subscription = self._subscription()
        if subscription is None:
            if self._nvml is not None:  # before NVML is given back
                self._close_operational()
                free(self._nvml, self._nvml.event_set)
                self._nvml.event_set, self._nvml, self._generation = None, None, 0
            return False
        if subscription.generation != self._generation and not self._listen(subscription):
            return False
        assert self._nvml is not None
        if self._operational is not None:
            for uuid, code in self._operational.xids():
                self._counts.note(uuid, code, "operational")
        try:
            event = self._nvml.library.nvmlEventSetWait(self._nvml.event_set, milliseconds)
        except self._nvml.library.NVMLError as error:
            if getattr(error, "value", None) == TIMEOUT:
                return True
            self._generation = 0  # listen again
            return False
        self._count(event)
        return True

    def _listen(self, subscription: EventSubscription) -> bool:
        """Listen to every GPU that lets itself be listened to; False where none does."""
        nvml, handles = subscription.nvml, subscription.handles
        refused: dict[str, Absent] = {}
        try:
            events = nvml.call("nvmlEventSetCreate")
        except Absent as absent:
            self._counts.refused = dict.fromkeys(handles, absent.without_traceback())
            return False
        for uuid, handle in handles.items():
            try:
                nvml.call("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
            except Absent as absent:
                refused[uuid] = absent.without_traceback()
        lost = {uuid for uuid, absent in refused.items() if absent.reason is Reason.LOST}
        self._counts.refused = {u: a for u, a in refused.items() if u not in lost}
        if len(refused) == len(handles):
            free(nvml, events)
            return False
        if self._nvml is nvml:
            free(nvml, nvml.event_set)
        self._close_operational()
        self._operational = OperationalEvents(nvml, handles.keys() - refused.keys())
        self._uuids = {handle_address(handle): uuid for uuid, handle in handles.items()}
        nvml.event_set = events
        self._nvml, self._generation = nvml, subscription.generation
        return True

    def _close_operational(self) -> None:
        if self._operational is not None:
            self._operational.close()
            self._operational = None

    def _count(self, event: Any) -> None:
        if not event.eventType & XID_EVENT:
            return
        uuid = self._uuids.get(handle_address(event.device))
        if uuid is not None:
            self._counts.note(uuid, int(event.eventData))


def free(nvml: Nvml, events: Any) -> None:
    """Let go of an event set; one that the driver forgot already is no error."""
    if events is not None:
        with suppress(Absent):
            nvml.call("nvmlEventSetFree", events)
