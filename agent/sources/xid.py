"""XID errors by code, reported by NVML events and in the kernel log.

An error may be reported as an event, as a log line, or as both at different times. The agent counts
events and log lines separately, and reports the larger count. It never counts an error twice, and
usually counts an error that is reported in only one way.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent.errors import LogEvent, log
from agent.hardware.kernel_log import KernelXid
from agent.hardware.nvml import Nvml, address_of
from agent.metrics import declared_beside
from agent.model import Absent, ReadKey, Reason, Sample
from agent.polling import intervals
from agent.polling.gpu_state import EventSubscription, GpuInventory
from agent.polling.reads import Read, ReadOutput, fixed
from agent.polling.worker import Guard
from agent.ranges import pci_address
from agent.specs import xids
from agent.threads import in_time

_METRICS = declared_beside(__file__)
XID_ERRORS = replace(
    _METRICS["dgx_gpu_xid_errors_total"], which=lambda labels: int(labels[-1]) in xids.critical()
)
LAST = _METRICS["dgx_gpu_last_xid"]
AT = _METRICS["dgx_gpu_last_xid_seconds"]
NVLINK_FAULTS = replace(_METRICS["dgx_gpu_nvlink_faults_total"], which=lambda _: True)

PCI = "PCI"
LARGEST = 9999
"""Largest valid XID code. A code with all bits set means no error."""

BURST = 60.0  # Seconds for which repeated errors of a GPU with the same code are not logged
EXCEPTION = 2.5
"""Lines with the XID of an SM exception within this many seconds belong to the same exception, even
if they are read in different ticks."""


class XidCounts:
    """Counts XID errors by GPU UUID and code. The counts of a lost GPU are kept. One thread writes
    the counts of events, and another writes those of log lines."""

    def __init__(
        self,
        inventory: Callable[[], GpuInventory],
        listed: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._inventory = inventory
        self._listed = listed  # UUIDs by address, as listed by the driver even for lost GPUs
        self._sought: set[str] = set()
        self._unmet: Mapping[str, str] = {}
        self._logged = False  # whether the kernel log can be read
        self._ways = {way: Counter[tuple[str, int]]() for way in ("nvml", "log", "fallen")}
        self._faults: Counter[tuple[str, str, str, str]] = Counter()
        self._at: dict[tuple[str, int], float] = {}  # last error by GPU and code, in order
        self._known: dict[str, str] = {}
        self._places: dict[tuple[int, ...], str] = {}
        self.refused: Mapping[str, Absent] = {}  # GPUs without events, by UUID
        self._sampled: object = None  # state from which the samples in the cache were built
        self._samples: list[Sample] = []
        self._reported: dict[tuple[str, int], tuple[float, int]] = {}  # time and count last logged
        self._exceptions: dict[tuple[str, str], float] = {}  # start time of the last exception
        self._odd = False  # whether an impossible code has been logged
        self._lock = threading.Lock()
        self._now = 0.0

    def note_line(self, line: KernelXid) -> None:
        """Count an XID error in the kernel log. The UUID of an unknown GPU is looked up by its PCI
        address. If the driver does not list this address, the error is logged, but not counted."""
        where = f"{PCI}:{line.pci.lower().partition('.')[0]}"
        if self._met(where) == where and where not in self._sought:
            self._sought.add(where)
            with suppress(TimeoutError):  # reading the driver's files may block if it hangs
                self._unmet = in_time(self._listed)
        self.note(line.way, where, line.code)
        if line.unit:
            action = xids.nvlink5_action(
                line.unit, fatal=line.fatal, first=line.first, status=line.status
            )
            self._faults[where, str(line.code), line.unit, action] += 1

    def log_answers(self, answers: bool) -> None:
        self._logged = answers

    def note(self, way: str, uuid: str, code: int) -> None:
        """Count an XID error that was reported as `way`, such as `nvml` for an event."""
        if not 0 < code <= LARGEST:
            if not self._odd:  # log only once, because the driver may repeat it
                log.warning(LogEvent("implausible", metric=XID_ERRORS.name, uuid=uuid, value=code))
            self._odd = True
            return
        with self._lock:
            if code == 13:  # an SM exception: the driver logs many lines, such as one per SM
                if self._now - self._exceptions.get((way, uuid), -EXCEPTION) < EXCEPTION:
                    return
                self._exceptions[way, uuid] = self._now
            self._ways[way][uuid, code] += 1
            self._at.pop((uuid, code), None)  # the error becomes the last
            self._at[uuid, code] = self._now

    def read(self, out: ReadOutput) -> None:
        inventory = self._inventory()
        for gpu in inventory.gpus:
            self._known[gpu.uuid] = str(gpu.index)
            self._places[pci_address(gpu.pci_bus_id)] = gpu.uuid
        for number, (address, uuid) in enumerate(self._unmet.items()):
            if self._places.setdefault(pci_address(address), uuid) == uuid:
                self._known.setdefault(uuid, str(number))
        self._now = out.at
        with self._lock:
            seen = self._together()
            last = {self._met(where): code for where, code in self._at}
            came = sorted((self._met(where), code, at) for (where, code), at in self._at.items())
        self._report(seen)
        if not self._known:
            reason = Reason.MISSING if inventory.connected else inventory.reason
            raise Absent(reason, inventory.why_not or "no GPU to listen to")
        silent = {} if self._logged else dict(self.refused)
        state = (seen, dict(self._faults), dict(self._known), silent)
        if state != self._sampled:
            self._sampled = state
            answering = {u: gpu for u, gpu in self._known.items() if u not in silent}
            latest = [Sample(LAST, (g, u), float(last.get(u, 0))) for u, g in answering.items()]
            newest = {(u, str(code)): at for u, code, at in came if u in answering}  # all channels
            times = [Sample(AT, (answering[u], u, code), at) for (u, code), at in newest.items()]
            self._samples = [*_errors(seen, answering), *latest, *times, *self._nvlink_faults()]
        out.samples.extend(self._samples)
        for uuid, absent in silent.items():
            out.absent(XID_ERRORS, absent, self._known.get(uuid, ""), uuid)

    def _together(self) -> dict[tuple[str, int], int]:
        """Return the largest count from NVML or the kernel log, by GPU and code. A PCI address
        stands for the GPU until its UUID is known."""
        found: dict[tuple[str, int], int] = {}
        for way in self._ways.values():
            counted: Counter[tuple[str, int]] = Counter()
            for (where, code), count in way.items():
                counted[self._met(where), code] += count
            for key, count in counted.items():
                found[key] = max(found.get(key, 0), count)
        return found

    def _met(self, where: str) -> str:
        """Return the UUID of the GPU at a PCI address, or the address if the GPU is unknown."""
        address = where.removeprefix(f"{PCI}:")
        return where if address == where else self._places.get(pci_address(address), where)

    def _nvlink_faults(self) -> Iterator[Sample]:
        for (where, *which), count in sorted(self._faults.items()):
            if (uuid := self._met(where)) in self._known:
                yield Sample(NVLINK_FAULTS, (self._known[uuid], uuid, *which), float(count))

    def _report(self, seen: Mapping[tuple[str, int], int]) -> None:
        """Log new XID errors, at most one line per minute for each GPU and code."""
        for (uuid, code), count in seen.items():
            at, before = self._reported.get((uuid, code), (-BURST, 0))
            if count > before and self._now - at >= BURST:
                self._reported[uuid, code] = self._now, count
                meaning = xids.meaning(code)
                known = {"severity": meaning.severity.value, "action": meaning.action}
                what = {"xid": code, "times": count - before}
                log.error(LogEvent("xid", uuid=uuid, **what, meaning=meaning.name, **known))


XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
WAIT = 2_000  # ms; events arrive at once, so only a reconnection has to wait
PAUSE = 1.0  # s between attempts if the driver provides no event set
TIMEOUT_CODE = 10  # NVML_ERROR_TIMEOUT: no event


class XidWatch:
    """Waits for NVML events on its own thread. It creates a new event set each time the agent
    connects to the driver."""

    def __init__(
        self, subscription: Callable[[], EventSubscription | None], counts: XidCounts
    ) -> None:
        self._subscription = subscription
        self._counts = counts
        self._generation = 0
        self._nvml: Nvml | None = None
        self._uuids: dict[Any, str] = {}

    def start(self) -> None:
        """Start a daemon thread that waits for events."""
        threading.Thread(target=self._loop, name="xid", daemon=True).start()

    def _loop(self) -> None:
        idle, guard = threading.Event(), Guard("xid", "xid_watch")
        while True:  # the thread must survive: the next event may be critical
            if not guard.run(self.poll, otherwise=False):
                idle.wait(PAUSE)

    def poll(self, milliseconds: int = WAIT) -> bool:
        """Wait for an event, and count it. Return False if no GPU supports events."""
        subscription = self._subscription()
        if subscription is None:
            if self._nvml is not None:  # before NVML is released
                free(self._nvml, self._nvml.event_set)
                self._nvml.event_set, self._nvml, self._generation = None, None, 0
            return False
        if subscription.generation != self._generation and not self._listen(subscription):
            return False
        assert self._nvml is not None
        try:
            event = self._nvml.library.nvmlEventSetWait(self._nvml.event_set, milliseconds)
        except self._nvml.library.NVMLError as error:
            if getattr(error, "value", None) == TIMEOUT_CODE:
                return True
            self._generation = 0  # listen again
            return False
        if event.eventType & XID_EVENT:
            uuid = self._uuids.get(address_of(event.device))
            if uuid is not None:
                self._counts.note("nvml", uuid, int(event.eventData))
        return True

    def _listen(self, subscription: EventSubscription) -> bool:
        """Register for the events of all GPUs that support events. Return False if none does."""
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
        self._uuids = {address_of(handle): uuid for uuid, handle in handles.items()}
        nvml.event_set = events
        self._nvml, self._generation = nvml, subscription.generation
        return True


def free(nvml: Nvml, events: Any) -> None:
    """Free an event set. Ignore the error if the driver has already freed the set."""
    if events is not None:
        with suppress(Absent):
            nvml.call("nvmlEventSetFree", events)


def _errors(seen: Mapping[tuple[str, int], int], answering: Mapping[str, str]) -> Iterator[Sample]:
    for uuid, gpu in answering.items():
        for code in sorted({*xids.critical(), *(code for of, code in seen if of == uuid)}):
            yield Sample(XID_ERRORS, (gpu, uuid, str(code)), float(seen.get((uuid, code), 0)))


def reads(counts: XidCounts) -> Iterator[Read]:
    metrics = (XID_ERRORS, LAST, AT, NVLINK_FAULTS)
    yield Read(ReadKey("xid", "counts"), metrics, counts.read, fixed(intervals.TICK))
