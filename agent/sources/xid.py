"""XID errors: the driver's event stream, on a thread of its own, into a counter per code."""

import ctypes
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from agent.errors import LogEvent
from agent.hardware.nvml import Nvml
from agent.model import GPU_LABELS, Absent, ReadKey, Reason, Sample, counter
from agent.polling import intervals
from agent.polling.inventory import EventSubscription
from agent.polling.reads import Out, Read, fixed

log = logging.getLogger(__name__)

ERRORS = counter(
    "dgx_gpu_xid_errors_total",
    "XID errors that the driver reported since the agent started, by code; the codes after which "
    "a GPU must be looked at start at 0.",
    "nvmlEventSetWait",
    (*GPU_LABELS, "xid"),
)

FATAL = {
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "the GPU fell off the bus",
    95: "uncontained memory error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""Codes that start at 0, with their meaning in NVIDIA's XID catalogue."""

XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
WAIT = 2_000  # ms; events are delivered at once, this only bounds how late a re-connection is seen
PAUSE = 1.0  # s, between attempts where the driver gives no event set
TIMEOUT = 10  # NVML_ERROR_TIMEOUT: nothing happened


class XidCounts:
    """Counts by UUID and code; kept while a GPU is lost. Written by one thread, read by another."""

    def __init__(self, gpus: Callable[[], Iterator[tuple[str, str]]]) -> None:
        self._gpus = gpus  # (index, UUID) of every GPU known
        self._counts: Counter[tuple[str, int]] = Counter()
        self._known: dict[str, str] = {}
        self.refused: dict[str, Absent] = {}  # by UUID: GPUs that cannot be listened to
        self._sampled_from: Any = None  # what the samples below were made of: events are rare
        self._samples: list[Sample] = []

    def note(self, uuid: str, code: int) -> None:
        self._counts[uuid, code] += 1

    def read(self, out: Out) -> None:
        self._known.update((uuid, gpu) for gpu, uuid in self._gpus())
        if not self._known:
            raise Absent(Reason.NO_DRIVER, "no GPU to listen to")
        state = (dict(self._counts), dict(self._known), self.refused)
        if state != self._sampled_from:
            self._sampled_from, self._samples = state, list(self._samples_of(*state))
        out.samples.extend(self._samples)
        for uuid, absent in self.refused.items():
            out.absent(ERRORS, absent, self._known.get(uuid, ""), uuid)

    @staticmethod
    def _samples_of(
        seen: dict[tuple[str, int], int], known: dict[str, str], refused: dict[str, Absent]
    ) -> Iterator[Sample]:
        for uuid, gpu in known.items():
            codes = set(FATAL) | {code for of, code in seen if of == uuid}
            for code in sorted(codes) if uuid not in refused else ():
                count = float(seen.get((uuid, code), 0))
                yield Sample(ERRORS, (gpu, uuid, str(code)), count)


def handle_address(handle: Any) -> Any:
    """What tells two handles of the same device to be the same."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle


class XidWatch:
    """Waits on the event set, and makes a new one after each connection to the driver."""

    def __init__(
        self, subscription: Callable[[], EventSubscription | None], counts: XidCounts
    ) -> None:
        self._subscription = subscription
        self._counts = counts
        self._generation = 0
        self._nvml: Nvml | None = None
        self._events: Any = None
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
            return False
        if subscription.generation != self._generation and not self._listen(subscription):
            return False
        assert self._nvml is not None
        try:
            event = self._nvml.library.nvmlEventSetWait(self._events, milliseconds)
        except self._nvml.library.NVMLError as error:
            if getattr(error, "value", None) == TIMEOUT:
                return True
            self._generation = 0  # listen anew
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
            self._counts.refused = dict.fromkeys(handles, absent.kept())
            return False
        for uuid, handle in handles.items():
            try:
                nvml.call("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
            except Absent as absent:
                refused[uuid] = absent.kept()
        lost = {uuid for uuid, absent in refused.items() if absent.reason is Reason.LOST}
        self._counts.refused = {u: a for u, a in refused.items() if u not in lost}
        if len(refused) == len(handles):
            free(nvml, events)
            return False
        if self._nvml is nvml:
            free(nvml, self._events)
        self._uuids = {handle_address(handle): uuid for uuid, handle in handles.items()}
        self._nvml, self._events, self._generation = nvml, events, subscription.generation
        return True

    def _count(self, event: Any) -> None:
        if not event.eventType & XID_EVENT:
            return
        uuid = self._uuids.get(handle_address(event.device))
        code = int(event.eventData)
        if uuid is not None:
            self._counts.note(uuid, code)
        meaning = FATAL.get(code, "see NVIDIA's XID catalogue")
        log.error(LogEvent("xid", uuid=uuid, xid=code, meaning=meaning))


def free(nvml: Nvml, events: Any) -> None:
    """Let go of an event set; one that the driver forgot already is no error."""
    with suppress(Absent):
        nvml.call("nvmlEventSetFree", events)


def reads(counts: XidCounts) -> Iterator[Read]:
    """One read for all GPUs: the counts are in memory, and stay when a GPU is lost."""
    yield Read(ReadKey("xid", "counts"), (ERRORS,), counts.read, fixed(intervals.TICK))
