"""XID events: sets to which GPUs are registered, and waiting for the next event."""

import ctypes
import time
from collections import deque
from typing import Any

import pynvml

from agent.simulator import refusals
from agent.simulator.call_guard import NvmlPart, device_call, library_call, refuse
from agent.simulator.gpu import SimulatedGpu

SETS = 0x6000_0000
"""Address of the first event set."""

GLANCE = 0.05  # s, between two checks of a set that is waited on
FROZEN_WAIT = 0.01  # s of real time, where the simulated time stands still
XID_EVENT = 0x8
NO_INSTANCE = 0xFFFFFFFF


class _EventSet:
    """GPUs with the events they are registered for, and what happened since."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.masks: dict[int, int] = {}
        self.happened: deque[tuple[int, int]] = deque()
        self.operational: set[str] = set()  # UUIDs
        self.operated: deque[tuple[int, int]] = deque()
        self.last: tuple[int, int] | None = None  # what the contexts belong to

    def note(self, index: int, code: int) -> None:
        """An XID error of one GPU."""
        if self.masks.get(index, 0) & XID_EVENT:
            self.happened.append((index, code))
        if self.operational:
            self.operated.append((index, code))


class SimulatedEvents(NvmlPart):
    """Event sets live here, by address, until they are freed."""

    _sets: dict[int, _EventSet]
    _next_set: int

    @library_call
    def nvmlEventSetCreate(self) -> Any:
        address, self._next_set = self._next_set, self._next_set + 16
        events = _EventSet(self.machine.driver.generation)
        self._sets[address] = events
        self.machine.driver.listeners.append(events.note)
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlEventSet_t)

    @library_call
    def nvmlEventSetFree(self, event_set: Any) -> None:
        events = self._find(event_set)
        self.machine.driver.listeners.remove(events.note)
        self._sets = {a: kept for a, kept in self._sets.items() if kept is not events}

    @device_call
    def nvmlDeviceRegisterEvents(self, gpu: SimulatedGpu, kinds: int, event_set: Any) -> None:
        if kinds & ~refusals.supported_events(gpu.model):
            refuse(refusals.NOT_SUPPORTED)
        events = self._find(event_set)
        events.masks[gpu.index] = events.masks.get(gpu.index, 0) | kinds

    def nvmlEventSetWait(self, event_set: Any, milliseconds: int) -> Any:
        """Blocks in real time, without holding up other callers."""
        wait = (
            milliseconds / 1000 if self.guard.real_time else min(FROZEN_WAIT, milliseconds / 1000)
        )
        deadline = time.monotonic() + wait
        while True:
            self.guard.enter("nvmlEventSetWait")
            events = self._find(event_set)
            if events.happened:
                return self._event(*events.happened.popleft())
            left = deadline - time.monotonic()
            if left <= 0:
                refuse(refusals.TIMEOUT)
            time.sleep(min(GLANCE, left))

    # Operational events, as nvidia-ml-py 13.615 declares them; no real driver was seen.

    @library_call
    def nvmlEventSetRegisterGpuOperationalEvents_v1(self, event_set: Any, config: Any) -> None:
        uuid = str(config.uuid)
        if uuid not in {gpu.uuid for gpu in self.machine.gpus}:
            refuse(refusals.INVALID_ARGUMENT)
        self._find(event_set).operational.add(uuid)

    @library_call
    def nvmlEventSetWait_v3(self, event_set: Any, params: Any) -> None:
        events = self._find(event_set)
        if not events.operated:
            refuse(refusals.TIMEOUT)
        events.last = events.operated.popleft()
        params.dataType = pynvml.NVML_EVENT_DATA_TYPE_GPU_OPERATIONAL_EVENT
        params.uuid = self.machine.gpus[events.last[0]].uuid.encode()
        params.severity = pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_FATAL

    @library_call
    def nvmlEventSetGetContextCount_v1(self, event_set: Any, params: Any) -> None:
        params.count = int(self._find(event_set).last is not None)

    @library_call
    def nvmlEventSetGetContextInfo_v1(self, event_set: Any, params: Any) -> None:
        self._carried(event_set, params.index)
        legacy = pynvml.NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID
        params.nvmlGpuOperationalEventContextType = legacy

    @library_call
    def nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1(
        self, event_set: Any, params: Any
    ) -> None:
        params.xidCode = self._carried(event_set, params.index)

    def _carried(self, event_set: Any, index: int) -> int:
        last = self._find(event_set).last
        if last is None or index:
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        return last[1]

    def _find(self, event_set: Any) -> _EventSet:
        events = self._sets.get(ctypes.cast(event_set, ctypes.c_void_p).value or 0)
        if events is None or events.generation != self.machine.driver.generation:
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        return events

    def _event(self, index: int, code: int) -> Any:
        data = pynvml.c_nvmlEventData_t()
        data.device = self.guard.handle(index)
        data.eventType, data.eventData = XID_EVENT, code
        data.gpuInstanceId = data.computeInstanceId = NO_INSTANCE
        return data
