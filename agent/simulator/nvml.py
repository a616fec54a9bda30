"""The simulated NVML: an object with pynvml's functions, constants, structs and errors."""

import inspect
import time
from functools import partial
from typing import Any

import pynvml

from agent.simulator import driver, events, fields, getters, gpm, mig
from agent.simulator.call_guard import Call, CallGuard, refuse
from agent.simulator.machine import Machine

CALLS: dict[str, Call] = {
    **{f"nvmlDeviceGet{name}": call for name, call in getters.CALLS.items()},
    **{f"nvmlDeviceGet{name}": call for name, call in mig.CALLS.items()},
    **fields.CALLS,
    **getters.LIBRARY,
    **gpm.CALLS,
    **events.CALLS,
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
        self.samples: dict[int, gpm.GpmCounters | None] = {}
        self.sets: dict[int, events.EventSet] = {}
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
        wait = wait if self.guard.real_time else min(events.FROZEN_WAIT, wait)
        deadline = time.monotonic() + wait
        while True:
            self.guard.enter("nvmlEventSetWait")
            if (found := events.next_of(self, event_set)) is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0:
                refuse(driver.TIMEOUT)
            time.sleep(min(events.GLANCE, left))

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
                right = call.answer(self, *args)
                known = isinstance(right, int | str)
                return self.guard.answer(name, None, right) if known else right
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
        if call.blocks:
            self.guard.pause(call.blocks)
        with machine.lock:
            return self.guard.answer(name, gpu.index, call.answer(self, gpu, *args[1:]), *args[1:])
