"""Places where a file is to be written, and files to read that are none, or do not answer."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.config.atomic_file import atomic_write, check_target, following
from agent.config.configuration import read_regular
from agent.errors import BadInput
from agent.stack.files import data_folder
from agent.threads import in_time
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

EVE = 4242


def placed(path: Path) -> Path:
    with following(path) as place:
        return place.path


def test_a_current_folder_that_is_gone_is_no_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadInput) as caught:
        placed(Path("x.tape"))
    assert str(caught.value) == "x.tape: the current folder is gone, expected a path from /"
    assert placed(tmp_path / "x.tape") == tmp_path / "x.tape"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(BadInput, match="its links lead in a circle"):
        placed(tmp_path / "circle")


def test_through_links_to_where_they_lead(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to("one/../one/two")
    (folder / "name").symlink_to(tmp_path / "target")
    atomic_write(tmp_path / "link" / "name", b"x")
    assert (tmp_path / "target").read_bytes() == b"x"
    assert (folder / "name").is_symlink()
    assert placed(tmp_path / "link" / ".." / "x") == tmp_path / "one" / "x"
    atomic_write(tmp_path / "link" / "new" / "er" / "x", b"x", make=True)
    assert (folder / "new" / "er" / "x").read_bytes() == b"x"
    assert not [*tmp_path.rglob(".*")], "nothing is left beside"


SHARED = {"sticky": (0, 0o1777), "of eve": (EVE, 0o755), "of a group": (0, 0o775)}


@pytest.mark.root
@pytest.mark.parametrize("shared", [*SHARED, "all may write", "root's alone"])
@pytest.mark.parametrize("where", ["name", "folder/name", "folder/new/name"])
@pytest.mark.parametrize("linked_by", [0, EVE])
def test_a_link_that_another_user_may_have_made_is_refused(
    tmp_path: Path, shared: str, where: str, linked_by: int
) -> None:
    """It would lead root to any file. In a sticky folder, as /tmp is, root's links are root's."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "name").write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    link = folder / where.partition("/")[0]
    link.symlink_to(precious if "/" in where else precious / "name")
    os.lchown(link, linked_by, linked_by)
    owner, mode = SHARED.get(shared, (0, 0o777 if "all" in shared else 0o755))
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    if linked_by != EVE and shared in ("sticky", "root's alone"):
        atomic_write(folder / where, b"x", make=True)
        return
    refused = "is a link that another user may have made, expected none"
    with pytest.raises(BadInput, match=refused):
        atomic_write(folder / where, b"x", make=True)
    with pytest.raises(BadInput, match=refused), data_folder(folder / where):
        pass
    assert [*precious.iterdir()] == [precious / "name"]
    assert (precious / "name").read_bytes() == b"precious"


@pytest.mark.root
def test_a_link_that_comes_while_the_way_is_walked_leads_nowhere(tmp_path: Path) -> None:
    """The owner of a folder on the way swaps another for a link, again and again."""
    hers, precious = tmp_path / "hers", tmp_path / "precious"
    precious.mkdir()
    (hers / "folder").mkdir(parents=True)
    (hers / "link").symlink_to(precious)
    for path in (hers, hers / "folder", hers / "link"):
        os.lchown(path, EVE, EVE)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (hers / "folder").rename(hers / "other")
            (hers / "link").rename(hers / "folder")
            (hers / "folder").rename(hers / "link")
            (hers / "other").rename(hers / "folder")

    thread = threading.Thread(target=swap)
    thread.start()
    written = 0
    try:
        for _ in range(2000):
            try:
                atomic_write(hers / "folder" / "name", b"x")
                written += 1
            except BadInput:
                continue
    finally:
        over.set()
        thread.join()
    assert written
    assert not [*precious.iterdir()]


@pytest.mark.root
def test_what_another_user_has_put_in_the_place_is_replaced_not_written_to(tmp_path: Path) -> None:
    hers, precious = tmp_path / "hers", tmp_path / "precious"
    hers.mkdir()
    precious.write_text("precious")
    (hers / "hard").hardlink_to(precious)
    os.mkfifo(hers / "fifo")
    os.chown(hers, EVE, EVE)
    atomic_write(hers / "hard", b"x")
    assert precious.read_text() == "precious"
    assert stat.S_IMODE((hers / "hard").stat().st_mode) == 0o600
    with pytest.raises(BadInput, match="fifo: is not a regular file, expected one or a free name"):
        atomic_write(hers / "fifo", b"x")
    with (
        pytest.raises(BadInput, match=r"^--data .*hers: another user can write to it, expected"),
        data_folder(hers),
    ):
        pass


@pytest.mark.parametrize(
    "path", ["/dev/stdout", "/dev/fd/1", "/proc/self/root/x", "/proc/self/cwd"]
)
def test_what_a_process_has_open_is_no_name_of_a_file(path: str) -> None:
    """The kernel goes there without a path; the text of such a link may be none."""
    expected = f"^{path}: is an open file of a process, expected the name of a file$"
    with pytest.raises(BadInput, match=expected):
        check_target(Path(path))


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
