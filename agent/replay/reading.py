"""Reading a tape: bounded, and checked whole before anything is played."""

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import sub
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeGuard

import pynvml
from msgspec import Meta, Struct, convert

from agent.replay.answers import (
    CALLS,
    FABRIC,
    FIELDS,
    GPM,
    LARGEST,
    LONGEST_LINE,
    MAGIC,
    MOST_QUESTIONS,
    MOST_VALUES,
    VERSION,
    WIDEST,
    Json,
    TapeError,
    decode,
    is_refusal,
)

LONGEST = 10 * 366 * 86400  # Seconds: ten years


@dataclass(slots=True)
class AnswerSeries:
    """Every answer to one question, with the time (ms) from which it holds."""

    times: list[int] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)

    def at(self, now: int) -> Json:
        return self.answers[max(0, bisect_right(self.times, now) - 1)]


@dataclass(slots=True)
class TapedBuffer:
    """One sample buffer: when each sample was taped (ms), its timestamp (us) and value."""

    kind: int = 0
    taped: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[int | float] = field(default_factory=list)
    _delay: int | None = None  # us from a sample's timestamp to when the driver had it, on the tape

    def extend(self, at: int, kind: int, stamps: list[int], values: list[int | float]) -> None:
        """One batch, taped at `at`; raises ValueError where it is older than what is there."""
        if any(later < earlier for earlier, later in pairwise([*self.stamps[-1:], *stamps])):
            raise ValueError("samples are not in the order of time")
        self.kind, self._delay = kind, None
        self.taped += [at] * len(stamps)
        self.stamps += stamps
        self.values += values

    def newer(self, last_seen: int, now: int) -> list[tuple[int, int | float]]:
        """Samples after `last_seen` that the driver had by `now`, also where no one asked for them
        until later: how often a reading comes is not the tape's to say."""
        if self._delay is None:
            self._delay = min(map(sub, (at * 1000 for at in self.taped), self.stamps), default=0)
        had = bisect_right(self.stamps, now * 1000 - self._delay)
        window = slice(bisect_right(self.stamps, last_seen), had)
        return list(zip(self.stamps[window], self.values[window], strict=True))


class TapedEvent(NamedTuple):
    """One event of the driver: when (ms), on which GPU, what."""

    at: int
    gpu: int
    parts: tuple[int, ...]


def is_count(value: Json) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WIDEST


def is_number(value: Json) -> TypeGuard[int | float]:
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < WIDEST
    )


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def fits_union(value: Json, kind: int) -> TypeGuard[int | float]:
    """Return whether this is a value of that type: fractions are for doubles."""
    return is_number(value) and (kind == pynvml.NVML_VALUE_TYPE_DOUBLE or isinstance(value, int))


NVML_REFUSALS = frozenset({"error", "mismatch"})
HOST_REFUSALS = frozenset({"errno"})
ANSWERS: tuple[tuple[str, tuple[type, ...], frozenset[str]], ...] = (
    ("read ", (str,), HOST_REFUSALS),
    ("link ", (str,), HOST_REFUSALS),
    ("names ", (list,), HOST_REFUSALS),
    (FABRIC, (dict,), NVML_REFUSALS),
    ("nvml", (object,), NVML_REFUSALS),
    ("", (dict, type(None)), HOST_REFUSALS),
)
"""By the start of a question: what answers it, and what refuses it. The last row is psutil's."""


def _fault(key: str, answer: Json, expected: str) -> ValueError:
    return ValueError(f"{key!r:.60} is {answer!r:.60}, expected {expected}")


def _check_call(key: str, answer: Json) -> None:
    _, kinds, refusals = next(row for row in ANSWERS if key.startswith(row[0]))
    if is_refusal(answer):
        if not refusals & answer.keys():
            raise _fault(key, answer, f"one of {sorted(refusals)}")
        return
    if not isinstance(answer, kinds):
        raise _fault(key, answer, " or ".join(kind.__name__ for kind in kinds))
    decode(answer)


def _check_refused(key: str, entry: Json, expected: str) -> None:
    """An entry without a value: the code that stood in it, or that of the whole call."""
    alone = isinstance(entry, list) and len(entry) == 1 and is_count(entry[0])
    if not (alone or (is_refusal(entry) and NVML_REFUSALS & entry.keys())):
        raise _fault(key, entry, expected)


def _check_field(key: str, entry: Json) -> None:
    match entry:
        case [0, int(kind), value] if is_count(kind) and fits_union(value, kind):
            return
    _check_refused(key, entry, "[0, type, value] or a refusal")


def _check_metric(key: str, entry: Json) -> None:
    match entry:
        case [0, value] if value is None or is_number(value):
            return
    _check_refused(key, entry, "[0, value] or a refusal")


CHECKS: dict[str, Callable[[str, Json], None]] = {
    CALLS: _check_call,
    FIELDS: _check_field,
    GPM: _check_metric,
}
"""Checks of the sections of a frame; samples and events are checked when they are unpacked."""


FAR_FUTURE = 2**40


@dataclass(slots=True)
class Tape:
    """A recording: `recorded_at` in wall seconds, `seconds` long; series by section and key."""

    recorded_at: float = 0.0
    seconds: float = 0.0
    driver_version: str | None = None
    series: dict[str, dict[str, AnswerSeries]] = field(
        default_factory=lambda: {section: {} for section in CHECKS}
    )
    buffers: dict[str, TapedBuffer] = field(default_factory=dict)
    events: list[TapedEvent] = field(default_factory=list)

    @classmethod
    def load(cls, path: str | Path) -> "Tape":
        """Read a whole tape; raises TapeError with one sentence where that cannot be done."""
        return _Reader(str(path)).read()

    @staticmethod
    def begins(path: str | Path) -> bool:
        """Return whether the file is a tape by its first line, of any version."""
        return _Reader(str(path)).begins()


Time = Annotated[float, Meta(ge=0, le=LONGEST)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Word = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Header(Struct):
    version: int
    recorded_at: Annotated[float, Meta(ge=0, lt=FAR_FUTURE)]
    agent: str
    driver: Any = None


class _Footer(Struct):
    frames: int
    seconds: Time


class _Frame(Struct):
    """Samples are [type, steps, values] by question; an event is its time and five integers."""

    at: Time
    calls: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    gpm: dict[str, Any] = {}
    samples: dict[str, tuple[Count, list[Count], list[int | float]]] = {}
    events: list[tuple[Time, Word, Word, Word, Word, Word]] = []


class _Reader:
    """Reads one file line by line; `_line` is where it is."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._line = 0
        self._frames = 0
        self._at = 0
        self._values = 0
        self._questions = 0
        self._tape = Tape()

    def read(self) -> Tape:
        try:
            with closing(self._lines()) as lines:
                self._header(next(lines, b""))
                self._body(lines)
        except TapeError:
            raise
        except (ValueError, RecursionError) as error:
            raise TapeError(f"{self._path}, line {self._line} is damaged: {error}") from error
        return self._tape

    def begins(self) -> bool:
        try:
            with closing(self._lines()) as lines:
                self._title(next(lines, b""))
        except TapeError:
            return False
        return True

    def _lines(self) -> Generator[bytes, None, None]:
        left = LARGEST
        try:
            with open(self._path, "rb") as raw, gzip.GzipFile(fileobj=raw) as file:
                while line := file.readline(min(left, LONGEST_LINE) + 1):
                    left -= len(line)
                    if left < 0:
                        raise TapeError(f"{self._path} unpacks to more than {LARGEST} bytes")
                    self._line += 1
                    self._count(line)
                    yield line
        except gzip.BadGzipFile as error:
            if self._line:
                raise self._cut_short(str(error)) from error
            why = "is not a tape: expected gzip'd JSON lines"
            raise TapeError(f"{self._path} {why}") from error
        except (EOFError, zlib.error) as error:
            raise self._cut_short(str(error)) from error
        except OSError as error:
            reason = error.strerror or error
            raise TapeError(f"{self._path} cannot be read: {reason}") from error

    def _count(self, line: bytes) -> None:
        """Refuse what would take far more memory than room on disk, before it does."""
        if len(line) > LONGEST_LINE:
            raise TapeError(f"{self._path} has a line of more than {LONGEST_LINE} bytes")
        self._values += sum(map(line.count, (b",", b"[", b"{")))
        if self._values > MOST_VALUES:
            raise TapeError(f"{self._path} holds more than {MOST_VALUES} values")

    def _cut_short(self, why: str) -> TapeError:
        return TapeError(f"{self._path} is cut short or damaged after line {self._line}: {why}")

    def _title(self, line: bytes) -> dict[str, Json]:
        try:
            header = json.loads(line)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("tape") != MAGIC:
            raise TapeError(f"{self._path} is not a tape: line 1 does not say {MAGIC!r}")
        return header

    def _header(self, line: bytes) -> None:
        title = self._title(line)
        version = title.get("version", VERSION)
        if type(version) is not int or version != VERSION:
            found = f"a tape of version {version!r:.20}"
            raise TapeError(f"{self._path} is {found}, but this agent plays version {VERSION}")
        header = convert(title, _Header)
        self._tape.recorded_at = header.recorded_at
        self._tape.driver_version = header.driver if isinstance(header.driver, str) else None

    def _body(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            content = json.loads(line)
            if isinstance(content, dict) and "frames" in content:
                return self._footer(convert(content, _Footer), lines)
            self._frame(convert(content, _Frame))
        raise self._cut_short("the footer is missing")

    def _footer(self, footer: _Footer, lines: Iterator[bytes]) -> None:
        if footer.frames != self._frames:
            counted = f"the footer counts {footer.frames} frames"
            raise self._cut_short(f"{counted}, and {self._frames} are there")
        self._tape.seconds = milliseconds(footer.seconds) / 1000
        if next(lines, None) is not None:
            raise ValueError("it follows the footer, which is the last line of a tape")
        self._tape.events.sort()

    def _frame(self, frame: _Frame) -> None:
        self._frames += 1
        at = milliseconds(frame.at)
        if at < self._at:
            raise ValueError("its time lies before that of the frame above it")
        self._at = at
        for section in CHECKS:
            self._answers(section, getattr(frame, section))
        for key, (kind, steps, values) in frame.samples.items():
            if len(steps) != len(values) or not all(fits_union(value, kind) for value in values):
                raise ValueError("a batch of samples holds values that are not of its type")
            buffer = self._tape.buffers.setdefault(key, TapedBuffer())
            buffer.extend(self._at, kind, list(accumulate(steps)), values)
        for time, gpu, *parts in frame.events:
            self._tape.events.append(TapedEvent(milliseconds(time), gpu, tuple(parts)))

    def _answers(self, section: str, answers: dict[str, Json]) -> None:
        series = self._tape.series[section]
        for key, answer in answers.items():
            CHECKS[section](key, answer)
            known = series.get(key) or self._begun(series, key)
            known.times.append(self._at)
            known.answers.append(answer)

    def _begun(self, series: dict[str, AnswerSeries], key: str) -> AnswerSeries:
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise TapeError(f"{self._path} holds answers to more than {MOST_QUESTIONS} questions")
        series[key] = AnswerSeries()
        return series[key]
