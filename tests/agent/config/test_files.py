"""Places where a file is to be written, and files to read that are none, or do not answer."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.config.atomic_file import atomic_write, check_target
from agent.config.configuration import read_regular
from agent.errors import BadInput
from agent.threads import in_time
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT


def test_a_file_is_written_whole_into_folders_that_are_made(tmp_path: Path) -> None:
    atomic_write(tmp_path / "new" / "er" / "x", b"x", 0o644, make=True)
    written = tmp_path / "new" / "er" / "x"
    assert (written.read_bytes(), stat.S_IMODE(written.stat().st_mode)) == (b"x", 0o644)
    assert check_target(written) == written.lstat()
    assert check_target(tmp_path / "free") is None
    assert not [*tmp_path.rglob(".*")], "nothing is left beside"


@pytest.mark.parametrize("name", ["fifo", "link", "folder"])
def test_a_place_that_is_no_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    """A link would lead root to any file, as /dev/stdout does; what it names stays."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=f"{name}: is not a regular file, expected one or a free"):
        atomic_write(tmp_path / name, b"x")
    assert precious.read_text() == "precious"


def test_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular(tmp_path / "a", 4)


def test_what_is_no_regular_file_is_not_read_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_regular(path, 100)
    with pytest.raises(OSError, match="Is a directory"):
        read_regular(tmp_path, 100)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            read_regular(tmp_path / "socket", 100)


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_an_oserror(name: str) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        read_regular(Path(name), 100)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        for path in (tmp_path, tmp_path / "a"):
            with pytest.raises(OSError, match=r"more than|directory"):
                read_regular(path, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_what_work_returns_or_raises_comes_back() -> None:
    assert in_time(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0)


def test_who_takes_too_long_is_left_behind() -> None:
    released = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        in_time(released.wait, 0.05)
    released.set()


def test_what_hangs_does_not_keep_the_process() -> None:
    code = (
        "import threading\nfrom agent.threads import in_time\n"
        "try:\n    in_time(threading.Event().wait, 0.05)\nexcept TimeoutError:\n    print('late')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "late\n"
