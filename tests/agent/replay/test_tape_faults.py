"""Files that are no tapes, spoilt tapes, and tapes made to harm: refused in one sentence, or played
to the end, in no more memory than a real one takes; no half-written file is left."""

import gzip
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import BadInput
from agent.replay import answers
from agent.replay.answers import TapeError, TapeWriter
from agent.replay.player import Tape, TapePlayer
from agent.replay.recorder import TapeRecorder
from tests.support.frozen_clock import FrozenClock
from tests.support.machines import taped
from tests.support.repository import TAPES
from tests.support.taped_machine import MachineQuestions, fake_host, lines_of, machine

ALL_TAPES = sorted(TAPES.rglob("*.tape"))
FRAMES = 6
"""Frames that are played of each: the first holds most questions."""

TEXTS = ("", "x", "\0", "-5", "½", "a\nb", "\ud800", "4: ACTIVE", "1e999", "9" * 400, "9" * 5000)
REFUSALS: tuple[Any, ...] = ({"errno": 2}, {"errno": 13}, {"errno": 2**40})
NVML_REFUSALS: tuple[Any, ...] = (*({"error": n} for n in (1, 3, 15, 999)), {"mismatch": 1})
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63, 2**70, 10**400, -1.5, 1e308, float("nan"), float("inf"), *TEXTS),
    *([], [1], {"tuple": []}, {"tuple": [1, 2]}, {"named": {}}, {"named": {"a": 1}}),
    *({"object": {"pid": "x", "usedGpuMemory": None}}, {"map": {"eth9": None}}),
)
NAMES: tuple[Any, ...] = ([], ["x", "md7", "9" * 30], [1], [None, {"tuple": []}])
COUNTERS: tuple[Any, ...] = (
    None,
    *({"map": {"eth9": v}} for v in VALUES),
    {"named": {"user": "x"}},
)

ODD = {"read": (*TEXTS, *REFUSALS), "link": (*TEXTS, *REFUSALS), "name": (*NAMES, *REFUSALS)}
"""Odd answers to a question, by its prefix: of its type, for the reader refuses other types."""


def odd_answer(key: str, answers: list[Any], random: Random) -> Any:
    if key.startswith("nvml"):
        return random.choice([*VALUES, *NVML_REFUSALS, *random.choices(answers, k=9)])
    return random.choice(ODD.get(key[:4], (*COUNTERS, *REFUSALS)))


def shortened(path: Path) -> list[Any]:
    """The lines of a tape, but for most of its frames."""
    head, *frames, foot = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    frames = frames[:FRAMES]
    return [head, *frames, {**foot, "frames": len(frames)}]


def as_bytes(lines: list[Any]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def written(folder: Path, content: bytes | list[Any]) -> Path:
    path = folder / "x.tape"
    path.write_bytes(gzip.compress(as_bytes(content) if isinstance(content, list) else content, 1))
    return path


def why(path: Path) -> str:
    """The sentence with which a tape is refused."""
    with pytest.raises(TapeError) as refused:
        Tape(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@settings(max_examples=10)
@given(st.sampled_from(ALL_TAPES), st.integers(0, 2**32), st.sampled_from([1, 5, 50, 500]))
def test_a_machine_that_answers_anything_is_watched(
    tmp_path_factory: pytest.TempPathFactory, tape: Path, seed: int, times: int
) -> None:
    """Each odd answer costs at most the reads that asked for it; the agent ticks on."""
    random, lines = Random(seed), shortened(tape)
    frames = [line["calls"] for line in lines[1:-1] if "calls" in line]
    for _ in range(times):
        calls = random.choice(frames)
        key = random.choice(sorted(calls))
        calls[key] = odd_answer(key, list(calls.values()), random)
    watch(written(tmp_path_factory.mktemp("tape"), lines))


def watch(path: Path) -> None:
    """Tick over a tape, if it can be played."""
    try:
        bench = taped(path)
    except TapeError:
        assert why(path)
        return
    bench.run(FRAMES)
    assert bench.latest.tick == FRAMES
    assert bench.scrape()


@pytest.mark.parametrize("key", ["nvmlDeviceGetCount()", "nvmlSystemGetDriverVersion()"])
def test_a_driver_that_answers_anything_about_itself_is_met(key: str, tmp_path: Path) -> None:
    for value in (*VALUES, *NVML_REFUSALS, 10**9):
        lines = shortened(ALL_TAPES[0])
        assert key in lines[1]["calls"]
        lines[1]["calls"][key] = value
        watch(written(tmp_path, lines))


HEAD = as_bytes([{"tape": "dgx-telemetry", "version": 1, "recorded_at": 1, "agent": "x"}])


def frame(calls: str) -> bytes:
    return f'{{"at":0,"calls":{{{calls}}}}}\n'.encode()


BOMBS = {
    "zeros": (b"\0" * 200_000, "holds more than 100000 bytes"),
    "texts": (frame('"read /x":"' + "x" * 9_000 + '"') * 12, "holds more than 100000 bytes"),
    "depth": (frame('"nvmlX()":' + "[" * 4_000 + "]" * 4_000), "line 2"),
    "digits": (b'{"at":' + b"9" * 5_000 + b"}\n", "line 2"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_bursts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, shown = BOMBS[name]
    monkeypatch.setattr(answers, "TAPE_BYTES", 100_000)
    assert shown in why(written(tmp_path, HEAD + content))


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
    with pytest.raises(BadInput, match=r"x\.tape: cannot be written: No such file"):
        recorder.write(tmp_path / "nowhere" / "x.tape")


def test_a_full_reel_takes_no_more_and_stays_playable(tmp_path: Path) -> None:
    clock = FrozenClock()
    writer = TapeWriter(clock, largest=1024 * 1024 + 3000)
    for tick in range(9):
        writer.note("calls", "read /x", str(tick) * 900)
        clock.advance(1)
    assert writer.full
    (tmp_path / "x.tape").write_bytes(writer.content())
    assert len(Tape(tmp_path / "x.tape").series["calls"]["read /x"]) == 3


def test_unreadable_and_foreign_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    assert "No such file" in why(path)
    os.mkfifo(tmp_path / "fifo")
    for other in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        assert why(other) == f"{other} cannot be played as a tape: it is not a regular file"
    for content in (
        b"",
        b"hello",
        gzip.compress(b""),
        gzip.compress(b"hello\n"),
        gzip.compress(b"[1]"),
    ):
        path.write_bytes(content)
        assert "cannot be played as a tape" in why(path)


def test_a_tape_that_is_cut_short(tmp_path: Path, good: Any) -> None:
    path = tmp_path / "x"
    whole, lines = good.read_bytes(), lines_of(good)
    for length in (9, len(whole) // 9):
        path.write_bytes(whole[:length])
        assert "it is cut short before its first frame" in why(path)
    path.write_bytes(whole[: whole.rindex(b"\x1f\x8b") - 99])
    cut = Tape(path)
    assert (cut.seconds, cut.cut) == (lines[-3]["at"], "cut short after 2 s of 4 s")
    power = [f["calls"]["nvmlDeviceGetPowerUsage(0)"] for f in lines[1:-2]]
    assert [one for _, one in cut.series["calls"]["nvmlDeviceGetPowerUsage(0)"]] == power
    del lines[0]["seconds"]
    assert Tape(written(tmp_path, lines[:2])).cut == "cut short after 0 s"
    assert "follows the footer" in why(written(tmp_path, [*lines, lines[1]]))


def test_another_version_and_missing_fields(tmp_path: Path, good: Any) -> None:
    head, *rest = lines_of(good)
    reason = why(written(tmp_path, [{**head, "version": 2}, *rest]))
    assert "version 2, this agent plays 1" in reason
    less = {key: value for key, value in head.items() if key != "version"}
    assert "missing required field `version`" in why(written(tmp_path, [less, *rest]))
    for number, name in ((0, "at"), (-1, "seconds")):
        lines = [dict(line) for line in rest]
        del lines[number][name]
        assert f"missing required field `{name}`" in why(written(tmp_path, [head, *lines]))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
) | st.sampled_from(
    [10**400, -1, 2**70, {"error": 3}, {"errno": 2}, {"tuple": {}}, {"named": {"_": 1}}]
)


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
    play_or_refuse(written(tmp_path, lines))


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
        tape = Tape(path)
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
