"""A file that is no tape is refused in one sentence, and no half-written file is left."""

import gzip
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import BadInput
from agent.replay.answers import TapeError, TapeWriter
from agent.replay.player import TapePlayer
from agent.replay.reading import Tape
from agent.replay.recorder import TapeRecorder
from tests.support.frozen_clock import FrozenClock
from tests.support.tape_lines import lines_of
from tests.support.taped_machine import MachineQuestions, fake_host, machine


def write_lines(path: Any, lines: Any) -> Any:
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def why(path: Any) -> Any:
    with pytest.raises(TapeError) as error:
        Tape.load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tape"
    path.write_bytes(b"before")
    recorder = TapeRecorder(machine(FrozenClock()).nvml, fake_host(FrozenClock()), FrozenClock())
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(BadInput, match="No space left"):
        recorder.write(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(BadInput, match="nowhere: is not a folder"):
        recorder.write(tmp_path / "nowhere" / "x.tape")


def test_a_full_reel_takes_no_more_and_stays_playable(tmp_path: Path) -> None:
    clock = FrozenClock()
    writer = TapeWriter(clock, largest=1024 * 1024 + 3000)
    for tick in range(9):
        writer.note("calls", "read /x", str(tick) * 900)
        clock.advance(1)
    assert writer.full
    (tmp_path / "x.tape").write_bytes(writer.content())
    assert len(Tape.load(tmp_path / "x.tape").series["calls"]["read /x"].answers) == 3


def test_unreadable_and_foreign_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    assert "No such file" in why(path)
    assert "Is a directory" in why(tmp_path)
    for content in (
        b"",
        b"hello",
        gzip.compress(b""),
        gzip.compress(b"hello\n"),
        gzip.compress(b"[1]"),
    ):
        path.write_bytes(content)
        assert "is not a tape" in why(path)


def test_a_tape_that_is_cut_short(tmp_path: Path, good: Any) -> None:
    path = tmp_path / "x"
    whole = good.read_bytes()
    for length in (len(whole) - 1, len(whole) - 40, len(whole) // 2):
        path.write_bytes(whole[:length])
        assert "cut short" in why(path)
    assert "footer is missing" in why(write_lines(path, lines_of(good)[:-1]))
    head, first, *rest = lines_of(good)
    assert "counts 4 frames, and 3 are there" in why(write_lines(path, [head, *rest]))
    assert "follows the footer" in why(write_lines(path, [head, first, *rest, first]))


def test_another_version_and_missing_fields(tmp_path: Path, good: Any) -> None:
    path = tmp_path / "x"
    head, *rest = lines_of(good)
    reason = why(write_lines(path, [{**head, "version": 2}, *rest]))
    assert "version 2" in reason
    assert "version 1" in reason
    for name in ("version", "recorded_at", "agent"):
        less = {key: value for key, value in head.items() if key != name}
        assert f"missing required field `{name}`" in why(write_lines(path, [less, *rest]))
    for number, name in ((0, "at"), (-1, "seconds")):
        lines = [dict(line) for line in rest]
        del lines[number][name]
        assert f"missing required field `{name}`" in why(write_lines(path, [head, *lines]))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
) | st.sampled_from(
    [10**400, -1, 2**70, {"error": 3}, {"errno": 2}, {"tuple": {}}, {"named": {"_": 1}}]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_lines_are_refused_or_played(tmp_path: Path, good: Any, data: Any) -> None:
    lines = lines_of(good)
    spot: Any = lines
    parent: Any = None
    key: Any = None
    while isinstance(spot, dict | list) and spot and (parent is None or data.draw(st.booleans())):
        parent = spot
        key = data.draw(st.sampled_from(list(spot) if isinstance(spot, dict) else range(len(spot))))
        spot = parent[key]
    if data.draw(st.booleans()):
        parent[key] = data.draw(JUNK)
    else:
        del parent[key]
    play_or_refuse(write_lines(tmp_path / "x", lines))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 10**6), byte=st.integers(0, 255), inside=st.booleans())
def test_mutated_bytes_are_refused_or_played(
    tmp_path: Path, good: Any, place: Any, byte: Any, inside: Any
) -> None:
    whole = bytearray(gzip.decompress(good.read_bytes()) if inside else good.read_bytes())
    whole[place % len(whole)] = byte
    (tmp_path / "x").write_bytes(gzip.compress(bytes(whole)) if inside else bytes(whole))
    play_or_refuse(tmp_path / "x")


def play_or_refuse(path: Any) -> Any:
    try:
        tape = Tape.load(path)
    except TapeError:
        return
    clock = FrozenClock()
    player = TapePlayer(tape, clock)
    try:
        questions = MachineQuestions(player.nvml, player.host)
    except pynvml.NVMLError:
        return
    for _ in range(4):
        try:
            questions.all()
        except pynvml.NVMLError:
            return
        clock.advance(1)
