"""The simulated driver: its calls, versions, state, errors, and kernel log."""

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import pynvml
from msgspec import Struct, convert

from agent.hardware.kernel_log import KernelLog, LogLine
from agent.metrics import beside
from agent.simulator.models import SystemModel

Driver = tuple[int, ...]


def numbers(version: str) -> Driver:
    """Return a driver version as a tuple of numbers, for example (580, 159, 4) for `580.159.04`.
    Return an empty tuple if the string is not a version."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(p.isascii() and p.isdigit() for p in parts) else ()


def branches(system: SystemModel) -> list[int]:
    first, last = system.drivers
    return [branch for branch in NEWEST if first <= branch <= last]


def resolve(system: SystemModel, wanted: str) -> str:
    """Return the full driver version for a branch (`460`) or a version (`460.32.03`). Return an
    empty string if the system does not support it."""
    version = numbers(wanted)
    if not version or version[0] not in branches(system) or len(version) > 3:
        return ""
    return wanted if len(version) > 1 else NEWEST[version[0]]


class EventSet(NamedTuple):
    """An NVML event set: the GPUs registered for XID errors, and their errors since then."""

    gpus: set[int]
    happened: deque[tuple[int, int]]


class SimulatedDriver:
    """A running driver: its version, whether it hangs, its failing calls, and its event sets."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.numbers = numbers(version)
        self.hung = False
        self.users = 0  # open connections, which prevent the driver from being unloaded
        self.failures: dict[tuple[str, int | None], int] = {}
        self.sets: dict[int, EventSet] = {}
        self.log_xid: Callable[[int, int], None] = lambda _index, _code: None

    def report(self, index: int, code: int) -> None:
        for events in list(self.sets.values()):
            if index in events.gpus:
                events.happened.append((index, code))

    def xid(self, index: int, code: int) -> None:
        if code not in (79, 119, 120):  # GPU or GSP are gone, so no event comes (DCGM issue 162)
            self.report(index, code)
        self.log_xid(index, code)

    def fail(self, function: str, code: int | None, index: int | None = None) -> None:
        """Make an NVML function return the error `code` (None: succeed), for one or all GPUs."""
        if code is None:
            self.failures.pop((function, index), None)
        else:
            self.failures[function, index] = code


ANSWERED, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3
UNINITIALIZED, NO_PERMISSION, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 1, 4, 6, 10, 13
GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 15, 25, 999

MOST_LINKS = 18
ALL_ONES = 0xFFFFFFFF  # for no instance, all links, and the PCI address of an NVSwitch


class CallRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row in nvml.toml for a function."""

    of: str = ""
    since: Driver = ()
    gives: Any = None
    fills: dict[str, Any] = {}
    versions: dict[str, Driver] = {}
    takes: tuple[tuple[int, ...], ...] = ()
    root: bool = False
    gpu: bool = True


class FieldRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row in nvml.toml for a group of field IDs."""

    ids: tuple[int, ...]
    of: str
    since: Driver
    kind: int = 3
    per_link: bool = False
    summed: bool = False
    counts: str = ""
    unit: float = 1.0
    wire: bool = False
    total: str = ""
    wraps: bool = False
    hotter: int | None = None
    gives: str = ""


class GpmRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A row in nvml.toml for a GPM metric."""

    counts: str
    factor: float = 1.0
    unit: float = 1.0
    summed: bool = False
    pcie: bool = False


class NvmlTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of nvml.toml."""

    versions: tuple[str, ...]
    calls: dict[str, CallRow]
    others: dict[str, CallRow]
    gpm: dict[str, GpmRow]
    fields: tuple[FieldRow, ...]


NVML = convert(beside(__file__, "nvml"), NvmlTable)
CALLS = {f"nvmlDeviceGet{name}": row for name, row in NVML.calls.items()} | NVML.others
NEWEST = {int(version.partition(".")[0]): version for version in NVML.versions}
"""The latest version of each branch. It is used if a simulation specifies only the branch."""


def refuse(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


HANDLES = 0x10_0000  # Address of the first device handle; handles are 16 bytes apart


def pointer_to(address: int, kind: Any) -> Any:
    """Return an opaque NVML pointer to `address`. It is never dereferenced."""
    return ctypes.cast(ctypes.c_void_p(address), kind)


def address_of(pointer: Any) -> int:
    """Return the address of an opaque pointer, or 0 if the argument is not a pointer."""
    try:
        return ctypes.c_void_p.from_buffer(pointer).value or 0
    except (TypeError, ValueError):
        return 0


_TABLES = beside(__file__, "kernel_log")
WORDS, OLDER_WORDS = _TABLES["words"], _TABLES["older_words"]
"""Text of the kernel log message by XID. OLDER_WORDS applies to GPUs that retire pages."""


class SimulatedKernelLog(KernelLog):
    """The kernel log of a simulated machine. Each line is returned only once."""

    def __init__(self, now: Callable[[], float], older: bool) -> None:
        self._now = now
        self._older = older  # the GPUs retire pages
        self._lines: list[LogLine] = []

    def all(self) -> Sequence[LogLine]:
        return self._lines

    def write(self, text: str) -> None:
        self._lines.append(LogLine(self._now(), text))

    def xid(self, address: str, code: int, pid: int | None) -> None:
        words = {**WORDS, **(OLDER_WORDS if self._older else {})}.get(str(code), "")
        named = pid is not None and code in _TABLES["of_programs"]
        who = f"pid={pid}, name=python" if named else "pid='<unknown>', name=<unknown>"
        self.write(f"NVRM: Xid (PCI:{address[:-2]}): {code}, {who}, {words}".removesuffix(", "))
