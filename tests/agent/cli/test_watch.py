"""`watch`: what its keys show, and that the terminal is as it was when it ends."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from agent.cli import watch
from agent.cli.once import StatusView
from agent.cli.running_agent import RunningAgent
from agent.cli.watch import KEY, SORTS, Screen, ViewChoice, text
from agent.report.questions import NoAnswer
from agent.status.model import Status
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT
from tests.support.statuses import shown as machine_of

CASES = tomllib.loads(Path(__file__).with_name("watch.toml").read_text("utf-8"))

WIDTH = 80


@pytest.fixture(scope="module")
def look() -> StatusView:
    return machine_of("dgx-station-v100:starved-disk").run(24).look


def shown(look: StatusView, keys: str) -> list[str]:
    choice = ViewChoice()
    for key in keys:
        choice.press(key)
    first, body, *last = text(look, choice, "", WIDTH)
    return [first, *body, *last]


def test_keys_scroll_and_two_digits_are_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    many = machine_of("sixteen:training").run(6).look
    choice, screen = ViewChoice(), Screen(whole=True)
    numbers = range(16)

    def drawn(keys: str) -> list[str]:
        for key in KEY.findall(keys):
            choice.press(key, numbers)
        screen.draw(many, choice, "")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out).splitlines()

    first = drawn("")
    assert len(first) == 24
    assert first[-2].startswith("lines 1 to 21 of ")
    assert drawn("\x1b[B")[1] == first[2]
    assert drawn("\x1bOB\x1b[5~") == first
    assert drawn("\x1b[F")[-3].endswith("all.")
    assert drawn("\x1b[H") == first
    assert [line for line in drawn("12") if line.startswith("   12")]
    assert choice.gpu == 12
    assert [line for line in drawn("3") if line.startswith("    3")]


@pytest.mark.parametrize(("keys", "says"), CASES["keys"])
def test_a_key_shows_what_it_is_for(look: StatusView, keys: str, says: str) -> None:
    lines = shown(look, keys)
    assert any(line.startswith(says) or says in line for line in lines)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  ", lines[0])
    assert "4 GPUs starved by disk" in lines[1]
    assert lines[2].startswith("Do: ")
    assert max(map(len, lines)) <= WIDTH


def test_what_does_not_fit_a_row_is_marked(look: StatusView) -> None:
    status = replace(look.status, machine=replace(look.status.machine, host="h" * 90))
    first, _, source, keys = text(look._replace(status=status), ViewChoice(), "s" * 90, 40)
    assert re.fullmatch(r"[-\d]+ [:\d]+ UTC  h+\.\.\.", first)
    assert (source[-3:], keys[-3:], {*map(len, (first, source, keys))}) == ("...", "...", {40})


def test_gpus_are_sorted_by_what_s_has_chosen(look: StatusView) -> None:
    for presses, name in enumerate(SORTS):
        rows = [line for line in shown(look, "s" * presses) if line[4:5].isdigit()]
        wanted = [str(gpu.gpu) for gpu in sorted(look.status.gpus, key=SORTS[name])]
        assert [row[4] for row in rows] == wanted
        assert f"({name})" in shown(look, "s" * presses)[-1]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 24 lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def read_until(ours: int, wanted: str) -> str:
    seen, deadline = "", time.monotonic() + PATIENCE
    while wanted not in seen:
        assert time.monotonic() < deadline, f"no {wanted!r} in {seen[-500:]!r}"
        if select.select([ours], [], [], 0.5)[0]:
            seen += os.read(ours, 65536).decode(errors="replace")
    return seen


@pytest.mark.parametrize("ending", [None, signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_taken_and_given_back(
    terminal: tuple[int, int], ending: signal.Signals | None
) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "agent", "watch", "--simulate", "k40:training"]
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        first = read_until(ours, "h help")
        assert "\x1b[?1049h" in first
        assert "\x1b[3" not in first, "no colour unless it is asked for"
        assert len(first.rsplit("\x1b[H")[-1].splitlines()) <= 24
        assert "does not answer" not in first, "before it has answered nothing is wrong"
        os.write(ours, b"h")
        read_until(ours, "this help")
        if ending is None:
            os.write(ours, b"q")
        else:
            process.send_signal(ending)
        read_until(ours, "\x1b[?1049l")
        assert process.wait(PATIENCE) == 0
    assert termios.tcgetattr(theirs) == before


def test_an_agent_that_stops_and_comes_back_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    status, put = machine_of("k40:idle").run(9).status, list[Any]()
    answers: list[Status | Exception] = [status, NoAnswer("no one"), TypeError("odd"), status]

    def answer(_: RunningAgent) -> Status:
        if isinstance(one := answers[len(put)], Exception):
            raise one
        return one

    def soon(_: object, *shown: Any) -> None:
        put.append(shown)
        if len(put) == len(answers):
            raise RuntimeError("the loop is closed")

    monkeypatch.setattr(RunningAgent, "status", answer)
    monkeypatch.setattr(watch, "TICK", 0.0)
    loop: Any = SimpleNamespace(call_soon_threadsafe=soon)
    watch._follow(RunningAgent("http://x"), watch.Shown(), loop)
    good = (StatusView(status, "http://x/runbook.html"), "from the agent at http://x")
    assert (put[0], put[1], put[3]) == (good, (None, "no one"), good)
    assert put[2][1].startswith("TypeError: odd")
