"""The command line as users type it: help with examples, and errors in one sentence."""

import gzip
import json
import logging
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest

from agent.cli import small_process
from agent.cli.install import carry_out
from agent.cli.parser import COMMANDS, run_command
from agent.simulator import SCENARIOS, SYSTEMS
from tests.stack.running import clean_environment, run_to_end
from tests.support.nightly import NIGHTLY
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT

Ended = subprocess.CompletedProcess[str]


def command(line: str) -> Ended:
    """Run `dgx-telemetry LINE` to its end, without this environment's settings."""
    words = shlex.split(line)
    if words[:1] == ["check"] and "--help" not in words:
        words[1:1] = ["--timeout", "60"]  # two start at once, on two busy cores
    return run_to_end([sys.executable, "-W", "error", "-m", "agent", *words])


def in_this_process(line: str) -> Ended:
    """The same without a process of its own, which costs a second of CPU."""
    handlers, out, errors = list(logging.root.handlers), StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        for name in os.environ.keys() - clean_environment().keys():
            patch.delenv(name)
        patch.setattr(small_process, "leave_tls_out", lambda *_: None)  # others need it here
        try:
            status = run_command(shlex.split(line))
        except SystemExit as end:  # as argparse leaves after --help
            status = int(end.code or 0)
    logging.root.handlers[:] = handlers
    return Ended(line, status, out.getvalue(), errors.getvalue())


def needs_a_process(line: str) -> bool:
    """Return whether it forks, listens or handles signals."""
    if line.endswith("--help"):
        return False
    return line.startswith(("check", "record /proc")) or "--listen" in line


BAD_FILES = {
    "unknown.toml": b"lisen = 1",
    "latin.toml": b"\xe4",
    "broken.toml": b"listen =",
    "system.toml": b'system = "dgx-9"',
    "junk.tape": b"no tape",
}

ERRORS = tomllib.loads(Path(__file__).with_name("refused.toml").read_text(encoding="utf-8"))
"""Command lines that are refused, and the words that the one sentence must contain."""


@pytest.fixture(scope="module")
def fills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder with what is wrong, and an address that is in use."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, content in BAD_FILES.items():
        (folder / name).write_bytes(content)
    made = in_this_process(f"record {folder}/whole.tape --seconds 0.2 --simulate k40:idle")
    assert made.returncode == 0
    whole = (folder / "whole.tape").read_bytes()
    (folder / "cut.tape").write_bytes(whole[:99])
    content = gzip.decompress(whole)
    for reported in (b"Tesla K40m", b"System Product Name"):
        assert reported in content
        content = content.replace(reported, rb"K \u001b[2J\u0007\udc80")
    (folder / "escape.tape").write_bytes(gzip.compress(content))
    (folder / "circle").symlink_to("circle")
    os.mkfifo(folder / "fifo")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"dir": str(folder), "taken": f"127.0.0.1:{server.getsockname()[1]}"}


@pytest.fixture(scope="module")
def ended(fills: dict[str, str]) -> Iterator[dict[str, Future[Ended]]]:
    """Every command that is tried; what needs a process runs a few at a time."""
    lines = [
        *ERRORS,
        *(f"{name} --help" for name in COMMANDS),
        "--help",
        "--version",
        *PRINTING_COMMANDS,
    ]
    with ThreadPoolExecutor(2) as pool:
        ends: Ends = {}
        for line in lines:
            if needs_a_process(line):
                ends[line] = pool.submit(command, line.format(**fills))
            else:
                ends[line] = Future()
                ends[line].set_result(in_this_process(line.format(**fills)))
        yield ends


Ends = dict[str, Future[Ended]]


@pytest.mark.parametrize("line", ERRORS)
def test_an_error_is_one_sentence_and_status_2(
    line: str, ended: Ends, fills: dict[str, str]
) -> None:
    end = ended[line].result()
    assert end.returncode == 2, end.stderr
    assert end.stderr.count("\n") == 1
    assert end.stderr.startswith("dgx-telemetry: ")
    assert ERRORS[line].format(**fills) in end.stderr
    assert "Traceback" not in end.stderr
    assert end.stdout == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_name_the_command(name: str, ended: Ends) -> None:
    end = ended[f"{name} --help"].result()
    assert end.returncode == 0
    assert end.stderr == ""
    examples = end.stdout.partition("examples:\n")[2].split("\n\n")[0].splitlines()
    assert examples
    assert all(line.startswith(f"  dgx-telemetry {name}") for line in examples)


def test_the_help_of_all_lists_every_command(ended: Ends) -> None:
    text = ended["--help"].result().stdout
    assert all(re.search(rf"^    {name} ", text, re.MULTILINE) for name in COMMANDS)
    assert re.fullmatch(r"dgx-telemetry \d+\.\d+\.\d+\n", ended["--version"].result().stdout)


def test_help_says_what_can_be_simulated(ended: Ends) -> None:
    text = "".join(ended["run --help"].result().stdout.split())
    assert all(name in text for name in (*SYSTEMS, *SCENARIOS))


PRINTING_COMMANDS = {
    "once --simulate dgx-1-v100:training": r"[-\d]+ [:\d]+ .*, driver\s+460\.106\.00,\s+8"
    r"\s+of\s+8\s+GPUs\n\n.*(\n    \d [^\n]*){8}\n",
    "once --json --simulate k40:training": r"\{",
    "check --simulate l40s:training": r".*All expected hardware is present, and no link .*\n",
    "once --replay {dir}/whole.tape": r".*Recording whole\.tape( \(ended\))?, not\s+this.*K40",
}


@pytest.mark.parametrize("line", PRINTING_COMMANDS)
def test_a_command_prints_what_it_is_for(line: str, ended: Ends) -> None:
    end = ended[line].result()
    assert (end.returncode, end.stderr) == (0, "")
    assert re.match(PRINTING_COMMANDS[line], end.stdout, re.DOTALL)
    if "--json" in line:
        assert isinstance(json.loads(end.stdout), dict)
    elif line.startswith("once"):
        assert max(map(len, end.stdout.splitlines())) <= 80


WITHOUT_A_READER = {
    "once --json --simulate k40:idle": 0,
    "inventory a": 0,
    "--help": 0,
    "build {folder}/built": 0,
    "record {folder}/x.tape --seconds 0.1 --simulate k40:idle": 0,
    "check --json --timeout 60 --bundle {folder}/x --simulate dgx-station-v100:xid-62": 3,
    "once --agent x": 2,
}


@pytest.mark.parametrize("line", WITHOUT_A_READER)
def test_a_reader_that_goes_away_is_no_error(line: str, tmp_path: Path) -> None:
    """`build` had written one file, and `check` hid a critical fault."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "agent", *line.format(folder=tmp_path).split()]
    status = WITHOUT_A_READER[line]
    errors = subprocess.PIPE if status == 3 else writing
    ended = subprocess.run(
        words, cwd=ROOT, env=clean_environment(), stdout=writing, stderr=errors, check=False
    )
    os.close(writing)
    assert (ended.returncode, (ended.stderr or b"").count(b"\n")) == (status, status == 3)
    assert "build" not in line or (tmp_path / "built/status.schema.json").exists()
    assert ("{folder}" in line) == any(tmp_path.iterdir())


def test_an_installation_goes_on_without_a_reader(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", 1) as out, redirect_stdout(out), suppress(BrokenPipeError):
        assert carry_out([("touch", tmp_path / name) for name in ("a", "b")])
        out.close()
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("name", ["once", "check"])
def test_what_a_device_is_called_does_not_command_the_terminal(
    name: str, fills: dict[str, str]
) -> None:
    run = command if name == "check" else in_this_process
    shown = run(f"{name} --replay {fills['dir']}/escape.tape").stdout
    assert "[2J" in shown
    assert all(mark.isprintable() or mark == "\n" for mark in shown)


UNWRITTEN = 2, "dgx-telemetry: cannot write its output: No space left on device\n"
NOT_OPEN = 2, "dgx-telemetry: cannot write its output: Bad file descriptor\n"
IN_SHELL = {
    "check --timeout 60 --simulate k40:idle >&-": (0, ""),
    "check --timeout 60 --simulate k40:idle <&- >&- 2>&-": (0, ""),
    "once --simulate k40:idle >&-": NOT_OPEN,
    "--version <&- >&-": NOT_OPEN,
    "once --simulate k40:idle >&- 2>&-": (2, ""),
    "--help >/dev/full": UNWRITTEN,
    "--version >/dev/full": UNWRITTEN,
    "once --simulate k40:idle >/dev/full": UNWRITTEN,
}


@pytest.mark.parametrize("words", IN_SHELL)
def test_an_output_that_cannot_be_written_is_an_error_but_of_check(words: str) -> None:
    ended = run_to_end(["sh", "-c", f"{shlex.quote(sys.executable)} -m agent {words}"])
    assert (ended.returncode, ended.stderr) == IN_SHELL[words]


def test_a_configuration_may_come_from_a_pipe() -> None:
    """It was read twice, and then empty."""
    words = [sys.executable, "-m", "agent", "run", "--simulate", "k40", "--config", "/dev/stdin"]
    ended = subprocess.run(
        words, cwd=ROOT, input=b"listen = 'x'", capture_output=True, check=False, timeout=PATIENCE
    )
    assert (ended.returncode, b"listen: 'x' is not HOST:PORT" in ended.stderr) == (2, True)


@pytest.mark.parametrize("empty", [False, True])
def test_only_an_empty_file_may_be_recorded_over(empty: bool, tmp_path: Path) -> None:
    """The errors above show what happens to other files."""
    if empty:
        (tmp_path / "x.tape").touch()
    line = f"record {tmp_path}/x.tape --seconds 0.1 --simulate k40:idle"
    assert in_this_process(line).returncode == 0


@pytest.mark.parametrize(
    ("scenario", "verdict"),
    [
        ("starved-cpu", "starved by the CPU"),
        pytest.param("starved-host-thread", "starved by its launching", marks=NIGHTLY),
    ],
)
def test_one_look_lasts_as_long_as_the_cause_takes_to_be_seen(scenario: str, verdict: str) -> None:
    ended = in_this_process(f"once --simulate dgx-station-v100:{scenario}")
    rows = [line for line in ended.stdout.splitlines() if re.match(r"    [0-3] ", line)]
    assert [verdict in row for row in rows] == [True] * 4
    assert max(map(len, ended.stdout.splitlines())) <= 80
