"""The tape writer: takes answers from several threads, keeps what changed, writes the tape.

A frame holds the answers of one tick: it ends where the backends fall silent for `SILENCE`,
after `SPAN`, or where a question comes up again with another answer.
"""

import json
import threading
import zlib
from collections.abc import Sequence

from agent import __version__
from agent.clock import Clock
from agent.replay.answers import CALLS, EVENTS, LARGEST, MAGIC, SAMPLES, VERSION, Json

SILENCE = 50
SPAN = 500  # Milliseconds of the clock
LEVEL = 6
GZIP = 31  # zlib's word for the largest window in a gzip wrapper
ROOM = 1024 * 1024  # Bytes left for header and footer


def line(content: Json) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def packed(content: Json) -> bytes:
    """One line as a gzip member of its own: a file may be several, one after the other."""
    press = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return press.compress(line(content)) + press.flush()


class TapeWriter:
    """Answers on their way to a tape. Times are milliseconds since the first question."""

    def __init__(self, clock: Clock, largest: int = LARGEST) -> None:
        self._clock = clock
        self._room = largest - ROOM
        self._lock = threading.Lock()
        self._start: float | None = None
        self._wall = 0.0
        self._last: dict[tuple[str, str], Json] = {}
        self._newest: dict[str, int] = {}
        self._frame: dict[str, Json] = {}
        self._opened = self._touched = self._frames = 0
        self._press = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
        self._chunks: list[bytes] = []
        self.full = False

    def begin(self) -> None:
        """The first question is asked: time runs from here."""
        with self._lock:
            self._begin()

    def note(self, section: str, key: str, answer: Json) -> None:
        """An answer; taped if it is not the last one to this question."""
        with self._lock:
            self._turn()
            question = (section, key)
            if question not in self._last or self._last[question] != answer:
                self._last[question] = answer
                self._put(section, key, answer)

    def samples(self, key: str, value_type: int, rows: Sequence[tuple[int, float]]) -> None:
        """The part of a sample buffer (timestamp in us, value) that is newer than the last."""
        with self._lock:
            self._turn()
            newest = self._newest.get(key, -1)
            fresh = sorted(row for row in rows if row[0] > newest)
            if not fresh:
                return
            stamps = [row[0] for row in fresh]
            steps = [after - before for before, after in zip([0, *stamps], stamps, strict=False)]
            self._newest[key] = stamps[-1]
            self._put(SAMPLES, key, [value_type, [*steps], [row[1] for row in fresh]])

    def event(self, row: Sequence[int]) -> None:
        """An event with its own time; it neither opens nor prolongs a tick."""
        with self._lock:
            at = self._now()
            if not self._frame:
                self._opened = at
            events = self._frame.setdefault(EVENTS, [])
            assert isinstance(events, list)
            events.append([at / 1000, *row])

    def content(self) -> bytes:
        """The tape of everything up to now; taping may go on."""
        with self._lock:
            seconds = self._now() / 1000
            self._flush()
            body = b"".join([*self._chunks, self._press.copy().flush()])
            footer: Json = {"frames": self._frames, "seconds": seconds}
            return packed(self._header()) + body + packed(footer)

    def _header(self) -> Json:
        driver = self._last.get((CALLS, "nvmlSystemGetDriverVersion()"))
        known: Json = {"driver": driver} if isinstance(driver, str) else {}
        assert isinstance(known, dict)
        about: dict[str, Json] = {"recorded_at": round(self._wall, 3), "agent": __version__}
        return {"tape": MAGIC, "version": VERSION, **about, **known}

    def _begin(self) -> float:
        if self._start is None:
            self._start = self._clock.monotonic()
            self._wall = self._clock.time()
        return self._start

    def _now(self) -> int:
        start = self._begin()
        return round((self._clock.monotonic() - start) * 1000)

    def _turn(self) -> None:
        now = self._now()
        if now - self._touched > SILENCE or now - self._opened > SPAN:
            self._flush()
        self._touched = now

    def _put(self, section: str, key: str, content: Json) -> None:
        if key in self._section(section):
            self._flush()
        if not self._frame:
            self._opened = self._touched
        answers = self._frame.setdefault(section, {})
        assert isinstance(answers, dict)
        answers[key] = content

    def _section(self, section: str) -> dict[str, Json]:
        found = self._frame.get(section)
        return found if isinstance(found, dict) else {}

    def _flush(self) -> None:
        if not self._frame:
            return
        content = line({"at": self._opened / 1000, **self._frame})
        self._frame = {}
        self._room -= len(content)
        self.full = self.full or self._room < 0
        if not self.full:
            self._chunks.append(self._press.compress(content))
            self._frames += 1
