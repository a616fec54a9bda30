"""XID events: sets to which GPUs are registered, and what a set has to say.

Operational events are as nvidia-ml-py 13.615 declares them; no real driver was seen.
"""

from collections import deque
from typing import Any

import pynvml

from agent.simulator import driver
from agent.simulator.call_guard import Call, address_of, pointer_to, refuse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.models import AMPERE

SETS = 0x6000_0000  # Address below the first event set
GLANCE = 0.05  # s, between two checks of a set that is waited on
FROZEN_WAIT = 0.01  # s of real time, where the simulated time stands still
XID_EVENT = 0x8
SUPPORTED_OLD, SUPPORTED_ECC, SUPPORTED_NEW = 0x18, 0x1B, 0xFF9F
NO_INSTANCE = 0xFFFFFFFF


class EventSet:
    """GPUs with the events they are registered for, and what happened since."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.masks: dict[int, int] = {}
        self.happened: deque[tuple[int, int]] = deque()
        self.operational: set[str] = set()  # UUIDs
        self.operated: deque[tuple[int, int]] = deque()
        self.last: tuple[int, int] | None = None  # what the contexts belong to

    def note(self, index: int, code: int) -> None:
        if self.masks.get(index, 0) & XID_EVENT:
            self.happened.append((index, code))
        if self.operational:
            self.operated.append((index, code))


def _find(nvml: Any, event_set: Any) -> EventSet:
    events: EventSet | None = nvml.sets.get(address_of(event_set))
    if events is None or events.generation != nvml.machine.driver.generation:
        refuse(driver.INVALID_ARGUMENT)
    return events


def _create(nvml: Any) -> Any:
    address, events = nvml.next_address(SETS), EventSet(nvml.machine.driver.generation)
    nvml.sets[address] = events
    nvml.machine.driver.listeners.append(events.note)
    return pointer_to(address, pynvml.c_nvmlEventSet_t)


def _free(nvml: Any, event_set: Any) -> None:
    nvml.machine.driver.listeners.remove(_find(nvml, event_set).note)
    del nvml.sets[address_of(event_set)]


def _register(nvml: Any, gpu: SimulatedGpu, kinds: int, event_set: Any) -> None:
    older = SUPPORTED_ECC if gpu.model.ecc else SUPPORTED_OLD
    if kinds & ~(SUPPORTED_NEW if gpu.model.architecture >= AMPERE else older):
        refuse(driver.NOT_SUPPORTED)
    masks = _find(nvml, event_set).masks
    masks[gpu.index] = masks.get(gpu.index, 0) | kinds


def next_of(nvml: Any, event_set: Any) -> Any:
    events = _find(nvml, event_set)
    if not events.happened:
        return None
    index, code = events.happened.popleft()
    handle = nvml.guard.handle(index)
    return pynvml.c_nvmlEventData_t(handle, XID_EVENT, code, NO_INSTANCE, NO_INSTANCE)


def _register_operational(nvml: Any, event_set: Any, config: Any) -> None:
    uuid = str(config.uuid)
    if uuid not in {gpu.uuid for gpu in nvml.machine.gpus}:
        refuse(driver.INVALID_ARGUMENT)
    _find(nvml, event_set).operational.add(uuid)


def _wait_v3(nvml: Any, event_set: Any, params: Any) -> None:
    events = _find(nvml, event_set)
    if not events.operated:
        refuse(driver.TIMEOUT)
    events.last = events.operated.popleft()
    params.dataType = pynvml.NVML_EVENT_DATA_TYPE_GPU_OPERATIONAL_EVENT
    params.uuid = nvml.machine.gpus[events.last[0]].uuid.encode()
    params.severity = pynvml.NVML_OPERATIONAL_EVENT_SEVERITY_FATAL


def _count(nvml: Any, event_set: Any, params: Any) -> None:
    params.count = int(_find(nvml, event_set).last is not None)


def _context(nvml: Any, event_set: Any, params: Any) -> None:
    _carried(nvml, event_set, params.index)
    legacy = pynvml.NVML_GPU_OPERATIONAL_EVENT_CONTEXT_TYPE_LEGACY_XID
    params.nvmlGpuOperationalEventContextType = legacy


def _xid(nvml: Any, event_set: Any, params: Any) -> None:
    params.xidCode = _carried(nvml, event_set, params.index)


def _carried(nvml: Any, event_set: Any, index: int) -> int:
    last = _find(nvml, event_set).last
    return refuse(driver.INVALID_ARGUMENT) if last is None or index else last[1]


CALLS: dict[str, Call] = {
    "nvmlEventSetCreate": Call(_create, of_gpu=False),
    "nvmlEventSetFree": Call(_free, of_gpu=False),
    "nvmlDeviceRegisterEvents": Call(_register),
    **{
        f"nvmlEventSet{name}": Call(answer, since=(615,), of_gpu=False)
        for name, answer in {
            "RegisterGpuOperationalEvents_v1": _register_operational,
            "Wait_v3": _wait_v3,
            "GetContextCount_v1": _count,
            "GetContextInfo_v1": _context,
            "GetGpuOperationalEventContextLegacyXid_v1": _xid,
        }.items()
    },
}
