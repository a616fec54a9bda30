"""The interface to NVML: a real, simulated, or recorded library, and NVML error codes.

The interface consists of the pynvml functions that the agent uses. A simulated or recorded library
has the same functions, constants, and errors as pynvml.
"""

import ctypes
import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

from agent.errors import LogEvent, log
from agent.metrics import beside
from agent.model import FINAL, Absent, Reason, checked
from agent.ranges import ANY

T = TypeVar("T")

REASON_OF_CODE = {int(code): Reason(name) for code, name in beside(__file__).items()}
"""The reason for an absent value by NVML return code. For other codes, it is `failed`."""

ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # "no value" if the call succeeds


def unless_final(ask: Callable[[], T], otherwise: T) -> T:
    """Return the result of `ask`, or `otherwise` if the NVML call in it fails. Raise Absent only if
    the GPU or the driver is gone, so that all calls would fail."""
    try:
        return ask()
    except Absent as absent:
        if absent.reason in FINAL:
            raise
        return otherwise


def number(value: object, what: str) -> float:
    """Return an NVML value as a float. Raise Absent(implausible) if it is not a number."""
    if value in ALL_ONES:
        raise Absent(Reason.IMPLAUSIBLE, f"{what} is all ones")
    return checked(value, ANY, what)


MISSHAPEN = (TypeError, LookupError, AttributeError, ValueError)
"""Exceptions that Python may raise if a return value does not have the documented structure."""


def misshapen(what: str, error: Exception) -> Absent:
    why = f"{what} is not as declared ({type(error).__name__}: {error!s:.60})"
    return Absent(Reason.IMPLAUSIBLE, why)


def address_of(pointer: Any) -> Any:
    """Return the address of an opaque NVML pointer. Return any other object itself."""
    try:
        return ctypes.cast(pointer, ctypes.c_void_p).value
    except (ctypes.ArgumentError, TypeError):
        return pointer


class Nvml:
    """An NVML library. Methods call functions by pynvml name. They raise Absent on an error."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.event_set: Any = None  # for the thread that waits for XID errors
        self.driver_version = ""
        self.nvml_version = ""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a pynvml function. Raise Absent if the call returns an error."""
        library = self.library
        try:
            return getattr(library, name)(*args, **options)
        except (library.NVMLError, library.NVMLLibraryMismatchError) as error:
            code = getattr(error, "value", None)
            if code is None:  # pynvml's mismatch error has no code, only a message
                raise Absent(Reason.DRIVER, f"{name}: not in this driver") from error
            reason = REASON_OF_CODE.get(code, Reason.FAILED)
            raise Absent(reason, f"{name}: {error}") from error
        except UnicodeDecodeError as error:
            why = f"{name}: {error.object!r:.60} is not UTF-8"
            raise Absent(Reason.IMPLAUSIBLE, why) from error
        except AttributeError as error:
            raise Absent(Reason.DRIVER, f"{name}: not in this library") from error

    def text(self, name: str, *args: Any) -> str:
        """Return the string that a pynvml function returns, or "" if it fails or returns none."""
        try:
            return str(self.call(name, *args))
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            if absent.reason is Reason.IMPLAUSIBLE:
                log.warning(LogEvent("implausible", why=str(absent)))
            return ""

    def connect(self) -> None:
        """Initialize NVML, and read the versions of the driver and of NVML. Raise Absent(crashed)
        if `nvmlInit` crashed a child process, and Absent(no_driver) for any other failure."""
        try:
            self.call("nvmlInit")
            self.nvml_version = self.text("nvmlSystemGetNVMLVersion")
            version = self.text("nvmlSystemGetDriverVersion")
            # The NVML version consists of the CUDA version and the driver version.
            self.driver_version = version or self.nvml_version.partition(".")[2]
        except Absent as absent:
            crashed = absent.reason is Reason.CRASHED
            raise Absent(absent.reason if crashed else Reason.NO_DRIVER, str(absent)) from absent

    def disconnect(self) -> None:
        self.event_set = None
        with suppress(Absent):
            self.call("nvmlShutdown")

    @property
    def driver(self) -> tuple[int, ...]:
        """The driver version as a tuple of numbers, for example (580, 159, 4)."""
        parts = self.driver_version.split(".")
        return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 10)


TRIAL = """
import ctypes, sys
try:
    ctypes.CDLL("libnvidia-ml.so.1").nvmlInitWithFlags(0)
except (AttributeError, OSError):
    pass
sys.stdout.write("survived")
sys.stdout.flush()
sys.stdin.read()
"""
"""Python code of the child process. The child keeps NVML open until the agent has initialized NVML.
Otherwise, without persistence mode, the driver would shut the GPUs down in between."""

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
"""Seconds to wait after a crash in NVML. Each further crash doubles them, up to LONGEST_PAUSE."""


class TriedInit:
    """Initializes NVML after a trial in a child process. If the library crashes, only the child
    process ends, and the agent continues to monitor the host.

    The child process takes 15 ms of CPU time, in addition to `nvmlInit` itself. An alternative is
    to store that the call crashed the agent. This requires a writable directory and one crash of
    the agent, and `check` and `once` would also crash.
    """

    def __init__(self, init: Any) -> None:
        self._init = init
        self._survived = False
        self._failure: Absent | None = None
        self._again = 0.0  # time of the next trial (s, monotonic)
        self._pause = FIRST_PAUSE

    def __call__(self) -> None:
        """Initialize NVML. Raise Absent(crashed) if `nvmlInit` crashes the child process."""
        if self._survived:
            self._init()
            return
        if self._failure is not None and time.monotonic() < self._again:
            raise self._failure.without_traceback()
        try:
            child = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-I", "-S", "-c", TRIAL],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise Absent(Reason.FAILED, f"nvmlInit cannot be tried: {error}") from error
        with child:
            assert child.stdout is not None
            self._survived = bool(child.stdout.read(1))
            if self._survived:
                self._init()
                return
        self._again = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        status = child.returncode
        known = -status in set(signal.Signals)
        how = signal.Signals(-status).name if known else f"status {status}"
        self._failure = Absent(Reason.CRASHED, f"nvmlInit ended a process that tried it ({how})")
        raise self._failure


@functools.cache
def real_library() -> Any:
    """Return the pynvml module of nvidia-ml-py, with `nvmlInit` replaced by TriedInit.

    The agent must restart after a driver update, because the process still uses the C library of
    the previous version, and the new driver rejects its calls.
    """
    import pynvml

    return SimpleNamespace(**{**vars(pynvml), "nvmlInit": TriedInit(pynvml.nvmlInit)})
