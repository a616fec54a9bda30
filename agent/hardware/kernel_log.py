"""Reads the kernel log (/dev/kmsg), and parses the messages of NVIDIA drivers in it: XID errors,
NVSwitch errors, and lost GPUs.

The format depends on the driver: `Xid (0000:3b:00): 48, ...` before R440, then `Xid
(PCI:0000:3b:00): 31, pid=1234, Ch ...`, and since R510 `pid=1234, name=python, Ch ...` or
`pid='<unknown>', name=<unknown>`. With MIG, the address is `(PCI:0000:3b:00 GPU-I:03)`."""

import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.metrics import beside
from agent.model import Absent, Reason

DEVICE = "/dev/kmsg"
MOST_LINES = 10_000
"""Maximum number of kernel log records per read. The next read returns the following records."""


class LogLine(NamedTuple):
    """A kernel log line. `at` is its timestamp in seconds since boot, on the kernel's clock."""

    at: float
    text: str


class KernelLog:
    """The interface to the kernel log. This class represents a machine without a log."""

    _read = 0  # number of lines that `lines` has returned

    def lines(self) -> Sequence[LogLine]:
        """Return the lines added since the last call. Raise Absent if the log cannot be read."""
        found = self.all()
        fresh, self._read = found[self._read :], len(found)
        return fresh

    def all(self) -> Sequence[LogLine]:
        """Return all lines so far. Raise Absent if the log cannot be read."""
        raise Absent(Reason.MISSING, "no kernel log here")


def record(raw: bytes) -> LogLine | None:
    """Return the log line in a /dev/kmsg record, `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`. Return
    None if the record is malformed or does not come from the kernel."""
    head, found, text = raw.decode(errors="replace").partition(";")
    fields = head.split(",")
    try:
        priority, at = int(fields[0]), int(fields[2]) / 1e6
    except (ValueError, IndexError):
        return None
    if not found or priority >> 3:  # the syslog facility, which is 0 for the kernel alone
        return None
    return LogLine(at, text.partition("\n")[0])


BOOT_ID, KEEP_EVERY = Path("/proc/sys/kernel/random/boot_id"), 10.0


class RealKernelLog(KernelLog):
    """Reads /dev/kmsg. If it cannot be opened, each call tries again. `history` is the number of
    seconds of past lines to return first. It is 0 for the agent, which counts new errors, and above
    0 for commands that read the log once. The file `kept` stores the timestamp of the last line
    read, so that the agent continues from there after a restart."""

    def __init__(self, history: float = 0.0, kept: Path | None = None) -> None:
        self._history = history
        self._path, self._at, self._kept = kept, 0.0, -KEEP_EVERY
        self._descriptor: int | None = None
        self._since = 0.0  # earlier lines are skipped (s on the kernel's clock)

    def lines(self) -> Sequence[LogLine]:
        descriptor = self._open() if self._descriptor is None else self._descriptor
        lines = [line for line in _records(descriptor) if line and line.at >= self._since]
        if lines:
            self._keep(lines[-1].at)
        return lines

    all = lines  # each line is read once

    def _open(self) -> int:
        now, before = time.monotonic(), self._reached()
        since = max(0.0, now - self._history) if self._history else None
        if before is None:
            self._keep(now)
        else:
            since = before + 1e-6  # the resolution of kernel timestamps
        try:
            descriptor = _descriptor()
            os.set_blocking(descriptor, False)
            os.lseek(descriptor, 0, os.SEEK_END if since is None else os.SEEK_SET)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            reason = Reason.MISSING if missing else Reason.DENIED
            raise Absent(reason, f"{DEVICE}: {error.strerror}") from error
        self._descriptor, self._since = descriptor, since or 0.0
        return descriptor

    def _reached(self) -> float | None:
        """Return the stored timestamp of the last line read since boot, or None if unknown."""
        try:
            boot, at = self._path.read_text().split() if self._path else ("", "")
            same = boot == BOOT_ID.read_text().strip()
            return float(at) if same else None
        except (OSError, ValueError):
            return None

    def _keep(self, at: float) -> None:
        """Store `at`, the timestamp of the last line read, at most once every ten seconds."""
        now = time.monotonic()
        if self._path is None or at <= self._at or now - self._kept < KEEP_EVERY:
            return
        self._at, self._kept = at, now
        with suppress(OSError):  # without the file, the next agent will only read new lines
            self._path.write_text(f"{BOOT_ID.read_text().strip()} {at:.6f}\n")


def _records(descriptor: int) -> Iterator[LogLine | None]:
    """Yield up to MOST_LINES new records of a /dev/kmsg file descriptor."""
    for _ in range(MOST_LINES):
        try:
            raw = os.read(descriptor, 8192)  # the kernel fills no shorter buffer
        except BlockingIOError:
            return
        except BrokenPipeError:  # the record was overwritten, so continue after the gap
            continue
        except OSError as error:
            raise Absent(Reason.FAILED, f"{DEVICE}: {error.strerror}") from error
        if not raw:
            return
        yield record(raw)


def _descriptor() -> int:
    """Return a file descriptor for /dev/kmsg: standard input if systemd has opened it there.
    Otherwise, open it, which requires CAP_SYSLOG unless kernel.dmesg_restrict is 0."""
    with_device = stat.S_IFCHR, os.makedev(1, 11)  # the same on every Linux system
    try:
        given = os.fstat(sys.stdin.fileno())
        if (stat.S_IFMT(given.st_mode), given.st_rdev) == with_device:
            return os.dup(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        pass
    return os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def nameless(text: str) -> str:
    """Return a log line without the name of a program, and without what follows it."""
    return re.sub(r"((?:name|comm)[=: ]+).*", r"\1...", text)


PATTERNS = {name: re.compile(pattern) for name, pattern in beside(__file__).items()}


class KernelXid(NamedTuple):
    """An XID error in a log line. `unit`, `fatal`, `first`, and `status` are set only for NVLink 5
    errors. `way` is "fallen" if the line reports a lost GPU without an XID."""

    pci: str
    code: int
    unit: str = ""
    fatal: bool = False
    first: int = 0
    status: int = 0
    way: str = "log"


class SwitchError(NamedTuple):
    """An NVSwitch error (SXid) in a log line."""

    switch: str
    code: int
    fatal: bool


def parsed(text: str) -> KernelXid | SwitchError | None:
    """Return the error in a log line, or None if there is none or a test has injected it."""
    if "NVRM: " not in text and "SXid" not in text:
        return None
    text = text[:1000]  # messages of drivers are shorter
    if found := PATTERNS["xid"].fullmatch(text):
        pci, code, rest = found.groups()
        if (link := PATTERNS["nvlink5"].search(rest)) is None:
            return KernelXid(pci, int(code))
        unit, severity, injected, *words = link.groups()
        if int(injected):
            return None
        first, status = (int(word, 16) for word in words)
        return KernelXid(pci, int(code), unit, severity == "Fatal", first, status)
    if found := PATTERNS["switch"].fullmatch(text):
        return SwitchError(found[1], int(found[3]), found[4].lower() == "fatal")
    found = PATTERNS["fallen"].fullmatch(text)
    return KernelXid(found[1], 79, way="fallen") if found else None  # XID 79: off the bus
