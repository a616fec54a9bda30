"""The kernel's log (/dev/kmsg, handed over by systemd or opened, else a reason) and the lines of
NVIDIA's drivers in it: XID errors, NVSwitch errors, lost GPUs.

Wordings differ by driver: `Xid (0000:3b:00): 48, ...` before R440, `Xid (PCI:0000:3b:00): 31,
pid=1234, Ch ...`, since R510 `pid=1234, name=python, Ch ...` or `pid='<unknown>', name=<unknown>`,
with MIG `(PCI:0000:3b:00 GPU-I:03)`."""

import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from agent.model import Absent, Reason

DEVICE = "/dev/kmsg"
KMSG = (1, 11)  # Major and minor number of the device, on every Linux
RECORD = 8192  # bytes; the kernel refuses to read a record into less than it has
MOST_LINES = 10_000
"""Records per turn, more than most kernels keep: a flood takes several turns."""

KERNEL = 0
"""Facility of the kernel's own lines; a program may write here too, with another facility."""

REMEDY = (
    "let the unit hand over /dev/kmsg (StandardInput=file:/dev/kmsg in a drop-in, as `install` "
    "writes it)"
)


class LogLine(NamedTuple):
    """A message of the kernel; `at` in seconds of the kernel's clock since boot."""

    at: float
    text: str


class KernelLog(Protocol):
    """Reader of new lines in the kernel log; one reader at a time."""

    def lines(self) -> Sequence[LogLine]:
        """Return the lines since the last call; raises Absent with the reason."""


class NoKernelLog:
    """Kernel log of a machine that has none: tapes, containers."""

    def __init__(self, reason: Reason = Reason.MISSING, why: str = "no kernel log here") -> None:
        self._absent = (reason, why)

    def lines(self) -> Sequence[LogLine]:
        raise Absent(*self._absent)


def record(raw: bytes) -> LogLine | None:
    """Return a record of /dev/kmsg, `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`; None if the kernel
    did not write it."""
    head, found, text = raw.decode(errors="replace").partition(";")
    fields = head.split(",")
    try:
        priority, at = int(fields[0]), int(fields[2]) / 1e6
    except (ValueError, IndexError):
        return None
    if not found or priority >> 3 != KERNEL:
        return None
    return LogLine(at, text.partition("\n")[0])


class DeviceLog:
    """/dev/kmsg by a descriptor that is open for reading; `since` is its beginning (seconds of the
    kernel's clock), None for new lines only."""

    def __init__(self, descriptor: int, since: float | None = None) -> None:
        self._descriptor = descriptor
        self._since = since or 0.0
        os.set_blocking(descriptor, False)
        os.lseek(descriptor, 0, os.SEEK_END if since is None else os.SEEK_SET)

    def lines(self) -> Sequence[LogLine]:
        """Return at most MOST_LINES lines; the next call returns the rest."""
        return [line for line in self._records() if line and line.at >= self._since]

    def _records(self) -> Iterator[LogLine | None]:
        for _ in range(MOST_LINES):
            try:
                raw = os.read(self._descriptor, RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten meanwhile; the next read goes on after the gap
                continue
            except OSError as error:
                raise Absent(Reason.FAILED, f"{DEVICE}: {error.strerror}") from error
            if not raw:
                return
            yield record(raw)


class Reached:
    """Position in the log of this boot up to which lines were read. A file keeps it for the next
    start of the agent."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._at, self._kept = path, 0.0, -KEEP_EVERY

    def since(self) -> float | None:
        """Return the time of the last line that was read before in this boot, None if unknown."""
        try:
            boot, at = self._path.read_text().split() if self._path else ("", "")
            same = boot == BOOT_ID.read_text().strip()
            return float(at) if same else None
        except (OSError, ValueError):
            return None

    def take(self, at: float) -> None:
        """Keep the time of the newest line; a flood of lines costs one write in ten seconds."""
        now = time.monotonic()
        if self._path is None or at <= self._at or now - self._kept < KEEP_EVERY:
            return
        self._at, self._kept = at, now
        with suppress(OSError):  # the next start reads from its own time on
            self._path.write_text(f"{BOOT_ID.read_text().strip()} {at:.6f}\n")


BOOT_ID, KEEP_EVERY = Path("/proc/sys/kernel/random/boot_id"), 10.0
ONE_MICROSECOND = 1e-6
"""Resolution of the kernel's times (s)."""


class RealKernelLog:
    """/dev/kmsg of this machine; opening it is tried again until it succeeds. `history` is the
    number of past seconds to show first: 0 for an agent, which counts new events, more for a look.
    An agent continues at the place that the file `kept` has from the agent before it."""

    def __init__(self, history: float = 0.0, kept: Path | None = None) -> None:
        self._history = history
        self._reached = Reached(kept)
        self._log: DeviceLog | None = None

    def lines(self) -> Sequence[LogLine]:
        lines = self._new_lines()
        if lines:
            self._reached.take(lines[-1].at)
        return lines

    def _new_lines(self) -> Sequence[LogLine]:
        if self._log is None:
            now, before = time.monotonic(), self._reached.since()
            since = max(0.0, now - self._history) if self._history else None
            if before is None:
                self._reached.take(now)
            else:
                since = before + ONE_MICROSECOND
            try:
                self._log = DeviceLog(_descriptor(), since)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                reason = Reason.MISSING if missing else Reason.DENIED
                raise Absent(reason, f"{DEVICE}: {error.strerror}; {REMEDY}") from error
        return self._log.lines()


def _descriptor() -> int:
    """Standard input if systemd made it the device, before it took the privilege away; else the
    device itself, which takes CAP_SYSLOG unless kernel.dmesg_restrict is 0."""
    with_device = stat.S_IFCHR, os.makedev(*KMSG)
    try:
        given = os.fstat(sys.stdin.fileno())
        if (stat.S_IFMT(given.st_mode), given.st_rdev) == with_device:
            return os.dup(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        pass
    return os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
XID_LINE = re.compile(
    rf"NVRM: Xid \((?:PCI:)?({ADDRESS})(?: [A-Z][A-Z-]*:\d+)*\): (\d{{1,4}})(?!\d),? ?(.*)",
    re.DOTALL,
)
SWITCH = re.compile(
    rf"(nvidia-nvswitch\d{{1,2}}): SXid \(PCI:({ADDRESS})\): (\d{{1,6}}), "
    r"(Fatal|Non-fatal)(?:,.*)?",
    re.DOTALL | re.IGNORECASE,
)
FALLEN = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({ADDRESS})\b.{{0,150}}\bfallen off the bus.*",
    re.DOTALL,
)
"""For a GPU that is gone when the driver is loaded, which no XID reports (issue 155 of
NVIDIA/NVSentinel); for a GPU at work too, beside its XID."""

LOST_XID = 79
NVLINK5 = re.compile(
    r"\b(\w{1,64})\s+(Fatal|Nonfatal)\s+XC\d+\s+i(\d+)\s+Link\s+-?\d+\s+"
    r"\((0x[0-9a-fA-F]{1,8})\s+(0x[0-9a-fA-F]{1,8})"
)

LINE_LETTERS = 1000  # Characters of a line that are looked at: the driver's are shorter


class KernelXid(NamedTuple):
    """An XID error; NVLink 5 alone reports `unit`, `fatal` and the words. `way` is "fallen" for a
    line on a lost GPU without an XID."""

    pci: str
    code: int
    unit: str = ""
    fatal: bool = False
    first: int = 0
    status: int = 0
    way: str = "log"


class SwitchError(NamedTuple):
    """An error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool


def parsed(text: str) -> KernelXid | SwitchError | None:
    """Return the content of a line; None for a line without an error, or with an old or an injected
    error."""
    if "NVRM: " not in text and "SXid" not in text:
        return None
    text = text[:LINE_LETTERS]
    if found := XID_LINE.fullmatch(text):
        pci, code, rest = found.groups()
        if (link := NVLINK5.search(rest)) is None:
            return KernelXid(pci, int(code))
        unit, severity, injected, *words = link.groups()
        if int(injected):
            return None
        first, status = (int(word, 16) for word in words)
        return KernelXid(pci, int(code), unit, severity == "Fatal", first, status)
    if found := SWITCH.fullmatch(text):
        return SwitchError(found[1], int(found[3]), found[4].lower() == "fatal")
    found = FALLEN.fullmatch(text)
    return KernelXid(found[1], LOST_XID, way="fallen") if found else None
