"""Failures of this program are shown as such: they are no fault of the machine or of the output."""

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.cli.assembly import Agent, taped_hardware
from agent.cli.check import without_answer
from agent.cli.doctor import BROKEN, in_child
from agent.cli.table import LEAST, WIDEST_COLUMNS, terminal_width
from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.faults.findings import USUAL, by_kind
from agent.replay.player import Tape
from tests.stack.running import Running, alive, eventually, run_to_end
from tests.support.frozen_clock import FrozenClock
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT
from tests.support.taped_machine import record


def with_files(number: int, line: str) -> subprocess.CompletedProcess[str]:
    """Run `dgx-telemetry LINE` where a process may have so many files open."""
    python = shlex.quote(sys.executable)
    return run_to_end(["bash", "-c", f"ulimit -n {number}; exec {python} -m agent {line}"])


def test_a_look_that_broke_is_a_warning_that_drains_no_node() -> None:
    ended = with_files(6, "check --json --timeout 60 --simulate k40")
    document = json.loads(ended.stdout)
    (finding,) = document["findings"]
    assert (ended.returncode, document["status"]) == (1, 1)
    assert finding.pop("sentence").startswith("this check failed: OSError: [Errno 24] Too many")
    assert finding == {
        "severity": "warning",
        "kind": "look_failed",
        "alert": "",
        "action": "Report this with the sentence above; the node itself may be well.",
    }


def test_a_look_that_cannot_begin_is_one_that_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    answer = in_child(dict, timeout=1e6)
    assert answer is not None
    assert "Resource temporarily unavailable" in answer[BROKEN]


def test_only_a_look_without_an_end_is_critical() -> None:
    """Its advice is that of the agent, which has seen that the driver hangs."""
    late, broken = without_answer("", 8.5), without_answer("OSError: {} \x1b[2J", 8.5)
    assert late["text"] == (
        "critical: this machine did not respond within 8.5 s: its driver or its kernel hangs\n"
        f"  {by_kind(USUAL)['driver_hangs'].do} (DgxAgentBlind)"
    )
    assert broken["text"] == (
        "warning: this check failed: OSError: {} \\x1b[2J\n"
        "  Report this with the sentence above; the node itself may be well."
    )
    assert [answer["document"]["status"] for answer in (late, broken)] == [3, 1]


def test_too_few_files_are_no_fault_of_the_output() -> None:
    ended = with_files(5, "once --simulate k40")
    said = "dgx-telemetry: cannot run: Too many open files\n"
    assert (ended.returncode, ended.stderr, ended.stdout) == (2, said, "")


def test_a_program_that_was_taken_away_does_not_begin_again() -> None:
    """By an upgrade of the package while it gave the driver back."""
    code = (
        "import sys, agent.cli.parser as parser, agent.__main__ as own;"
        "from agent.cli.driver_release import execute_again;"
        "sys.executable = '/nowhere/python'; parser.run_command = lambda _: execute_again();"
        "own.main()"
    )
    ended = run_to_end([sys.executable, "-c", code])
    said = "dgx-telemetry: cannot run /nowhere/python: No such file or directory\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize("cause", ["KeyboardInterrupt", "ValueError"])
def test_ctrl_c_while_a_class_is_defined_is_no_failure(cause: str) -> None:
    """Python 3.11 wraps an exception of __set_name__, as of a field, in a RuntimeError."""
    code = (
        "import agent.__main__ as own, agent.cli.parser as parser\n"
        "class Field:\n"
        f"    def __set_name__(self, *_): raise {cause}\n"
        "parser.run_command = lambda _: type('Owner', (), {'field': Field()})\n"
        "own.main()"
    )
    ended = run_to_end([sys.executable, "-c", code])
    assert (ended.returncode, bool(ended.stderr)) == ((130, False) if "K" in cause else (1, True))


@pytest.mark.parametrize(("columns", "width"), [("1", LEAST), ("90", 90), ("999", WIDEST_COLUMNS)])
def test_the_width_of_the_terminal_has_bounds(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A disk on which no file can be longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_check_that_is_ended_leaves_no_process(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    """The child waited forever to write its answer into a pipe that it held open itself. Here it
    reads a configuration that comes late."""
    os.mkfifo(late := tmp_path / "late.toml")
    writing = os.open(late, os.O_RDWR)
    with Running("agent", "check", "--simulate", "dgx-h100", "--config", str(late)) as check:
        eventually(check.children, "the child that looks")
        (child,) = check.children().values()
        assert check.end(number) == status
        os.close(writing)
        eventually(lambda: not alive(child), "the end of the child")


def test_an_interrupt_while_the_child_is_forked_is_not_lost() -> None:
    """Python ignores exceptions in functions that run at a fork, as those of `logging` do."""
    code = """
import os, signal
from agent.cli.doctor import in_child
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
in_child(dict, 60.0)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_a_recording_keeps_it(number: int, tmp_path: Path) -> None:
    line = f"record {tmp_path}/x.tape --seconds 6000 --simulate k40:idle"
    plain = ("env", "--default-signal")  # under nohup it would ignore SIGHUP, as it should
    recording = subprocess.Popen(
        [*plain, sys.executable, "-W", "error", "-m", "agent", *line.split()],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    assert recording.stderr is not None
    assert recording.stderr.readline().startswith(b"recording to ")
    recording.send_signal(number)
    if number != signal.SIGINT:  # a shell and its terminal each send one
        recording.send_signal(number)
    _, errors = recording.communicate(timeout=PATIENCE)
    assert b"stopped early, the recording so far is kept" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["x.tape"]
    Tape(tmp_path / "x.tape")


def test_the_end_of_a_tape_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "x.tape", ticks=2)
    clock = FrozenClock()
    hardware = taped_hardware(tmp_path / "x.tape", clock)
    poller = Agent(Settings(), hardware, clock, inline=True).poller
    shown = []
    for _ in range(5):
        asyncio.run(poller.tick())
        shown.append(sum("tape_ended" in one.getMessage() for one in caplog.records))
        clock.advance(1.0)
    assert (shown[0], shown[-1]) == (0, 1)


def test_a_disk_without_room_leaves_the_older_tape(tmp_path: Path) -> None:
    path = tmp_path / "x.tape"
    record(path, ticks=2)
    older = path.read_bytes()
    with room_for(1000), pytest.raises(BadInput, match="cannot be written: File too large"):
        atomic_write(path, b"x" * 65536)
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]
