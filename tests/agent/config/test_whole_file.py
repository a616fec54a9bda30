"""Where a file is to be written."""

import os
from pathlib import Path

import pytest

from agent.config.whole_file import placed, write_whole
from agent.errors import BadInput


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


def test_links_in_a_circle_are_told(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(BadInput, match="its links lead in a circle"):
        placed(tmp_path / "circle")


def test_through_links_to_where_they_lead(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to("one/../one/two")
    (folder / "name").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link" / "name", b"x")
    assert (tmp_path / "target").read_bytes() == b"x"
    assert (folder / "name").is_symlink()
    assert placed(tmp_path / "link" / ".." / "x") == tmp_path / "one" / "x"


@pytest.mark.root
@pytest.mark.parametrize("where", ["name", "folder/name"])
def test_a_link_of_another_user_in_a_sticky_folder_is_refused(tmp_path: Path, where: str) -> None:
    """As /tmp is: it would lead root to any file."""
    shared, precious = tmp_path / "shared", tmp_path / "precious"
    precious.mkdir()
    (precious / "name").write_text("precious")
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / where.partition("/")[0]
    link.symlink_to(precious if "/" in where else precious / "name")
    write_whole(shared / where, b"precious")  # our own link
    os.lchown(link, 4242, 4242)
    with pytest.raises(BadInput, match="is a link of another user"):
        write_whole(shared / where, b"x")
    assert (precious / "name").read_bytes() == b"precious"
    shared.chmod(0o755)
    write_whole(shared / where, b"x")  # only its owner puts links there
