"""The simulated NVML: an object with pynvml's functions, constants, structures, and errors."""

import inspect
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pynvml

from agent.clock import SystemClock
from agent.simulator import driver, fields, getters, mig
from agent.simulator.driver import CallRow, EventSet, address_of, pointer_to, refuse
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.machine import Machine

NAP = 0.02  # s, interval at which a wait checks whether the driver still hangs
GLANCE = 0.05  # s, interval at which a wait checks an event set


def _find(nvml: Any, event_set: Any) -> EventSet:
    events: EventSet | None = nvml.machine.driver.sets.get(address_of(event_set))
    return refuse(driver.INVALID_ARGUMENT) if events is None else events


def _create(nvml: Any) -> Any:
    address = 0x6000_0000 + next(nvml.addresses)
    nvml.machine.driver.sets[address] = EventSet(set(), deque())
    return pointer_to(address, pynvml.c_nvmlEventSet_t)


def _free(nvml: Any, event_set: Any) -> None:
    _find(nvml, event_set)
    del nvml.machine.driver.sets[address_of(event_set)]


WITH_CODE: dict[str, Callable[..., Any]] = {
    **getters.ANSWERS,
    **fields.ANSWERS,
    **mig.ANSWERS,
    "nvmlEventSetCreate": _create,
    "nvmlEventSetFree": _free,
    "nvmlDeviceRegisterEvents": lambda n, gpu, _, events: _find(n, events).gpus.add(gpu.index),
}
ANSWERS = {
    name: partial(getters.given, row.gives)
    if row.gives is not None
    else partial(getters.fill, row)
    if row.fills
    else WITH_CODE[name.removeprefix("nvmlDeviceGet")]
    for name, row in driver.CALLS.items()
}
"""All NVML functions that are not methods of `SimulatedNvml`. The first argument is the library. If
the function takes a GPU, the second is the GPU. NVML's other arguments follow."""


class SimulatedNvml:
    """A simulated replacement for the pynvml module."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.real_time = isinstance(machine.clock, SystemClock)
        self.addresses = count(16, 16)
        self._forget()

    def held(self) -> tuple[int, int, int]:
        """Return how many connections, event sets, and GPM samples are open."""
        return self.machine.driver.users, len(self.machine.driver.sets), len(self.samples)

    def _forget(self) -> None:
        self.samples: dict[int, fields.GpmCounters | None] = {}
        self.machine.driver.sets.clear()

    def nvmlInit(self) -> None:
        self.machine.driver.users += 1
        if self.machine.driver.users == 1:
            self._forget()

    def nvmlShutdown(self) -> None:
        if not self.machine.driver.users:
            refuse(driver.UNINITIALIZED)
        self.machine.driver.users -= 1

    def enter(self, function: str, index: int | None = None, since: driver.Driver = ()) -> None:
        """Raise an NVML error if the call cannot succeed on any GPU model. For example, the driver
        is older than `since`, or NVML is not initialized."""
        self.machine.advance()
        if self.machine.driver.numbers < since:
            refuse(driver.FUNCTION_NOT_FOUND)
        if function.startswith(("nvmlDevice", "nvmlGpmSampleGet", "nvmlGpmQuery")):
            while self.machine.driver.hung:
                self._nap(driver.TIMEOUT)
                self.machine.advance()
        if not self.machine.driver.users:
            refuse(driver.UNINITIALIZED)
        failures = self.machine.driver.failures
        code = failures and failures.get((function, index), failures.get((function, None), 0))
        if code:
            refuse(code)

    def handle(self, index: int) -> Any:
        return pointer_to(driver.HANDLES + 16 * index, pynvml.c_nvmlDevice_t)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self.enter("nvmlDeviceGetHandleByIndex", index)
        if not 0 <= index < len(self.machine.gpus):
            refuse(driver.INVALID_ARGUMENT)
        if self.machine.gpus[index].lost:
            refuse(driver.GPU_IS_LOST)
        return self.handle(index)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        if version is None:
            return self._ask("nvmlDeviceGetMemoryInfo", handle)
        return self._ask("nvmlDeviceGetMemoryInfo_v2", handle, version)

    def nvmlEventSetWait(self, event_set: Any, milliseconds: int) -> Any:
        wait = milliseconds / 1000
        wait = wait if self.real_time else min(0.01, wait)
        deadline = time.monotonic() + wait
        while True:
            self.enter("nvmlEventSetWait")
            if happened := _find(self, event_set).happened:
                index, code = happened.popleft()
                handle = self.handle(index)
                instances = driver.ALL_ONES, driver.ALL_ONES
                kind = pynvml.nvmlEventTypeXidCriticalError
                return pynvml.c_nvmlEventData_t(handle, kind, code, *instances)
            left = deadline - time.monotonic()
            if left <= 0:
                refuse(driver.TIMEOUT)
            time.sleep(min(GLANCE, left))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *driver.CALLS]

    def __getattr__(self, name: str) -> Any:
        """Return a simulated function, or a constant, structure, or exception class from pynvml.
        Raise AttributeError for all other pynvml functions, which would call a real driver."""
        if name in driver.CALLS:
            return partial(self._ask, name)
        found = getattr(pynvml, name, None)
        if found is None or inspect.isroutine(found):
            raise AttributeError(f"the simulated NVML has no {name}")
        return found

    def _ask(self, name: str, *args: Any) -> Any:
        call, machine = driver.CALLS[name], self.machine
        if not call.gpu:
            self.enter(name, None, call.since)
            with machine.lock:
                return ANSWERS[name](self, *args)
        try:
            gpu, instance = self._device(name, call, args[0])
        except pynvml.NVMLError_FunctionNotFound as error:
            if not name.endswith("RunningProcesses"):
                raise
            raise pynvml.NVMLLibraryMismatchError(
                "Unversioned function called and the pyNVML version does not match the NVML lib"
            ) from error
        if instance is not None:
            of_instance = mig.OF_INSTANCE.get(name.removeprefix("nvmlDeviceGet"))
            if of_instance is None or instance >= len(mig.instances(gpu)):
                refuse(driver.INVALID_ARGUMENT)
            return of_instance(mig.SimulatedInstance(gpu, instance))
        if any(given not in valid for given, valid in zip(args[1:], call.takes, strict=False)):
            refuse(driver.INVALID_ARGUMENT)
        with machine.lock:
            return ANSWERS[name](self, gpu, *args[1:])

    def _device(self, function: str, call: CallRow, handle: Any) -> tuple[SimulatedGpu, int | None]:
        """Return the GPU and the MIG instance index (None for a whole GPU) of a handle."""
        place, instance = mig.decoded(address_of(handle))
        known = 0 <= place < len(self.machine.gpus)
        self.enter(function, place if known else None, call.since)
        if not known:
            refuse(driver.INVALID_ARGUMENT)
        gpu = self.machine.gpus[place]
        if gpu.lost:
            refuse(driver.GPU_IS_LOST)
        if instance is not None:
            return gpu, instance
        if gpu.slow:
            self._wait(gpu)
        if gpu.mig and call.root:
            refuse(driver.NO_PERMISSION)
        if not gpu.supports(call.of):
            refuse(driver.NOT_SUPPORTED)
        return gpu, None

    def _wait(self, gpu: SimulatedGpu) -> None:
        """If the GPU is slow, block the call for `gpu.slow` wall-clock seconds."""
        over = self.machine.clock.monotonic() + gpu.slow * self.machine.clock.speed
        while gpu.slow and self.machine.clock.monotonic() < over:
            self._nap(driver.UNKNOWN)

    def _nap(self, code: int) -> None:
        """Block for NAP seconds. If the clock does not advance by itself, raise the NVML error."""
        if not self.real_time:
            refuse(code)
        clock = self.machine.clock
        clock.block(clock.monotonic() + NAP * clock.speed)
