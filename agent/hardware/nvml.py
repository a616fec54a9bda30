"""NVML behind its seam: a library object, real, simulated or taped, and its error codes.

The seam is the set of pynvml functions in use: a simulated or taped library is an object with those
functions, the same constants and the same errors.
"""

import functools
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from agent.errors import LogEvent
from agent.model import FINAL, Absent, Reason, checked
from agent.ranges import ANY

log = logging.getLogger(__name__)
T = TypeVar("T")

REASON_OF_CODE = {
    1: Reason.NO_DRIVER,  # UNINITIALIZED
    2: Reason.UNSUPPORTED,  # INVALID_ARGUMENT: this device has no such link, clock or sensor
    3: Reason.UNSUPPORTED,  # NOT_SUPPORTED
    4: Reason.DENIED,  # NO_PERMISSION
    6: Reason.UNKNOWN,  # NOT_FOUND: nothing there at present
    9: Reason.NO_DRIVER,  # DRIVER_NOT_LOADED
    10: Reason.STALLED,  # TIMEOUT
    12: Reason.NO_DRIVER,  # LIBRARY_NOT_FOUND
    13: Reason.DRIVER,  # FUNCTION_NOT_FOUND: the driver's library is older than the question
    15: Reason.LOST,  # GPU_IS_LOST
    16: Reason.LOST,  # RESET_REQUIRED
    21: Reason.UNKNOWN,  # NO_DATA
    22: Reason.UNSUPPORTED,  # VGPU_ECC_NOT_SUPPORTED
    27: Reason.UNKNOWN,  # NOT_READY
    18: Reason.NO_DRIVER,  # LIB_RM_VERSION_MISMATCH: the driver was replaced under us
    25: Reason.DRIVER,  # ARGUMENT_VERSION_MISMATCH
    26: Reason.DRIVER,  # DEPRECATED
}
"""NVML return code to reason; any other code is `failed`."""


ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # Marker of NVML for "no value", returned with success


def reason_of(code: int) -> Reason:
    return REASON_OF_CODE.get(code, Reason.FAILED)


def unless_final(ask: Callable[[], T], otherwise: T) -> T:
    """Return the answer, or `otherwise` if NVML refuses; raises Absent if all further questions
    fail."""
    try:
        return ask()
    except Absent as absent:
        if absent.reason in FINAL:
            raise
        return otherwise


def number(value: object, what: str) -> float:
    """An answer as a number; raises Absent(implausible) if it is no number."""
    if value in ALL_ONES:
        raise Absent(Reason.IMPLAUSIBLE, f"{what} is all ones")
    return checked(value, ANY, what)


MISSHAPEN = (TypeError, LookupError, AttributeError, ValueError)
"""Errors that Python raises for an answer whose shape differs from NVML's declaration."""


def misshapen(what: str, error: Exception) -> Absent:
    why = f"{what} is not as declared ({type(error).__name__}: {error!s:.60})"
    return Absent(Reason.IMPLAUSIBLE, why)


class Nvml:
    """The library: calls by pynvml's names; errors become Absent with a reason."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.event_set: Any = None  # of the thread that waits for XID errors
        self.driver_version = ""
        self.nvml_version = ""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a pynvml function; raises Absent if NVML answers with an error."""
        library = self.library
        try:
            return getattr(library, name)(*args, **options)
        except (library.NVMLError, library.NVMLLibraryMismatchError) as error:
            raise self._absent(name, error) from error
        except UnicodeDecodeError as error:
            why = f"{name}: {error.object!r:.60} is not UTF-8"
            raise Absent(Reason.IMPLAUSIBLE, why) from error
        except AttributeError as error:
            raise Absent(Reason.DRIVER, f"{name}: not in this library") from error

    def text(self, name: str, *args: Any) -> str:
        """Return a text of identity; empty if there is none or it is not readable."""
        try:
            return str(self.call(name, *args))
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            if absent.reason is Reason.IMPLAUSIBLE:
                log.warning(LogEvent("implausible", why=str(absent)))
            return ""

    def _absent(self, name: str, error: Any) -> Absent:
        code = getattr(error, "value", None)
        if code is None:  # pynvml's own mismatch error carries a text instead of a code
            return Absent(Reason.DRIVER, f"{name}: not in this driver")
        return Absent(reason_of(code), f"{name}: {error}")

    def connect(self) -> None:
        """Initialise NVML and learn the versions; raises Absent(no_driver), or Absent(crashed)."""
        try:
            self.call("nvmlInit")
            self.nvml_version = self.text("nvmlSystemGetNVMLVersion")
            version = self.text("nvmlSystemGetDriverVersion")
            # NVML's own version is that of CUDA, then that of the driver.
            self.driver_version = version or self.nvml_version.partition(".")[2]
        except Absent as absent:
            crashed = absent.reason is Reason.CRASHED
            raise Absent(absent.reason if crashed else Reason.NO_DRIVER, str(absent)) from absent

    def disconnect(self) -> None:
        self.event_set = None
        try:
            self.call("nvmlShutdown")
        except Absent:
            return

    @property
    def driver(self) -> tuple[int, ...]:
        """The driver version as numbers, to compare: (580, 159, 4)."""
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
"""The child's program. It ends when its input does, which is when the agent itself has initialised
NVML, or is gone: without persistence mode, the driver shuts down a GPU that no program holds."""

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
"""Seconds until a library that crashed is tried again: doubled each time."""


class TriedInit:
    """`nvmlInit`, tried in a child process until a child has survived it: a library that crashes
    would end the agent, and with it all knowledge of the host.

    A trial costs 15 ms of CPU once a process, beside the time of `nvmlInit` itself. A note on the
    disk that the last start died in it would save that, but it needs a folder to write in and a
    crash of the agent, and `check` and `once` would crash too.
    """

    def __init__(self, init: Any) -> None:
        self._init = init
        self._survived = False
        self._failure: Absent | None = None
        self._again = 0.0  # when it is tried again (s, monotonic)
        self._pause = FIRST_PAUSE

    def __call__(self) -> None:
        """Initialise NVML; raises Absent(crashed)."""
        if self._survived:
            self._init()
        elif self._failure is not None and time.monotonic() < self._again:
            raise self._failure.without_traceback()
        else:
            self._try()

    def _try(self) -> None:
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
    """pynvml itself (distribution nvidia-ml-py), with an `nvmlInit` that is tried first.

    A driver of another version under a running agent needs the agent restarted: the C library of
    the old version stays mapped, and NVML refuses the mix.
    """
    import pynvml

    return SimpleNamespace(**{**vars(pynvml), "nvmlInit": TriedInit(pynvml.nvmlInit)})
