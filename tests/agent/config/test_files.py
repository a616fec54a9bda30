"""Places where a file is to be written, and work on files that does not end."""

import os
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from agent.config.atomic_file import atomic_write, check_target
from agent.errors import BadInput
from agent.threads import in_time
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

CASES = tomllib.loads(Path(__file__).with_name("files.toml").read_text("utf-8"))


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


def test_a_dash_is_no_name_of_a_file() -> None:
    """`check --bundle -` left a file called "-"."""
    with pytest.raises(BadInput, match="- stands for no file here"):
        atomic_write(Path("-"), b"x")
    assert not Path("-").exists()


@pytest.mark.parametrize(("text", "without"), CASES["loaded"])
def test_openssl_is_loaded_where_a_file_asks_for_it(
    tmp_path: Path, text: str, without: bool
) -> None:
    (tmp_path / "c.toml").write_text(text)
    code = "import sys, pathlib; from agent.cli.small_process import leave_tls_out; "
    code += f"leave_tls_out(None, pathlib.Path({str(tmp_path / 'c.toml')!r})); "
    code += "print('ssl' in sys.modules and sys.modules['ssl'] is None)"
    assert (
        subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == f"{without}\n"
    )


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
