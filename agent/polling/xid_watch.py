"""XID errors: the thread that waits for NVML events."""

import ctypes
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from agent.hardware.nvml import Nvml
from agent.model import Absent, Reason
from agent.polling.gpu_state import EventSubscription
from agent.polling.worker import Guard

XID_EVENT = 0x8  # nvmlEventTypeXidCriticalError
WAIT = 2_000  # ms; events arrive at once, so only a reconnection has to wait
PAUSE = 1.0  # s between attempts if the driver provides no event set
TIMEOUT_CODE = 10  # NVML_ERROR_TIMEOUT: no event


class XidListener(Protocol):
    """Receives XID errors of GPUs."""

    refused: Mapping[str, Absent]  # GPUs without events, by UUID

    def note(self, uuid: str, code: int) -> None:
        """Record an XID error of a GPU."""


def handle_address(handle: Any) -> Any:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return handle


class XidWatch:
    """Waits on the event set, and creates a new set after each connection to the driver."""

    def __init__(
        self, subscription: Callable[[], EventSubscription | None], counts: XidListener
    ) -> None:
        self._subscription = subscription
        self._counts = counts
        self._generation = 0
        self._nvml: Nvml | None = None
        self._uuids: dict[Any, str] = {}

    def start(self) -> None:
        """Listen forever on a daemon thread."""
        threading.Thread(target=self._loop, name="xid", daemon=True).start()

    def _loop(self) -> None:
        idle, guard = threading.Event(), Guard("xid", "xid_watch")
        while True:  # the thread must survive: the next event may be critical
            if not guard.run(self.poll, otherwise=False):
                idle.wait(PAUSE)

    def poll(self, milliseconds: int = WAIT) -> bool:
        """Wait for an event and count it. Return False if no GPU supports events."""
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
            uuid = self._uuids.get(handle_address(event.device))
            if uuid is not None:
                self._counts.note(uuid, int(event.eventData))
        return True

    def _listen(self, subscription: EventSubscription) -> bool:
        """Listen to all GPUs that support events. Return False if none of them does."""
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
        self._uuids = {handle_address(handle): uuid for uuid, handle in handles.items()}
        nvml.event_set = events
        self._nvml, self._generation = nvml, subscription.generation
        return True


def free(nvml: Nvml, events: Any) -> None:
    """Free an event set. It is not an error if the driver has already dropped the set."""
    if events is not None:
        with suppress(Absent):
            nvml.call("nvmlEventSetFree", events)
