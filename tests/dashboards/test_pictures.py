"""The pictures of boards, and whether the tool that draws them still reads all that boards say."""

import json
import re
import struct
from typing import Any

import pytest

from tests.pictures.draw import HERE
from tests.support.boards import boards, everything, panels
from tests.support.repository import ROOT

MOST_BYTES = 250_000


@pytest.fixture
def reads() -> Any:
    return json.loads((HERE / "reads.json").read_text())


def test_the_pictures_are_there_and_small() -> None:
    found = sorted((ROOT / "dashboards" / "pictures").glob("*"))
    assert found
    for path in found:
        content = path.read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert content.endswith(b"IEND\xaeB`\x82"), "cut off"
        assert width >= 1000
        assert height >= 500
        assert len(content) <= MOST_BYTES


def test_every_kind_of_panel_is_drawn(reads: Any) -> None:
    kinds = {panel["type"] for board in boards().values() for panel in everything(board)}
    assert kinds == {"row", *reads["components"]}
    script = (HERE / "page/kinds.jsx").read_text()
    table = re.search(r"const DRAWINGS = \{(.*?)\};", script, re.DOTALL)
    assert table
    assert set(re.findall(r"(\w+):", table[1])) == set(reads["components"].values())


def test_what_panels_say_is_read(reads: Any) -> None:
    """The page refuses what it does not know: a board that says something new fails here first."""
    for panel in (panel for board in boards().values() for panel in panels(board)):
        fields = panel["fieldConfig"]
        named = [name for o in fields["overrides"] for name in (p["id"] for p in o["properties"])]
        properties = {n for n in [*fields["defaults"], *named] if n.split(".")[0] != "custom"}
        assert set(panel) <= set(reads["panels"])
        assert {name for target in panel["targets"] for name in target} <= set(reads["targets"])
        assert properties <= set(reads["properties"])
        assert {o["matcher"]["id"] for o in fields["overrides"]} <= set(reads["matchers"])
        assert {t["id"] for t in panel["transformations"]} <= set(reads["transformations"])
        assert set(panel["options"]) <= set(reads["options"][panel["type"]])
