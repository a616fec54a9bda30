"""The table against other agents: each row has defined words, and a command that exists."""

import re
import shlex

import pytest

from agent.catalogue import METRICS
from agent.cli.parser import parser
from tests.support.repository import ROOT

TABLE = (ROOT / "deploy/PEERS.md").read_text(encoding="utf-8")
ROWS = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TABLE.splitlines() if line[:2] == "| "]
WORDS = re.compile(r"(have|half|miss|\?)(: .+| \(.+\)|, .+)?|(below )?\d.*")


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[0].strip())
def test_each_row_is_judged_and_shown(row: list[str]) -> None:
    title, *judged, command = (cell.strip() for cell in row)
    assert len(judged) == 5, title
    assert [cell for cell in judged if not WORDS.fullmatch(cell)] == []
    assert "half" not in judged, "a half has its limit"
    assert bool(command) != judged[0].startswith("miss"), "what is there is shown"
    for name in re.findall(r"dgx_\w+", command):
        assert name in METRICS
    for path in re.findall(r"deploy/[\w./-]+", command):
        assert (ROOT / path).exists()
    shown = re.match("`(dgx-telemetry .*?)`", command)
    if shown:
        parser().parse_args(shlex.split(shown[1])[1:])
