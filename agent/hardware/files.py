"""Files below an injectable root: /proc and /sys of this machine, of a fixture, of a tape."""

import os
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from agent.model import Absent, Reason

COUNTER_END = 2**64 - 1  # No counter of the kernel reaches this: all bits set mean no value
MOST_OPEN = 2048
"""Files of /proc that stay open, because to open a file costs five times as much as to read it;
never more than half of the descriptors that the process may have."""

LONGEST_LINE = 4096  # Bytes of a file of /proc/PID that is read again and again


READ_BYTES = 65_536  # Bytes per call when a file is longer


class FileTree(Protocol):
    """Protocol of the file system that sources read. Paths are absolute, as on the real machine."""

    def read(self, path: str) -> str:
        """The text of a file. Raises OSError as the real file does."""

    def reread(self, path: str) -> str:
        """Return the text of a file of /proc that is read every second. The file may stay open
        until it is gone. Raises OSError."""
        return self.read(path)

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder. Raises OSError as the real folder does."""

    def link(self, path: str) -> str:
        """Return the target of a symbolic link. Raises OSError."""


class RealFiles:
    """A real file system below `root`."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self._above = str(self.root).rstrip("/")  # hundreds of files are read a second
        self._open: OrderedDict[str, int] = OrderedDict()  # descriptors, the longest unused first
        self._most_open = min(MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def read(self, path: str) -> str:
        descriptor = os.open(self._above + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts, most = [], LONGEST_LINE
            while part := os.read(descriptor, most):
                parts.append(part)
                most = READ_BYTES
        finally:
            os.close(descriptor)
        return b"".join(parts).decode(errors="replace")

    def reread(self, path: str) -> str:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._open[path] = os.open(self._above + path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > self._most_open:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        try:
            return os.pread(descriptor, LONGEST_LINE, 0).decode(errors="replace")
        except OSError:  # the process has ended; another with its number is another file
            del self._open[path]
            os.close(descriptor)
            raise

    def names(self, path: str) -> list[str]:
        with os.scandir(self._above + path) as entries:
            return sorted([entry.name for entry in entries])

    def link(self, path: str) -> str:
        return str((self.root / path.lstrip("/")).readlink())


def absent_from(error: OSError, path: str) -> Absent:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        reason = Reason.MISSING
    elif isinstance(error, PermissionError):
        reason = Reason.DENIED
    else:
        reason = Reason.FAILED
    return Absent(reason, f"{path}: {error.strerror or error}")


def read_text(files: FileTree, path: str) -> str:
    """The stripped text of a file; raises Absent with the reason."""
    try:
        return files.read(path).strip()
    except OSError as error:
        raise absent_from(error, path) from error


def text_or_nothing(files: FileTree, path: str) -> str:
    """Return the stripped text of a file; empty if it is not readable."""
    try:
        return read_text(files, path)
    except Absent:
        return ""


def read_int(files: FileTree, path: str) -> int:
    """The integer in a file; raises Absent with the reason."""
    text = read_text(files, path)
    try:
        value = int(text, 0)
    except ValueError as error:
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected an integer") from error
    if abs(value) >= COUNTER_END:
        raise Absent(Reason.UNKNOWN, f"{path} holds {text:.60}, expected 64 bits")
    return value


def whole(text: str, digits: int = 20) -> int | None:
    """Return the number in a text of at most so many decimal digits; None for any other text.
    Python refuses to parse thousands of digits, and takes a superscript for a digit."""
    return int(text) if text.isdecimal() and len(text) <= digits else None


def names_in(files: FileTree, path: str) -> list[str]:
    """The names in a folder; empty if the folder does not exist."""
    try:
        return files.names(path)
    except OSError:
        return []
