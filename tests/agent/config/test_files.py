"""Places where a file is to be written, and work on files that does not end."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.config.atomic_file import atomic_write, check_target
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
