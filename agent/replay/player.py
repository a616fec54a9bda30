"""Replays a recording. Each call returns the response that was recorded at the same time after the
start. A response that no machine could return becomes an NVML error or an OSError."""

import ctypes
import gzip
import inspect
import json
import threading
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from errno import EIO, ENOENT, ETIMEDOUT
from functools import partial
from itertools import accumulate, count
from math import inf
from pathlib import Path
from stat import S_ISREG
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pynvml
from msgspec import Meta, Struct, convert

from agent.clock import Clock, SystemClock, TapeClock
from agent.errors import LogEvent, log
from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.hardware.kernel_log import KernelLog, LogLine
from agent.hardware.nvml import address_of
from agent.hardware.sockets import Found, TcpSocket
from agent.model import Absent, Reason
from agent.replay import answers
from agent.replay.answers import CALLS, FIELDS, GPM, Answers, Json, TapedBuffer, TapedDevice

AHEAD = 250
"""Milliseconds by which a real-time replay is ahead of the recording.

In recording and replay, ticks start at the same times after the first query, except for jitter.
Without this lead, a tick might use the previous frame instead of its own.
"""

NO_ANSWER = ArithmeticError, RecursionError, TypeError, ValueError
"""Exceptions caused by responses that no library or file system would return."""

Time = Annotated[float, Meta(ge=0, le=10 * 366 * 86400)]  # up to ten years in seconds
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Frame(Struct):
    """Responses in a tick by query. Each of `samples` has a type, time differences, and values."""

    at: Time
    calls: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    gpm: dict[str, Any] = {}
    samples: dict[str, tuple[Count, list[Count], list[int | float]]] = {}
    hangs: dict[str, tuple[Time, Time | None]] = {}  # start and end of calls that hung


class _Title(Struct):
    """The first line of a recording, with the version of the format and the duration."""

    tape: Literal["dgx-telemetry"]
    version: int
    seconds: Time | None = None  # older recordings have it only in the last line


class _Footer(Struct):
    """The last line of a recording, with its duration."""

    seconds: Time


class Tape:
    """A recording that lasts `seconds`: its responses by section and query, and its sample buffers
    by query. The last tick begins at `last` (ms). If the file is cut short, `cut` states how much
    is left. The constructor raises TapeError if the file cannot be replayed."""

    def __init__(self, path: str | Path) -> None:
        self._line = self._at = self.last = 0
        self._whole: float | None = None
        self.seconds: float | None = None
        self.cut = ""
        self.series: dict[str, dict[str, Answers]] = {CALLS: {}, FIELDS: {}, GPM: {}}
        self.buffers: dict[str, TapedBuffer] = {}
        self.hangs: dict[str, list[tuple[float, float]]] = {}  # start and end (s), by what hung
        try:
            self._read(Path(path))
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            place = f" (line {self._line})" if self._line else ""
            raise answers.TapeError(f"{path} cannot be played as a tape{place}: {why}") from error

    def _read(self, path: Path) -> None:
        if not S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a regular file")
        with suppress(EOFError), gzip.open(path) as file:  # the file may be cut short
            self._read_lines(file)
        if self.seconds is None:
            if self._line < 2:
                raise EOFError("it is cut short before its first frame")
            self.seconds = self._at / 1000
            of = "" if self._whole is None else f" of {self._whole:.0f} s"
            self.cut = f"cut short after {self.seconds:.0f} s{of}"
            log.warning(LogEvent("tape_cut_short", means=self.cut))
        self.last = max(self._at, round(self.seconds * 1000) - 1000)  # ms; no tick begins later

    def _read_lines(self, file: gzip.GzipFile) -> None:
        left = answers.TAPE_BYTES
        while text := file.readline(left + 1):
            self._line, left = self._line + 1, left - len(text)
            if left < 0:
                raise ValueError(f"it holds more than {answers.TAPE_BYTES} bytes")
            if self.seconds is not None:
                raise ValueError("it follows the footer, which is the last line of a tape")
            content = json.loads(text)
            if self._line == 1:
                title = convert(content, _Title)
                if title.version != answers.VERSION:
                    why = f"it has version {title.version}, this agent plays {answers.VERSION}"
                    raise ValueError(why)
                self._whole = title.seconds
            elif isinstance(content, dict) and "frames" in content:
                self.seconds = round(convert(content, _Footer).seconds, 3)
            else:
                self._add(convert(content, _Frame))

    def _add(self, frame: _Frame) -> None:
        at = round(frame.at * 1000)
        if at < self._at:
            raise ValueError("its time lies before that of the frame above it")
        self._at = at
        for section, series in self.series.items():
            for key, answer in getattr(frame, section).items():
                series.setdefault(key, []).append((at, answer))
        for key, (kind, steps, values) in frame.samples.items():
            buffer = self.buffers.setdefault(key, TapedBuffer())
            buffer.extend(at, kind, list(accumulate(steps)), values)
        for what, (began, ended) in frame.hangs.items():
            self.hangs.setdefault(what, []).append((began, inf if ended is None else ended))


class TapedNvml:
    """Replays recorded NVML functions, under their pynvml names. Constants come from pynvml.
    Functions whose responses have a special format in the recording have their own methods."""

    def __init__(self, player: "TapePlayer") -> None:
        self._player = player
        self._tape = player.tape
        self._numbers = count(1)
        self._sampled: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._with_fields = {key.partition(",")[0] for key in self._tape.series[FIELDS]}

    def __getattr__(self, name: str) -> Any:
        if name in answers.UNTAPED:
            raise AttributeError(f"not taped: {answers.UNTAPED[name]}")
        known = getattr(pynvml, name, None)
        if not name.startswith("nvml") or not (known is None or inspect.isroutine(known)):
            return getattr(pynvml, name)

        def ask(*args: Any, **keywords: Any) -> Any:
            try:
                self._player.hang(answers.hangs_with(name, args))
                if special := getattr(TapedNvml, f"_{name}", None):
                    return special(self, *args, **keywords)
                return self._answer(answers.key_of(name, args, keywords))
            except TimeoutError as error:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from error
            except NO_ANSWER as error:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN) from error

        return ask

    def _nvmlShutdown(self) -> None:
        pass

    def _answer(self, key: str) -> Any:
        """Return the current response to a query. Raise `Function Not Found` if there is none."""
        never = pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return self._player.answer(key, key, never)

    def _entries(self, section: str, keys: Sequence[str]) -> list[list[Any]]:
        """Return the current responses to several queries. If all are refusals, raise the first."""
        now = self._player.now()
        series = self._tape.series[section]
        found = [answers.at(series[key], now) for key in keys if key in series]
        if found and all(map(answers.is_refusal, found)):
            answers.refuse(found[0], keys[0])
        unseen: Json = [pynvml.NVML_ERROR_NOT_SUPPORTED]
        entries = [answers.at(series[key], now) if key in series else unseen for key in keys]
        return [
            [one.get("error", pynvml.NVML_ERROR_UNKNOWN)] if isinstance(one, dict) else one
            for one in entries
            if isinstance(one, dict | list)
        ]

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> TapedDevice:
        self._answer(answers.key_of("nvmlDeviceGetHandleByIndex", (index,)))
        return TapedDevice(index)

    def _nvmlDeviceGetFieldValues(
        self, device: TapedDevice, wanted: list[int | tuple[int, int]]
    ) -> Any:
        if str(device.index) not in self._with_fields:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        keys = answers.field_keys(device.index, wanted)
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        stamp = int(self._player.clock.time() * 1e6)
        for value, key, entry in zip(values, keys, self._entries(FIELDS, keys), strict=True):
            value.fieldId, value.scopeId = map(int, key.split(",")[1:3])
            value.nvmlReturn, *known = entry
            if known:
                value.valueType, number, *later = known
                value.timestamp = stamp + sum(later)
                setattr(value.value, answers.union_member(value.valueType), number)
        return values

    def _nvmlDeviceGetSamples(self, device: TapedDevice, sampling: int, last_seen: int) -> Any:
        key = answers.key_of("nvmlDeviceGetSamples", (device, sampling))
        self._answer(key)
        buffer = self._tape.buffers.get(key)
        rows = buffer.newer(last_seen, self._player.now()) if buffer else []
        if buffer is None or not rows:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        samples = (pynvml.c_nvmlSample_t * len(rows))()
        for sample, (stamp, value) in zip(samples, rows, strict=True):
            sample.timeStamp = stamp
            setattr(sample.sampleValue, answers.union_member(buffer.kind), value)
        return buffer.kind, list(samples)

    def _nvmlGpmSampleAlloc(self) -> Any:
        self._answer("nvmlGpmSampleAlloc()")
        # This address is never dereferenced; it only distinguishes samples.
        return ctypes.cast(ctypes.c_void_p(next(self._numbers)), pynvml.c_nvmlGpmSample_t)

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        self._sampled.pop(address_of(sample), None)

    def _nvmlGpmSampleGet(self, device: TapedDevice, sample: Any) -> Any:
        self._answer(answers.key_of("nvmlGpmSampleGet", (device,)))
        self._sampled[address_of(sample)] = device.index
        return sample

    def _nvmlGpmMetricsGet(self, request: Any) -> Any:
        first, second = (
            self._sampled.get(address_of(sample)) for sample in (request.sample1, request.sample2)
        )
        if first is None or first != second:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self._player.hang(f"gpu {first}")
        metrics = [request.metrics[number] for number in range(request.numMetrics)]
        keys = answers.gpm_keys(self._asked, first, metrics)
        for metric, entry in zip(metrics, self._entries(GPM, keys), strict=True):
            metric.nvmlReturn, *known = entry
            if known:
                metric.value = float("nan") if known[0] is None else known[0]
        return request


class TapedFiles(FileTree):
    """Replays recorded files. A path that is not in the recording does not exist."""

    def __init__(self, player: "TapePlayer") -> None:
        self._player = player

    def answer(self, key: str, what: str, kind: type = object) -> Any:
        """Return the current response to a query. Raise OSError if it is missing or invalid."""
        never = FileNotFoundError(ENOENT, "was never taped", what)
        with suppress(*NO_ANSWER):
            found = self._player.answer(key, what, never)
            if isinstance(found, kind):
                return found
        raise OSError(EIO, "has another answer on the tape than a machine gives", what)

    def read(self, path: str) -> str:
        return str(self.answer(f"read {path}", path, str))

    def names(self, path: str) -> list[str]:
        return [str(name) for name in self.answer(f"names {path}", path, list)]

    def link(self, path: str) -> str:
        return str(self.answer(f"link {path}", path, str))

    def sockets(self, cgroups: Collection[str]) -> Found:
        with suppress(*NO_ANSWER):
            taped = {path: self.answer(f"sockets {path}", path, list) for path in cgroups}
            return {path: convert(rows, list[TcpSocket]) for path, rows in taped.items()}
        raise OSError(EIO, "has other sockets on the tape than a machine has")


class TapedLog(KernelLog):
    """Replays the recorded lines of a kernel log."""

    def __init__(self, player: "TapePlayer") -> None:
        self._player = player

    def all(self) -> Sequence[LogLine]:
        never = Absent(Reason.UNSUPPORTED, "the recording has no kernel log")
        try:
            return convert(self._player.answer(answers.LOG, "kernel log", never), list[LogLine])
        except (OSError, *NO_ANSWER) as error:
            raise Absent(Reason.FAILED, f"the kernel log of the recording: {error}") from error


class TapePlayer:
    """A recorded machine. Its `nvml` and `host` replace the real library and host. Several threads
    may use them. Times are in milliseconds since the first query."""

    def __init__(self, tape: Tape, clock: Clock) -> None:
        self.tape, self.clock = tape, clock
        if isinstance(clock, TapeClock):
            clock.epoch -= tape.seconds or 0.0  # it ends now
        self._ahead = AHEAD if isinstance(clock, SystemClock) else 0
        self._lock = threading.Lock()
        self._start: float | None = None
        self._ended = False
        files = TapedFiles(self)
        self.nvml = TapedNvml(self)

        def counters(name: str, **options: Any) -> Any:
            return files.answer(answers.key_of(name, (), options), f"psutil.{name}")

        psutil = SimpleNamespace(**{name: partial(counters, name) for name in answers.PSUTIL})
        log = TapedLog(self)
        self.host = Host(files, psutil, kernel_log=log, sockets=files.sockets)

    @property
    def finished(self) -> bool:
        """Whether the recording has ended. `run` and `watch` then stop."""
        if self._start is not None:
            self.now()  # no call may have asked for it, because all hang
        return self._ended

    def hang(self, what: str) -> None:
        """Block for as long as a call about `what` hung in the recording. If the clock does not
        advance by itself, raise TimeoutError instead."""
        for began, ended in self.tape.hangs.get(what, ()):
            if began * 1000 <= self.now() and self._start is not None:
                until = self._start + ended
                if isinstance(self.clock, SystemClock):
                    self.clock.block(until)
                elif self.clock.monotonic() < until:
                    raise TimeoutError(ETIMEDOUT, "hung in the recording", what)

    def now(self) -> int:
        now = self.clock.monotonic()
        with self._lock:
            if self._start is None:
                self._start = now
            at = round((now - self._start) * 1000)
            ends = not self._ended and at + self._ahead >= self.tape.last
            self._ended |= ends
        if ends:
            log.warning(LogEvent("tape_ended", means="its last values stay"))
        return at + self._ahead

    def answer(self, key: str, what: str, never: Exception) -> Any:
        """Return the current response to the call `key`. If the response is a refusal, raise it. If
        the call was not recorded, raise `never`."""
        self.hang(key)
        now, series = self.now(), self.tape.series[CALLS].get(key)
        if series is None:
            raise never
        answer = answers.at(series, now)
        if answers.is_refusal(answer):
            answers.refuse(answer, what)
        return answers.decode(answer)
