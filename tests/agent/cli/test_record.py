"""A recording is kept, whatever ends it, and what cannot be kept is refused before it begins."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.cli.assembly import Agent, taped_hardware
from agent.cli.run import TapeEnd
from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.replay.player import Tape
from tests.support.frozen_clock import FrozenClock
from tests.support.patience import PATIENCE
from tests.support.repository import ROOT
from tests.support.taped_machine import record


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A disk on which no file can be longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
    poller.listeners.append(TapeEnd(hardware.ended))
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
