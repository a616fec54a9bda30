"""Guard that decides which of NCCL's RAS services may be asked: those of GPU processes that one
user runs in one namespace of pids, whose NCCL has no known fault that ends the job which is asked.

All of this reads /proc alone: no connection is made.
"""

import os
import re
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from agent.hardware import processes
from agent.hardware.files import RealFiles
from agent.model import Absent, Reason

Version = tuple[int, int, int]


class KnownFault(NamedTuple):
    """Versions, both ends included, of which a public report says that RAS ends the job."""

    first: Version
    last: Version
    report: str


KNOWN_FAULTS = (
    KnownFault((2, 26, 2), (2, 26, 2), "nccl#1669"),  # asked while it initialises
    KnownFault((2, 26, 5), (2, 26, 5), "nccl#1718"),
    KnownFault((2, 27, 3), (2, 27, 3), "nccl#1762"),  # memory is overwritten
    KnownFault((2, 27, 7), (2, 27, 7), "nccl#1996"),  # even where it is not asked
    KnownFault((2, 24, 0), (2, 29, 7), "nccl#2346"),  # asked while communicators come and go
)
"""The first that holds is named. See https://github.com/NVIDIA/nccl/issues/NUMBER."""

FILE_NAME = re.compile(r"/libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?: \(deleted\))?$")
BUILD = re.compile(rb"NCCL version (\d{1,3})\.(\d{1,3})\.(\d{1,3})\+cuda")
MOST_TEXT = 64 << 20
"""Bytes of a library's constants that are searched for its build text: NCCL 2.28 has 2 MB."""
MOST_SECTIONS = 256
MOST_LIBRARIES = 64
LISTENING = "0A"


def refused_version(versions: Collection[Version]) -> str | None:
    rows = (row for row in KNOWN_FAULTS for v in versions if row.first <= v <= row.last)
    return next((row.report for row in rows), None)


class RasGuard:
    """Says of each listening address whose service it is, and whether that may be asked."""

    def __init__(self, files: RealFiles) -> None:
        self._files = files
        self._builds: dict[tuple[int, ...], Version | None] = {}  # by device, inode, size and time

    def admitted(
        self, host: str, port: int, gpu_processes: Collection[int], *, unknown: bool
    ) -> frozenset[int]:
        """The GPU processes that may be believed on what this address answers; raises Absent where
        it must not be asked. `unknown`: versions that cannot be read may be asked."""
        sockets = set(self._listeners(host, port))
        if not sockets:
            raise Absent(Reason.MISSING, f"no one listens on {host}:{port}")
        owners = self._owners(sockets, gpu_processes)
        scopes = {self._scope(pid) for pid in owners.values()}
        scope = scopes.pop() if len(scopes) == 1 and len(owners) == len(sockets) else None
        if scope is None:
            more = " (reading that needs root)" if os.geteuid() else ""
            why = f"the listener on {host}:{port} is not known to be a GPU process{more}"
            raise Absent(Reason.DENIED, why)
        if {str(uid) for _, uid in sockets} != {scope[0]}:
            why = f"the listener on {host}:{port} belongs to another user than its process"
            raise Absent(Reason.DENIED, why)
        for pid in sorted(set(owners.values())):
            versions = self.versions(pid)
            if report := refused_version(versions):
                name = ".".join(map(str, min(versions)))
                why = f"asking NCCL {name} may end its job ({report}): it is not asked"
                raise Absent(Reason.UNSUPPORTED, why)
            if not versions and not unknown:
                why = f"the version of NCCL in process {pid} cannot be read: it is not asked"
                raise Absent(Reason.UNKNOWN, why)
        return frozenset(pid for pid in gpu_processes if self._scope(pid) == scope)

    def _listeners(self, host: str, port: int) -> Iterator[tuple[str, int]]:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with suppress(OSError):
                for line in self._files.read(table).splitlines()[1:]:
                    columns = line.split()
                    if len(columns) < 10 or columns[3] != LISTENING:
                        continue
                    local, _, local_port = columns[1].rpartition(":")
                    takes = local in _ADDRESSES.get(host, _ADDRESSES["127.0.0.1"])
                    if takes and int(local_port, 16) == port and columns[7].isdecimal():
                        yield columns[9], int(columns[7])

    def _owners(
        self, sockets: Collection[tuple[str, int]], pids: Collection[int]
    ) -> dict[str, int]:
        links = {f"socket:[{inode}]": inode for inode, _ in sockets}
        found: dict[str, int] = {}
        for pid in pids:
            folder = f"/proc/{pid}/fd"
            with suppress(OSError):
                for name in self._files.names(folder):
                    with suppress(OSError):
                        inode = links.get(self._files.link(f"{folder}/{name}"))
                        if inode is not None:
                            found.setdefault(inode, pid)
            if len(found) == len(links):
                break
        return found

    def _scope(self, pid: int) -> tuple[str, str] | None:
        """The user and the pid namespace of a process; None where /proc hides either."""
        try:
            uid = processes.uid(processes.status(self._files, pid))
            return str(uid), self._files.link(f"/proc/{pid}/ns/pid")
        except OSError:
            return None

    def versions(self, pid: int) -> frozenset[Version]:
        """The versions of NCCL mapped into a process, by file name and by build text."""
        try:
            lines = self._files.read(f"/proc/{pid}/maps").splitlines()
        except OSError:
            return frozenset()
        paths = {line.split(maxsplit=5)[-1] for line in lines if "/libnccl.so" in line}
        found: set[Version | None] = set()
        for path in sorted(paths):
            named = FILE_NAME.search(path)
            found.add(_version(named.groups()) if named else None)
            found.add(self._build(f"/proc/{pid}/root{path}"))
        return frozenset(version for version in found if version is not None)

    def _build(self, path: str) -> Version | None:
        """The version in the build text of a library, read once of each file."""
        try:
            place = os.open(
                self._files.root / path.lstrip("/"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            )
            with open(place, "rb") as library:
                state = os.fstat(place)
                if not stat.S_ISREG(state.st_mode):
                    return None
                key = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
                if key not in self._builds:
                    if len(self._builds) >= MOST_LIBRARIES:
                        self._builds.clear()
                    self._builds[key] = build_version(library)
                return self._builds[key]
        except (OSError, ValueError, struct.error):
            return None


def build_version(library: BinaryIO) -> Version | None:
    """The version in the constants (.rodata) of an ELF library of 64 bits; raises OSError,
    ValueError and struct.error where it is none. What else it holds, hundreds of megabytes of GPU
    code, is not read."""
    head = library.read(64)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF library of 64 bits")
    (table,) = struct.unpack_from("<Q", head, 40)
    size, number, names_at = struct.unpack_from("<HHH", head, 58)
    sections = []
    library.seek(table)
    for _ in range(min(number, MOST_SECTIONS)):
        name, _, _, _, at, length = struct.unpack_from("<IIQQQQ", library.read(size))
        sections.append((name, at, length))
    library.seek(sections[names_at][1])
    names = library.read(min(sections[names_at][2], 1 << 16))
    for name, at, length in sections:
        if names[name:].startswith(b".rodata\0"):
            library.seek(at)
            found = BUILD.search(library.read(min(length, MOST_TEXT)))
            return _version(found.groups()) if found else None
    return None


def _version(parts: tuple[str | bytes, ...]) -> Version:
    major, minor, patch = map(int, parts)
    return major, minor, patch


_V4, _ANY4, _V6, _ANY6 = "0100007F", "0" * 8, f"{'0' * 24}01000000", "0" * 32
_ADDRESSES: Mapping[str, Collection[str]] = {
    "127.0.0.1": (_V4, _ANY4, _ANY6, f"{'0' * 16}FFFF0000{_V4}"),
    "::1": (_V6, _ANY6),
}
"""Local addresses, as the kernel prints them, of sockets that take connections to a host's own."""
