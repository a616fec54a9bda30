"""The guard that every simulated NVML call passes: initialised? hung? lost? refused?"""

import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import pynvml

from agent.clock import SystemClock
from agent.simulator import driver
from agent.simulator.driver import Driver, Question
from agent.simulator.gpu import SimulatedGpu
from agent.simulator.machine import Machine

HANDLES = 0x10_0000  # Address of the first device handle; the next ones follow each 16 bytes
NAP = 0.02  # s, between two checks whether a hung driver has woken


class Call(NamedTuple):
    """A function of the library: what it answers, which GPUs answer it, since which driver the
    library has it. `answer` gets the library, the GPU where its first argument is one, the rest."""

    answer: Callable[..., Any]
    answers: Callable[[Question], bool] = lambda _: True
    since: Driver = ()
    of_gpu: bool = True


def refuse(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


def check(code: int) -> None:
    if code:
        refuse(code)


def pointer_to(address: int, kind: Any) -> Any:
    """An opaque pointer of NVML that is never followed."""
    return ctypes.cast(ctypes.c_void_p(address), kind)


def address_of(pointer: Any) -> int:
    """The address of an opaque pointer; 0 for what is none."""
    try:
        return ctypes.cast(pointer, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return 0


class CallGuard:
    """Check of a call: the object asked, and whether the real one would answer."""

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
        self.need_init()
        self._users -= 1

    @property
    def users(self) -> int:
        return self._users if self._generation == self.machine.driver.generation else 0

    def need_init(self) -> None:
        if not self.users:
            refuse(driver.UNINITIALIZED)

    def enter(self, function: str, index: int | None = None, since: Driver = ()) -> None:
        """Everything that does not depend on the GPU."""
        self.machine.advance()
        if self.machine.driver.numbers < since:
            refuse(driver.FUNCTION_NOT_FOUND)
        if function.startswith(("nvmlDevice", "nvmlGpmSampleGet", "nvmlGpmQuery")):
            self._hang()
        self.need_init()
        check(self.machine.driver.failure(function, index))

    def device(self, function: str, call: Call, handle: Any) -> SimulatedGpu:
        place, odd = divmod(address_of(handle) - HANDLES, 16)
        known = not odd and 0 <= place < len(self.machine.gpus)
        self.enter(function, place if known else None, call.since)
        if not known:
            refuse(driver.INVALID_ARGUMENT)
        gpu = self.machine.gpus[place]
        if gpu.lost:
            refuse(driver.GPU_IS_LOST)
        if gpu.slow:
            self._wait(gpu)
        asked = self.asked(gpu)
        if asked.mig and function.endswith(OF_ROOT):
            refuse(driver.NO_PERMISSION)
        if not call.answers(asked):
            refuse(driver.NOT_SUPPORTED)
        return gpu

    def asked(self, gpu: SimulatedGpu) -> Question:
        return Question(gpu.model, self.machine.driver.numbers, gpu.mig)

    def handle(self, index: int) -> Any:
        return pointer_to(HANDLES + 16 * index, pynvml.c_nvmlDevice_t)

    def _wait(self, gpu: SimulatedGpu) -> None:
        """A call of a slow GPU takes its time; on a clock that stands still it fails instead."""
        over = self.machine.clock.monotonic() + gpu.slow
        while gpu.slow and self.machine.clock.monotonic() < over:
            if not self.real_time:
                refuse(driver.UNKNOWN)
            time.sleep(NAP)

    def _hang(self) -> None:
        while self.machine.driver.hung:
            if not self.real_time:
                refuse(driver.TIMEOUT)
            time.sleep(NAP)
            self.machine.advance()


OF_ROOT = ("MemoryInfo", "MemoryInfo_v2", "RunningProcesses", "RunningProcesses_v2")
"""Ends of the functions that show of a whole GPU under MIG what is shown to root alone."""
