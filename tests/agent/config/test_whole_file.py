"""Where a file is to be written."""

from pathlib import Path

import pytest

from agent.config.whole_file import placed
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
