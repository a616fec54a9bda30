"""Reading a tape: bounded, and checked whole before anything is played."""

import gzip
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from agent.replay.answers import (
    EVENTS,
    LARGEST,
    LONGEST_LINE,
    MAGIC,
    MOST_QUESTIONS,
    MOST_VALUES,
    SAMPLES,
    VERSION,
    WIDEST,
    Json,
    TapeError,
)
from agent.replay.tape_data import (
    CHECKS,
    AnswerSeries,
    TapedBuffer,
    TapedEvent,
    fits_union,
    is_count,
    is_number,
    milliseconds,
)

FAR_FUTURE = 2**40
BATCH_WIDTH = 3
EVENT_WIDTH = 6


@dataclass(slots=True)
class Tape:
    """A recording: `recorded_at` in wall seconds, `seconds` long; series by section and key."""

    recorded_at: float = 0.0
    seconds: float = 0.0
    agent_version: str = ""
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
        """Whether the file is a tape by its first line, of any version, whatever follows."""
        return _Reader(str(path)).begins()


def _listed(value: Json, what: str) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")  # noqa: TRY004 - a fault of the tape, no bug
    return value


def _keyed(value: Json, what: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")  # noqa: TRY004 - a fault of the tape, no bug
    return value


def _need(content: dict[str, Json], name: str) -> Json:
    if name not in content:
        raise ValueError(f"the field {name!r} is missing")
    return content[name]


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
            raise self._bad_gzip(error) from error
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

    def _bad_gzip(self, error: Exception) -> TapeError:
        if self._line == 0:
            return TapeError(f"{self._path} is not a tape: expected gzip'd JSON lines")
        return self._cut_short(str(error))

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
        header = self._title(line)
        version = _need(header, "version")
        if type(version) is not int or version != VERSION:
            found = f"a tape of version {version!r:.20}"
            raise TapeError(f"{self._path} is {found}, but this agent plays version {VERSION}")
        recorded_at = _need(header, "recorded_at")
        if not is_number(recorded_at) or not 0 <= recorded_at < FAR_FUTURE:
            raise ValueError(f"recorded_at is {recorded_at!r:.40}, expected seconds since 1970")
        self._tape.recorded_at = float(recorded_at)
        self._tape.agent_version = str(_need(header, "agent"))
        driver = header.get("driver")
        self._tape.driver_version = driver if isinstance(driver, str) else None

    def _body(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            content = _keyed(json.loads(line), "a frame")
            if "frames" in content:
                return self._footer(content, lines)
            self._frame(content)
        raise self._cut_short("the footer is missing")

    def _footer(self, footer: dict[str, Json], lines: Iterator[bytes]) -> None:
        if footer["frames"] != self._frames:
            counted = f"the footer counts {footer['frames']!r:.20} frames"
            raise self._cut_short(f"{counted}, and {self._frames} are there")
        self._tape.seconds = milliseconds(_need(footer, "seconds")) / 1000
        if next(lines, None) is not None:
            raise ValueError("it follows the footer, which is the last line of a tape")
        self._tape.events.sort()

    def _frame(self, frame: dict[str, Json]) -> None:
        self._frames += 1
        at = milliseconds(_need(frame, "at"))
        if at < self._at:
            raise ValueError("its time lies before that of the frame above it")
        self._at = at
        for section in CHECKS:
            self._answers(section, _keyed(frame.get(section, {}), section))
        for key, batch in _keyed(frame.get(SAMPLES, {}), SAMPLES).items():
            self._samples(key, _listed(batch, "a batch of samples"))
        for row in _listed(frame.get(EVENTS, []), EVENTS):
            self._event(_listed(row, "an event"))

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

    def _samples(self, key: str, batch: list[Json]) -> None:
        if len(batch) != BATCH_WIDTH or not is_count(batch[0]):
            raise ValueError("a batch of samples is not [type, steps, values]")
        kind, steps, values = batch[0], _listed(batch[1], "steps"), _listed(batch[2], "values")
        whole = [step for step in steps if is_count(step)]
        fit = [value for value in values if fits_union(value, kind)]
        if not len(whole) == len(steps) == len(fit) == len(values):
            raise ValueError("a batch of samples holds what are no timestamps or values")
        buffer = self._tape.buffers.setdefault(key, TapedBuffer())
        buffer.extend(self._at, kind, list(accumulate(whole)), fit)

    def _event(self, row: list[Json]) -> None:
        parts = [part for part in row[1:] if isinstance(part, int) and abs(part) < WIDEST]
        if len(row) != EVENT_WIDTH or len(parts) != EVENT_WIDTH - 1:
            raise ValueError("an event is not its time and five integers")
        self._tape.events.append(TapedEvent(milliseconds(row[0]), parts[0], tuple(parts[1:])))
