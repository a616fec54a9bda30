"""Guard of listeners: real processes, with real sockets and a library mapped for real."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.hardware.files import RealFiles
from agent.hardware.nccl import RasAddress, RasReader, RasRequest
from agent.hardware.nccl_guard import KNOWN_FAULTS, RasGuard, Version, refused_version
from agent.model import Absent, Reason

LISTENS = """
import mmap, socket, sys
uid, port, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
held = []
if library:
    with open(library, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
if uid:
    import os
    os.setuid(uid)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", port))
listener.listen()
print(listener.getsockname()[1], flush=True)
connections = 0
sys.stdin.readline()
listener.settimeout(0)
try:
    while True:
        held.append(listener.accept())
        connections += 1
except BlockingIOError:
    print(connections, flush=True)
"""


class Listener:
    """A process that listens on a port, with a library mapped if one is named."""

    def __init__(self, library: Path | None = None, *, uid: int = 0, port: int = 0) -> None:
        words = [sys.executable, "-c", LISTENS, str(uid), str(port), str(library or "")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.pid = self.process.pid
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def connections(self) -> int:
        """Return the number of connections so far, and end the listener."""
        return int(self.process.communicate("\n")[0])

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Listener]]:
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(Listener(*args, **kwargs))


def elf(constants: bytes) -> bytes:
    """A library of 64 bits with these constants, and GPU code behind them."""
    names = b"\0.rodata\0.nv_fatbin\0.shstrtab\0"
    parts = [constants, b"NCCL version 9.9.9+cuda" * 3, names]
    at, sections = 64, [struct.pack("<IIQQQQ24x", 0, 0, 0, 0, 0, 0)]
    for name, part in zip((".rodata", ".nv_fatbin", ".shstrtab"), parts, strict=True):
        place = names.index(name.encode())
        sections.append(struct.pack("<IIQQQQ24x", place, 1, 0, 0, at, len(part)))
        at += len(part)
    head = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", at) + bytes(10)
    head += struct.pack("<HHH", 64, len(sections), 3)
    return head + b"".join(parts) + b"".join(sections)


def library(folder: Path, name: str = "libnccl.so.2", build: str = "") -> Path:
    text = f"no\0NCCL version {build}+cuda12.9\0".encode() if build else b"nothing"
    path = folder / name
    path.write_bytes(elf(text))
    return path


GUARD = RasGuard(RealFiles("/"))


def admitted(one: Listener, *others: int, unknown: bool = False) -> frozenset[int]:
    return GUARD.admitted("127.0.0.1", one.port, [one.pid, *others], unknown=unknown)


def failure(one: Listener, *others: int, unknown: bool = False) -> Reason:
    with pytest.raises(Absent) as raised:
        admitted(one, *others, unknown=unknown)
    assert str(raised.value).isprintable()
    return raised.value.reason


Start = Callable[..., Listener]


@pytest.mark.parametrize(
    ("name", "build", "version"),
    [
        ("libnccl.so.2.30.4", "", (2, 30, 4)),
        ("libnccl.so.2", "2.30.4", (2, 30, 4)),
        ("libnccl.so.2.27.3", "", (2, 27, 3)),
        ("libnccl.so.2", "2.27.3", (2, 27, 3)),
        ("libnccl.so.2", "", None),
        ("libother.so", "2.27.3", None),
    ],
)
def test_the_version_is_read_from_the_name_and_the_build_text(
    start: Start, tmp_path: Path, name: str, build: str, version: Version | None
) -> None:
    path = library(tmp_path, name, build)
    one = start(path)
    assert GUARD.versions(one.pid) == ({version} if version else set())
    path.unlink()  # a deleted library is known by its name
    assert GUARD.versions(one.pid) == ({version} if version and not build else set())


@pytest.mark.parametrize("content", [b"\x7fELF", bytes(range(1, 255)), elf(b"")[:150], b"\n"])
def test_what_is_no_library_has_no_version(start: Start, tmp_path: Path, content: bytes) -> None:
    path = library(tmp_path)
    path.write_bytes(content)
    assert GUARD.versions(start(path).pid) == frozenset()


def test_a_library_is_read_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    monkeypatch.setattr("agent.hardware.nccl_guard.build_version", lambda file: reads.append(file))
    path = library(tmp_path, build="2.30.4")
    guard = RasGuard(RealFiles("/"))
    for one in (start(path), start(path)):
        guard.versions(one.pid)
        guard.versions(one.pid)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("version", "report"),
    [
        ((2, 26, 2), "nccl#1669"),
        ((2, 26, 5), "nccl#1718"),
        ((2, 27, 3), "nccl#1762"),
        ((2, 27, 7), "nccl#1996"),
        ((2, 28, 9), "nccl#2346"),
        ((2, 29, 7), "nccl#2346"),
        ((2, 30, 4), None),
    ],
)
def test_versions_with_a_public_report(version: Version, report: str | None) -> None:
    assert refused_version([version]) == report
    assert refused_version([(2, 99, 0), version]) == report
    assert all(row.first <= row.last and row.report.startswith("nccl#") for row in KNOWN_FAULTS)


@pytest.mark.parametrize("unknown", [False, True], ids=["hang", "always"])
@pytest.mark.parametrize("row", KNOWN_FAULTS, ids=lambda row: row.report)
def test_a_bad_version_is_never_asked(
    start: Start, tmp_path: Path, row: tuple[Version, Version, str], unknown: bool
) -> None:
    one = start(library(tmp_path, build=".".join(map(str, row[1]))))
    reader = RasReader((RasAddress("127.0.0.1", one.port),))
    shown = reader.read(RasRequest({one.pid: 1}, [one.pid], unknown=unknown))
    assert shown.failure is not None
    assert shown.failure.reason is Reason.UNSUPPORTED
    assert row[2] in str(shown.failure)
    assert one.connections() == 0


def test_an_unknown_version_is_asked_only_where_that_is_permitted(start: Start) -> None:
    one = start()
    assert failure(one) is Reason.UNKNOWN
    assert admitted(one, unknown=True) == {one.pid}


def test_the_processes_of_its_owner_are_believed(start: Start, tmp_path: Path) -> None:
    nccl = library(tmp_path, build="2.30.4")
    one = start(nccl)
    other, foreign = start(nccl, port=one.port), start(nccl, uid=65534)
    assert admitted(one, other.pid, foreign.pid) == {one.pid, other.pid}


def test_no_listener(start: Start) -> None:
    one = start()
    one.connections()
    one.process.wait()
    assert failure(one) is Reason.MISSING


def test_a_listener_that_is_no_gpu_process_is_not_asked(start: Start, tmp_path: Path) -> None:
    foreign = start(library(tmp_path, build="2.30.4"))
    reader = RasReader((RasAddress("127.0.0.1", foreign.port),))
    shown = reader.read(RasRequest({os.getpid(): 1}, [os.getpid()], unknown=True))
    assert shown.failure is not None
    assert shown.failure.reason is Reason.DENIED
    assert foreign.connections() == 0


def test_a_service_is_not_asked_about_the_job_of_another_user(start: Start, tmp_path: Path) -> None:
    """Its listener has a GPU process of its own; the job that hangs is somebody else's."""
    nccl = library(tmp_path, build="2.30.4")
    listener, hanging = start(nccl, uid=65534), start(nccl)
    reader = RasReader((RasAddress("127.0.0.1", listener.port),))
    processes = {listener.pid: listener.pid, hanging.pid: hanging.pid}
    found = reader.read(RasRequest(processes, [hanging.pid], unknown=True))
    assert found.failure is not None
    assert found.failure.reason is Reason.DENIED
    assert listener.connections() == 0


def test_one_bad_version_on_a_shared_port_is_enough(start: Start, tmp_path: Path) -> None:
    """The kernel picks which of them answers."""
    good = start(library(tmp_path, build="2.30.4"))
    bad = start(library(tmp_path, "libnccl.so.2.27.3"), port=good.port)
    assert failure(good, bad.pid, unknown=True) is Reason.UNSUPPORTED


def test_a_listener_of_another_user_is_not_believed_on_a_job(start: Start, tmp_path: Path) -> None:
    """A process on a GPU that listens before the job of somebody else does."""
    first = start(library(tmp_path, build="2.30.4"), uid=65534)
    assert admitted(first, os.getpid()) == {first.pid}


def test_a_listener_in_another_pid_namespace_is_not_believed_on_a_job(
    start: Start, tmp_path: Path
) -> None:
    nccl = library(tmp_path, build="2.30.4")
    outside = start(nccl)
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", LISTENS, "0", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*words, str(nccl)], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
        inside = int(children.split()[0])
        found = GUARD.admitted("127.0.0.1", port, [outside.pid, inside], unknown=False)
        parent.kill()
    assert found == {inside}
