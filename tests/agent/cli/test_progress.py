"""What takes longer is reported while it lasts, and leaves a terminal as it was."""

import io
import sys
from threading import Event

import pytest

from agent.cli import progress as progressing
from agent.cli.progress import WIPE, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is written of a block that lasts until its second figure was asked for."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progressing, "ON_TERMINAL", 0.01)
    monkeypatch.setattr(progressing, "ELSEWHERE", 0.01)
    seen, asked = Event(), [0]

    def how_far() -> str:
        asked[0] += 1
        if asked[0] > 2:
            seen.set()
        return f"{asked[0]} of 9"

    with progress("reading", how_far):
        assert seen.wait(30)
    return stream.getvalue()


def test_a_terminal_shows_one_line_that_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)
    assert text.startswith(f"{WIPE}reading: 1 of 9\r{WIPE}reading: 2 of 9\r")
    assert text.endswith(WIPE)
    assert "\n" not in text


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(io.StringIO(), monkeypatch)
    assert text.startswith("reading: 1 of 9\nreading: 2 of 9\n")
    assert "\033" not in text


def test_what_is_over_soon_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progressing, "ELSEWHERE", 60.0)
    with progress("reading"):
        pass
    assert capsys.readouterr().err == ""
