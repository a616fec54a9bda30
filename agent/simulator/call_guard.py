"""The call guard that every simulated NVML call passes: initialised? hung? lost? refused?"""

import ctypes
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import pynvml

from agent.clock import SystemClock
from agent.simulator import refusals
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.machine import Machine
from agent.simulator.odd_answers import spoilt
from agent.simulator.refusals import Question

HANDLES = 0x10_0000
"""Address of the first device handle; the next ones follow each 16 bytes."""

NAP = 0.02  # s, between two checks whether a hung driver has woken


def refuse(code: int) -> None:
    """Raise what pynvml raises for this code; 0 passes."""
    if code:
        raise pynvml.NVMLError(code)


class CallGuard:
    """Who is asked, and whether the real one would answer."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.real_time = isinstance(machine.clock, SystemClock)
        self._users = 0
        self._generation = -1

    def open(self) -> bool:
        """`nvmlInit`; whether it is the first: since the driver was loaded, or since all left."""
        current = self.machine.driver.generation
        self._users = self._users + 1 if current == self._generation else 1
        self._generation = current
        return self._users == 1

    def close(self) -> None:
        """`nvmlShutdown`, once for each `nvmlInit`."""
        self.need_init()
        self._users -= 1

    @property
    def users(self) -> int:
        """How many have initialised NVML, and hold the driver."""
        return self._users if self._generation == self.machine.driver.generation else 0

    def need_init(self) -> None:
        if not self.users:
            refuse(refusals.UNINITIALIZED)

    def enter(self, function: str, index: int | None = None) -> None:
        """Everything that does not depend on the GPU."""
        self.machine.advance()
        refuse(refusals.symbol_code(function, self.machine.driver.numbers))
        if function.startswith(("nvmlDevice", "nvmlGpmSampleGet", "nvmlGpmQuery")):
            self._hang()
        self.need_init()
        refuse(self.machine.driver.failure(function, index))

    def device(self, function: str, handle: Any) -> SimulatedGpu:
        """The GPU behind a handle, where it answers this function."""
        gpu = self._gpu(handle)
        self.enter(function, gpu.index if gpu else None)
        if gpu is None:
            raise pynvml.NVMLError(refusals.INVALID_ARGUMENT)
        if gpu.lost:
            refuse(refusals.GPU_IS_LOST)
        if gpu.slow:
            self._wait(gpu)
        refuse(refusals.device_code(function, self.asked(gpu)))
        return gpu

    def _gpu(self, handle: Any) -> SimulatedGpu | None:
        try:
            address = ctypes.cast(handle, ctypes.c_void_p).value or 0
        except ctypes.ArgumentError:
            return None
        place, odd = divmod(address - HANDLES, 16)
        known = not odd and 0 <= place < len(self.machine.gpus)
        return self.machine.gpus[place] if known else None

    def asked(self, gpu: SimulatedGpu) -> Question:
        return Question(gpu.model, self.machine.driver.numbers, gpu.mig)

    def handle(self, index: int) -> Any:
        """The handle of a GPU; always the same."""
        return ctypes.cast(ctypes.c_void_p(HANDLES + 16 * index), pynvml.c_nvmlDevice_t)

    def answer(self, function: str, index: int | None, right: Any, *given: Any) -> Any:
        """The answer to hand out: the right one, or one that cannot be."""
        odd = self.machine.driver.odd
        if odd is None or index not in {None, odd.gpu}:
            return right
        try:
            value = odd.value(function, given, int(self.machine.now))
        except KeyError:
            return right
        return spoilt(right, value, given)

    def pause(self, seconds: float) -> None:
        """Block as the driver does; a clock that stands still waits for no one."""
        if self.real_time:
            time.sleep(seconds / getattr(self.machine.clock, "speed", 1.0))

    def _wait(self, gpu: SimulatedGpu) -> None:
        """A call of a slow GPU takes its time; on a clock that stands still it fails instead."""
        over = self.machine.clock.monotonic() + gpu.slow
        while gpu.slow and self.machine.clock.monotonic() < over:
            if not self.real_time:
                refuse(refusals.UNKNOWN)
            time.sleep(NAP)

    def _hang(self) -> None:
        while self.machine.driver.hung:
            if not self.real_time:
                refuse(refusals.TIMEOUT)
            time.sleep(NAP)
            self.machine.advance()


class NvmlPart:
    """What the parts of the library share."""

    def __init__(self, guard: CallGuard) -> None:
        self.guard = guard
        self.machine = guard.machine


def library_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function that needs NVML but no GPU."""
    name = method.__name__

    @wraps(method)
    def call(self: NvmlPart, *args: Any, **options: Any) -> Any:
        self.guard.enter(name)
        with self.machine.lock:
            right = method(self, *args, **options)
            return self.guard.answer(name, None, right) if isinstance(right, int | str) else right

    return call


def device_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first argument is a handle; the method gets the GPU."""
    return blocking_call(0.0)(method)


def blocking_call(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for a function that takes its time, and does so only where it answers."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        name = method.__name__

        @wraps(method)
        def call(self: NvmlPart, handle: Any, *args: Any, **options: Any) -> Any:
            gpu = self.guard.device(name, handle)
            if seconds:
                self.guard.pause(seconds)
            with self.machine.lock:
                right = method(self, gpu, *args, **options)
                return self.guard.answer(name, gpu.index, right, *args)

        return call

    return decorate
