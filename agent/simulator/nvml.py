"""The simulated NVML: an object with pynvml's functions, constants, structs and errors."""

import inspect
import time
from collections import deque
from functools import partial
from typing import Any

import pynvml

from agent.simulator import driver, fields, getters, mig
from agent.simulator.call_guard import Call, CallGuard, address_of, pointer_to, refuse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.machine import Machine

SETS = 0x6000_0000  # Address below the first event set
GLANCE = 0.05  # s, between two checks of a set that is waited on
FROZEN_WAIT = 0.01  # s of real time, where the simulated time stands still
XID_EVENT = 0x8
NO_INSTANCE = 0xFFFFFFFF


class EventSet:
    """GPUs that are registered for XID errors, and those that came since."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.gpus: set[int] = set()
        self.happened: deque[tuple[int, int]] = deque()

    def note(self, index: int, code: int) -> None:
        if index in self.gpus:
            self.happened.append((index, code))


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


def _register(nvml: Any, gpu: SimulatedGpu, _: int, event_set: Any) -> None:
    _find(nvml, event_set).gpus.add(gpu.index)


CALLS: dict[str, Call] = {
    **{f"nvmlDeviceGet{name}": call for name, call in getters.CALLS.items()},
    **{f"nvmlDeviceGet{name}": call for name, call in mig.CALLS.items()},
    **fields.CALLS,
    **getters.LIBRARY,
    "nvmlEventSetCreate": Call(_create, of_gpu=False),
    "nvmlEventSetFree": Call(_free, of_gpu=False),
    "nvmlDeviceRegisterEvents": Call(_register),
}
"""Every function that has no method below."""


class SimulatedNvml:
    """Replacement of the module pynvml."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.guard = CallGuard(machine)
        self.handed_out = 0
        self._forget()

    def held(self) -> tuple[int, int, int]:
        """Return the number of open resources: connections, which keep the driver from being
        unloaded, event sets and GPM samples."""
        return self.guard.users, len(self.sets), len(self.samples)

    def _forget(self) -> None:
        self.samples: dict[int, fields.GpmCounters | None] = {}
        self.sets: dict[int, EventSet] = {}
        self.machine.driver.listeners.clear()

    def next_address(self, first: int) -> int:
        self.handed_out += 16
        return first + self.handed_out

    def nvmlInit(self) -> None:
        if self.guard.open():
            self._forget()

    def nvmlShutdown(self) -> None:
        self.guard.close()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.guard.enter("nvmlDeviceGetHandleByIndex", index)
        if not 0 <= index < len(self.machine.gpus):
            refuse(driver.INVALID_ARGUMENT)
        if self.machine.gpus[index].lost:
            refuse(driver.GPU_IS_LOST)
        return self.guard.handle(index)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        if version is None:
            return self._ask("nvmlDeviceGetMemoryInfo", handle)
        return self._ask("nvmlDeviceGetMemoryInfo_v2", handle, version)

    def nvmlEventSetWait(self, event_set: Any, milliseconds: int) -> Any:
        wait = milliseconds / 1000
        wait = wait if self.guard.real_time else min(FROZEN_WAIT, wait)
        deadline = time.monotonic() + wait
        while True:
            self.guard.enter("nvmlEventSetWait")
            if happened := _find(self, event_set).happened:
                index, code = happened.popleft()
                handle = self.guard.handle(index)
                return pynvml.c_nvmlEventData_t(handle, XID_EVENT, code, NO_INSTANCE, NO_INSTANCE)
            left = deadline - time.monotonic()
            if left <= 0:
                refuse(driver.TIMEOUT)
            time.sleep(min(GLANCE, left))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *CALLS]

    def __getattr__(self, name: str) -> Any:
        """Functions by their table; constants, structs and errors are pynvml's own, whose functions
        would ask a real driver."""
        if name in CALLS:
            return partial(self._ask, name)
        found = getattr(pynvml, name, None)
        if found is None or inspect.isroutine(found):
            raise AttributeError(f"the simulated NVML has no {name}")
        return found

    def _ask(self, name: str, *args: Any) -> Any:
        call, machine = CALLS[name], self.machine
        if not call.of_gpu:
            self.guard.enter(name, None, call.since)
            with machine.lock:
                return call.answer(self, *args)
        try:
            instance = mig.instance_behind(self, name, call.since, args[0])
            if instance is not None:
                return mig.OF_INSTANCE[name.removeprefix("nvmlDeviceGet")](instance)
            gpu = self.guard.device(name, call, args[0])
        except pynvml.NVMLError_FunctionNotFound as error:
            if not name.endswith("RunningProcesses"):
                raise
            raise pynvml.NVMLLibraryMismatchError(
                "Unversioned function called and the pyNVML version does not match the NVML lib"
            ) from error
        with machine.lock:
            return call.answer(self, gpu, *args[1:])
