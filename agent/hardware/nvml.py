"""NVML behind its seam: one library object, real, simulated or taped, and its error codes.

The seam is the set of pynvml functions in use: a simulated or taped library is an object with
those functions, the same constants and the same errors.
"""

import logging
from typing import Any

from agent.errors import LogEvent
from agent.model import FINAL, Absent, Reason, checked
from agent.ranges import ANY

log = logging.getLogger(__name__)

REASONS = {
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
    18: Reason.NO_DRIVER,  # LIB_RM_VERSION_MISMATCH: the driver was replaced under us
    25: Reason.DRIVER,  # ARGUMENT_VERSION_MISMATCH
    26: Reason.DRIVER,  # DEPRECATED
}
"""NVML return code to reason; what is not listed is `failed`."""


ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""How NVML says, with success, that it has no value."""


def reason_of(code: int) -> Reason:
    return REASONS.get(code, Reason.FAILED)


def number(value: object, what: str) -> float:
    """An answer as a number; raises Absent(implausible) where it is none."""
    if value in ALL_ONES:
        raise Absent(Reason.IMPLAUSIBLE, f"{what} is all ones")
    return checked(value, ANY, what)


class Nvml:
    """The library: calls by pynvml's names; errors become Absent with a reason."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.driver_version = ""
        self.nvml_version = ""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call one pynvml function; raises Absent where NVML answers with an error."""
        library = self.library
        try:
            return getattr(library, name)(*args, **options)
        except (library.NVMLError, library.NVMLLibraryMismatchError) as error:
            raise self._absent(name, error) from error
        except UnicodeDecodeError as error:
            why = f"{name}: {error.object!r:.60} is no UTF-8"
            raise Absent(Reason.IMPLAUSIBLE, why) from error
        except AttributeError as error:
            raise Absent(Reason.DRIVER, f"{name}: not in this library") from error

    def text(self, name: str, *args: Any) -> str:
        """A word of identity; empty where there is none, or none that can be read."""
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
        """Initialise NVML and learn the versions; raises Absent(no_driver) where it cannot."""
        try:
            self.call("nvmlInit")
            self.nvml_version = self.text("nvmlSystemGetNVMLVersion")
            version = self.text("nvmlSystemGetDriverVersion")
            # NVML's own version is that of CUDA, then that of the driver.
            self.driver_version = version or self.nvml_version.partition(".")[2]
        except Absent as absent:
            raise Absent(Reason.NO_DRIVER, str(absent)) from absent

    def disconnect(self) -> None:
        """Let go of NVML; a driver that is gone already is no error here."""
        try:
            self.call("nvmlShutdown")
        except Absent:
            return

    @property
    def driver(self) -> tuple[int, ...]:
        """The driver version as numbers, to compare: (580, 159, 4)."""
        return tuple(int(part) for part in self.driver_version.split(".") if part.isdigit())


def real_library() -> Any:
    """pynvml itself (distribution nvidia-ml-py).

    A driver of another version under a running agent needs the agent restarted: the C library of
    the old one stays mapped, and NVML refuses the mix.
    """
    import pynvml

    return pynvml
