"""Tapes of real machines, spoilt: refused in one sentence, or played to the end; and tapes made to
harm, which take no more memory than a real one of the largest size."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.replay import answers, reading
from agent.replay.answers import TapeError
from agent.replay.reading import Tape
from tests.support.machines import taped
from tests.support.repository import TAPES

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


def written(folder: Path, content: bytes) -> Path:
    path = folder / "x.tape"
    path.write_bytes(gzip.compress(content, 1))
    return path


def as_bytes(lines: list[Any]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def why(path: Path) -> str:
    """The sentence with which a tape is refused."""
    with pytest.raises(TapeError) as refused:
        Tape.load(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@settings(max_examples=30)
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
    watch(written(tmp_path_factory.mktemp("tape"), as_bytes(lines)))


def watch(path: Path) -> None:
    """Tick over a tape, if it can be played."""
    try:
        bench = taped(path)
    except TapeError:
        assert why(path)
        return
    bench.run(FRAMES)
    assert bench.agent.poller.latest.tick == FRAMES
    assert bench.scrape()


@pytest.mark.parametrize("key", ["nvmlDeviceGetCount()", "nvmlSystemGetDriverVersion()"])
def test_a_driver_that_answers_anything_about_itself_is_met(key: str, tmp_path: Path) -> None:
    for value in (*VALUES, *NVML_REFUSALS, 10**9):
        lines = shortened(ALL_TAPES[0])
        assert key in lines[1]["calls"]
        lines[1]["calls"][key] = value
        watch(written(tmp_path, as_bytes(lines)))


HEAD = as_bytes([{"tape": "dgx-telemetry", "version": 1, "recorded_at": 1, "agent": "x"}])
SMALL = {"LARGEST": 100_000, "LONGEST_LINE": 20_000, "MOST_VALUES": 9_000, "MOST_QUESTIONS": 300}
"""Bounds of the size of a test; those in use are a thousand times as large."""


def frame(calls: str) -> bytes:
    return f'{{"at":0,"calls":{{{calls}}}}}\n'.encode()


def questions(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield frame(f'"{number}":null')


BOMBS = {
    "zeros": (b"\0" * 200_000, "has a line of more than 20000 bytes"),
    "a long line": (frame('"read /x":"' + "x" * 20_000 + '"'), "a line of more than 20000 bytes"),
    "lists in a list": (frame('"nvmlX()":[' + "[]," * 6_000 + "[]]"), "more than 9000 values"),
    "numbers": (frame('"nvmlX()":[' + "1," * 4_000 + "1]") * 3, "more than 9000 values"),
    "texts": (frame('"read /x":"' + "x" * 9_000 + '"') * 12, "unpacks to more than 100000 bytes"),
    "questions": (b"".join(questions(301)), "answers to more than 300 questions"),
    "depth": (frame('"nvmlX()":' + "[" * 4_000 + "]" * 4_000), "is damaged"),
    "digits": (b'{"at":' + b"9" * 5_000 + b"}\n", "is damaged"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_bursts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, shown = BOMBS[name]
    for bound, value in SMALL.items():
        monkeypatch.setattr(reading, bound, value)
    assert shown in why(written(tmp_path, HEAD + content))


def test_real_tapes_lie_far_within_the_bounds() -> None:
    for path in ALL_TAPES:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        size = sum(map(len, lines))
        values = sum(line.count(mark) for line in lines for mark in (b",", b"[", b"{"))
        assert max(map(len, lines)) < answers.LONGEST_LINE / 100
        assert values / answers.MOST_VALUES <= size / answers.LARGEST, "the size is met first"
