"""The kernel's log: /dev/kmsg where it may be read, handed over by systemd or opened; else the
journal, where the agent's groups may read it; else a reason. And what NVIDIA's drivers write to it:
XID errors, NVSwitch errors, lost GPUs.

Wordings differ by driver: `Xid (0000:3b:00): 48, ...` before R440, `Xid (PCI:0000:3b:00): 31,
pid=1234, Ch ...`, since R510 `pid=1234, name=python, Ch ...` or `pid='<unknown>', name=<unknown>`,
with MIG `(PCI:0000:3b:00 GPU-I:03)`."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from agent.model import Absent, Reason

DEVICE = "/dev/kmsg"
KMSG = (1, 11)  # Major and minor number of the device, on every Linux
RECORD = 8192  # bytes; the kernel refuses to read a record into less than it has
MOST = 10_000
"""Records of one turn, more than most kernels keep: a flood is worked off over several."""

KERNEL = 0
"""Facility of what the kernel wrote itself; a program may write here too, with another one."""

AGAIN = 60.0  # s, between two attempts to open what could not be opened
JOURNALS = ("/var/log/journal", "/run/log/journal")
REMEDY = (
    "let the unit hand over /dev/kmsg (StandardInput=file:/dev/kmsg in a drop-in, as `install` "
    "writes it), or add its user to the group systemd-journal"
)


class LogLine(NamedTuple):
    """One message of the kernel; `at` in seconds of the kernel's clock since boot."""

    at: float
    text: str


class KernelLog(Protocol):
    """Reader of new lines in the kernel log; one reader at a time."""

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""

    def lines(self) -> Sequence[LogLine]:
        """Return the lines since the last call; raises Absent with the reason."""


class NoKernelLog:
    """Kernel log of a machine without one: tapes, containers."""

    lost = 0

    def __init__(self, reason: Reason = Reason.MISSING, why: str = "no kernel log here") -> None:
        self._absent = (reason, why)

    def lines(self) -> Sequence[LogLine]:
        raise Absent(*self._absent)


def record(raw: bytes) -> LogLine | None:
    """A record of /dev/kmsg, `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`; None for what the kernel
    did not write."""
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
    """/dev/kmsg by a descriptor that is open for reading; `since` is where it begins (seconds of
    the kernel's clock), None for what comes from now on."""

    def __init__(self, descriptor: int, since: float | None = None) -> None:
        self._descriptor = descriptor
        self._since = since or 0.0
        self._next = 0  # number of the record that is due, 0 where none was read yet
        self.lost = 0
        os.set_blocking(descriptor, False)
        os.lseek(descriptor, 0, os.SEEK_END if since is None else os.SEEK_SET)

    def lines(self) -> Sequence[LogLine]:
        """At most MOST; the rest at the next call."""
        return [line for line in self._records() if line and line.at >= self._since]

    def _records(self) -> Iterator[LogLine | None]:
        for _ in range(MOST):
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
            self._number(raw)
            yield record(raw)

    def _number(self, raw: bytes) -> None:
        """Count the records that are missing before this one."""
        try:
            number = int(raw.split(b",", 2)[1])
        except (ValueError, IndexError):
            return
        self.lost += max(0, number - self._next) if self._next else 0
        self._next = number + 1


class JournalLog:
    """The kernel's messages in the journal, from a journalctl that follows it."""

    def __init__(self, program: str, since: float | None = None) -> None:
        begin = ["--lines=0"] if since is None else ["--boot", "--lines=100000"]
        command = [program, "--dmesg", "--follow", "--quiet", "--output=json", *begin]
        self._since = since or 0.0
        self._child = subprocess.Popen(  # noqa: S603
            [*command, "--output-fields=MESSAGE,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdout is not None
        self._pipe = self._child.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._rest = b""
        self.lost = 0

    def lines(self) -> Sequence[LogLine]:
        """Return the lines that the child wrote since; raises Absent if it ended."""
        found: list[LogLine | None] = []
        while len(found) < MOST:
            try:
                raw = os.read(self._pipe, RECORD * 64)
            except BlockingIOError:
                break
            if not raw and not found:
                raise Absent(Reason.FAILED, f"journalctl ended with status {self._child.wait()}")
            if not raw:
                break
            *whole, self._rest = (self._rest + raw).split(b"\n")
            found += map(_entry, whole)
        return [line for line in found if line and line.at >= self._since]


def _entry(raw: bytes) -> LogLine | None:
    try:
        entry = json.loads(raw)
        if int(entry["SYSLOG_FACILITY"]) != KERNEL:  # a program wrote it to /dev/kmsg
            return None
        text = entry["MESSAGE"]
        if isinstance(text, list):  # bytes that are no UTF-8
            text = bytes(text).decode(errors="replace")
        return LogLine(int(entry["_SOURCE_MONOTONIC_TIMESTAMP"]) / 1e6, str(text))
    except (ValueError, KeyError, TypeError):
        return None


class RealKernelLog:
    """The first way that is open on this machine; tried again while none is.

    `history` is how many seconds of the past are shown first: none for an agent, which counts what
    happens, some for a look.
    """

    def __init__(self, history: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._history = history
        self._clock = clock
        self._log: KernelLog | None = None
        self._absent = Absent(Reason.MISSING, f"{DEVICE} is not there")
        self._again = 0.0

    @property
    def lost(self) -> int:
        return self._log.lost if self._log else 0

    def lines(self) -> Sequence[LogLine]:
        if self._log is None:
            now = self._clock()
            if now < self._again:
                raise self._absent.without_traceback()
            self._again = now + AGAIN
            self._log = self._opened(now)
        try:
            return self._log.lines()
        except Absent as absent:
            self._log, self._absent = None, absent.without_traceback()
            raise

    def _opened(self, now: float) -> KernelLog:
        since = max(0.0, now - self._history) if self._history else None
        try:
            return DeviceLog(_descriptor(), since)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = f"{DEVICE}: {error.strerror}; {REMEDY}"
            self._absent = Absent(Reason.MISSING if missing else Reason.DENIED, why)
        program = shutil.which("journalctl")
        files = (path for folder in JOURNALS for path in Path(folder).glob("*/system.journal"))
        if program is None or not any(os.access(path, os.R_OK) for path in files):
            raise self._absent.without_traceback()
        return JournalLog(program, since)


def _descriptor() -> int:
    """Standard input where systemd made it the device, before it took the privilege away; else the
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
XID = re.compile(
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
"""Of a GPU at work in one line; of one that is gone when the driver is loaded in one record of
three (issue 155 of NVIDIA/NVSentinel), and then no XID reports it."""

FORGED = re.compile(r"NVRM: .{0,60}(?:Xid \(|fallen off the bus)|SXid \(")
"""Words of these lines within another one: a program that crashes is logged with its name, of which
the first 15 letters begin the line, and with those of the files that it has mapped."""

OWN = ("NVRM: ", "nvidia-nvswitch")
CRASHED = re.compile(r".{0,15}\[\d+\]: ")
"""Beginning of a kernel line on a process, with its name and its number."""

PROCESS = re.compile(r"pid=(\d+)(?:, name=([^,]*))?")
NVLINK5 = re.compile(
    r"\b(\w{1,64})\s+(Fatal|Nonfatal)\s+XC\d+\s+i\d+\s+Link\s+-?\d+\s+"
    r"\((0x[0-9a-fA-F]{1,8})\s+(0x[0-9a-fA-F]{1,8})"
)

LONGEST = 1000  # Characters of a line that are looked at: the driver's are shorter


class KernelXid(NamedTuple):
    """One XID error; `unit`, `fatal` and the words are reported by NVLink 5 alone."""

    pci: str
    code: int
    pid: int | None
    process: str
    unit: str
    fatal: bool
    first: int
    status: int

    @property
    def who(self) -> str:
        """`python (1234)`, `1234`, or nothing."""
        if self.pid is None:
            return ""
        return f"{self.process} ({self.pid})" if self.process else str(self.pid)


class SwitchError(NamedTuple):
    """One error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool


class BusLoss(NamedTuple):
    """A GPU that the driver no longer finds."""

    pci: str


class Forged(NamedTuple):
    """A line that holds the driver's words, and that the driver did not write."""

    text: str


DriverLine = KernelXid | SwitchError | BusLoss | Forged


def parsed(text: str) -> DriverLine | None:
    """Return the content of a line; None for all lines that report no error, or no new one."""
    if "NVRM: " not in text and "SXid" not in text:
        return None
    text = text[:LONGEST]
    if found := XID.fullmatch(text):
        pci, code, rest = found.groups()
        process, link = PROCESS.search(rest), NVLINK5.search(rest)
        pid, name = (int(process[1]), (process[2] or "").strip()) if process else (None, "")
        unit, fatal = (link[1], link[2] == "Fatal") if link else ("", False)
        words = [int(word, 16) for word in link.groups()[2:]] if link else [0, 0]
        return KernelXid(pci, int(code), pid, name, unit, fatal, *words)
    if found := SWITCH.fullmatch(text):
        return SwitchError(found[1], int(found[3]), found[4].lower() == "fatal")
    if found := FALLEN.fullmatch(text):
        return BusLoss(found[1])
    own = text.startswith(OWN) and not CRASHED.match(text)
    return Forged(text) if not own and FORGED.search(text) else None
