"""Failures of this program are shown as such: they are no fault of the machine or of the output."""

import json
import os
import subprocess
import sys

import pytest

from agent.cli.check import without_answer
from agent.cli.doctor import BROKEN, in_child
from agent.cli.table import LEAST, WIDEST_COLUMNS, terminal_width
from tests.stack.running import run_to_end


def with_files(number: int, line: str) -> subprocess.CompletedProcess[str]:
    """Run `dgx-telemetry LINE` where a process may have so many files open."""
    return run_to_end(["bash", "-c", f"ulimit -n {number}; exec {sys.executable} -m agent {line}"])


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
    late, broken = without_answer("", 8.5), without_answer("OSError: {} \x1b[2J", 8.5)
    assert late["text"] == (
        "critical: this machine did not respond within 8.5 s: its driver or its kernel hangs\n"
        "  Drain the node, see `dmesg`, and reboot it. (DgxAgentBlind)"
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
    command = [sys.executable, "-c", code]
    ended = run_to_end(command)
    said = "dgx-telemetry: cannot run /nowhere/python: No such file or directory\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.parametrize(("columns", "width"), [("1", LEAST), ("90", 90), ("999", WIDEST_COLUMNS)])
def test_the_width_of_the_terminal_has_bounds(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width() == width
