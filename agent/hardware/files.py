"""Reads the files of a host below a root directory, such as those in /proc and /sys."""

import os
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from agent.model import Absent, Reason

LONGEST_LINE = 4096  # Maximum bytes read from a file in /proc/PID that is read repeatedly

READ_BYTES = 65_536  # Bytes per read call for longer files


class FileTree(Protocol):
    """The interface through which sources read files. Paths are absolute, as on a real machine. All
    methods raise OSError if the path cannot be read."""

    def read(self, path: str) -> str:
        """Return the contents of a file."""

    def reread(self, path: str) -> str:
        """Return the contents of a /proc file that is read every second. It may be kept open."""
        return self.read(path)

    def names(self, path: str) -> list[str]:
        """Return the sorted names of the entries in a directory."""

    def link(self, path: str) -> str:
        """Return the target of a symbolic link."""


class RealFiles:
    """The files of a real file system below the directory `root`."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self._above = str(self.root).rstrip("/")  # string: hundreds of reads per second
        self._open: OrderedDict[str, int] = OrderedDict()  # descriptors, least recently used first
        # /proc files are kept open, because opening one takes five times as long as reading it.
        self._most_open = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

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
        except OSError:  # process exited; another process with this PID has another file
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
    """Return a file's contents without surrounding whitespace, or raise Absent on failure."""
    try:
        return files.read(path).strip()
    except OSError as error:
        raise absent_from(error, path) from error


def text_or_nothing(files: FileTree, path: str) -> str:
    """Return a file's contents without surrounding whitespace, or "" if it cannot be read."""
    try:
        return files.read(path).strip()
    except OSError:
        return ""


def read_int(files: FileTree, path: str) -> int:
    """Return the integer in a file. Raise Absent if the file does not contain a 64-bit integer."""
    text = read_text(files, path)
    try:
        value = int(text, 0)
    except ValueError as error:
        raise Absent(Reason.UNKNOWN, f"{path} holds {text!r:.60}, expected an integer") from error
    if abs(value) >= 2**64 - 1:  # all bits set means no value
        raise Absent(Reason.UNKNOWN, f"{path} holds {text:.60}, expected 64 bits")
    return value


def whole(text: str, digits: int = 20) -> int | None:
    """Return the number in a string of 1 to `digits` decimal digits, or None for any other string.
    Without this check, int() fails for thousands of digits, and accepts non-ASCII digits."""
    return int(text) if text.isdecimal() and len(text) <= digits else None


def names_in(files: FileTree, path: str) -> list[str]:
    """Return the names of a directory's entries, or an empty list if it cannot be read."""
    try:
        return files.names(path)
    except OSError:
        return []
