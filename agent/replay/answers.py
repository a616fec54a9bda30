"""Encodes responses (values, structures, refusals, and GPU handles) as JSON, decodes them, and
writes recordings. A recording contains a response only if it differs from the previous one.

In JSON, a refusal is an object with a single key: `error` (an NVML error code), `mismatch`, or
`errno`. Any other object with a single key is a structure, and its key is the structure's type. A
frame contains the responses in a tick. It ends after `SILENCE` ms without calls, `SPAN` ms after
its start, or when the response to a query differs from an earlier response in the frame.
"""

import ctypes
import dataclasses
import errno
import json
import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter, sub
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias, TypeGuard

import pynvml

from agent import __version__
from agent.clock import Clock
from agent.errors import BadInput

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAGIC = "dgx-telemetry"
VERSION = 1
TAPE_BYTES = 128 * 1024 * 1024
"""Maximum size in bytes of an uncompressed recording, which contains about two hours with eight
GPUs. Larger recordings are not written or read. A replay needs 4 to 7 times as much memory."""

WITH_NAMES = ("map", "object", "named")  # older recordings have named tuples
LOG = "kernel_log"  # key of the lines of the kernel log so far
CALLS, FIELDS, GPM, SAMPLES, HANGS = "calls", "fields", "gpm", "samples", "hangs"
PSUTIL = "disk_io_counters", "net_io_counters", "cpu_times"  # the recorded functions of psutil
UNTAPED = {
    "nvmlDeviceGetMaxMigDeviceCount": "the instances of MIG, with handles of their own",
    "nvmlDeviceGetPlatformInfo": "the place in a rack, with the serial number of its chassis",
    "nvmlDeviceGetGpuFabricInfoV": "the fabric, with the UUID of its cluster",
    "nvmlDeviceGetGpuFabricInfo": "the fabric, with the UUID of its cluster",
    "nvmlEventSetCreate": "events, which no one asks for",
}
"""NVML functions that are not recorded. Recorders and replays seem to lack these functions."""


class TapeError(BadInput):
    """Raised if a file cannot be replayed. The message contains the file and the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class TapedDevice:
    """A GPU handle in a recording. `real` is NVML's handle, or None during replay."""

    index: int
    real: Any = dataclasses.field(default=None, compare=False, repr=False)


def key_of(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any] | None = None) -> str:
    """Return the key of a call, `name(arguments)`. The key contains the index of a GPU handle. It
    omits arguments other than handles, numbers, and strings. It also omits psutil's `nowrap`, which
    was applied during recording."""
    values = [*args, *(value for key, value in (keywords or {}).items() if key != "nowrap")]
    plain = (value.index if isinstance(value, TapedDevice) else value for value in values)
    return f"{name}({','.join(str(v) for v in plain if isinstance(v, int | str))})"


def hangs_with(name: str, args: tuple[Any, ...]) -> str:
    """Return what hangs if this NVML call does: its GPU, or the function if it is about no GPU."""
    first = args[0] if args else None
    if name == "nvmlDeviceGetHandleByIndex" or isinstance(first, TapedDevice):
        return f"gpu {getattr(first, 'index', first)}"
    return name


def field_keys(index: int, fields: Sequence[int | tuple[int, int]]) -> list[str]:
    """Return the key `GPU,field,scope` of each field, or `GPU,field,scope,again` if repeated."""
    scoped = (field if isinstance(field, tuple) else (field, 0) for field in fields)
    keys = [f"{index},{int(number)},{int(scope)}" for number, scope in scoped]
    return [f"{key},again" if key in keys[:place] else key for place, key in enumerate(keys)]


def gpm_keys(asked: dict[int, int], index: int, metrics: Sequence[Any]) -> list[str]:
    """Return the key `GPU,metric` of each metric in a GPM request. If the request has fewer metrics
    than the GPU's first (see `asked`), it is for a 100 ms window, and keys end in `,again`."""
    again = "" if asked.setdefault(index, len(metrics)) == len(metrics) else ",again"
    return [f"{index},{metric.metricId}{again}" for metric in metrics]


def union_member(value_type: int) -> str:
    """Return the name of the `nvmlValue_t` member for a value type. For all integers, return the
    64-bit member, because some drivers report an incorrect type."""
    return "dVal" if value_type == pynvml.NVML_VALUE_TYPE_DOUBLE else "ullVal"


def _encode_all(values: Mapping[Any, Any]) -> Json:
    return {str(name): encode(value) for name, value in values.items()}


def encode(value: Any) -> Json:  # noqa: PLR0911 - a line per type
    """Return a response as JSON. Raise TypeError for an object without attributes."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return {"map": _encode_all(value)}
    if hasattr(value, "_asdict"):
        return {"object": _encode_all(value._asdict())}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list | ctypes.Array):
        return [encode(item) for item in value]
    if isinstance(value, ctypes.Structure):
        return {"object": _encode_all({of[0]: getattr(value, of[0]) for of in value._fields_})}
    return {"object": _encode_all(vars(value))}


def decode(answer: Json) -> Any:
    """Return the Python object for a recorded response. Raise ValueError if it is invalid."""
    if isinstance(answer, list):
        return [*map(decode, answer)]
    if not isinstance(answer, dict):
        return answer
    name, content = next(iter(answer.items()), ("", None))
    if len(answer) == 1 and name == "tuple" and isinstance(content, list):
        return tuple(map(decode, content))
    if len(answer) != 1 or name not in WITH_NAMES or not isinstance(content, dict):
        raise ValueError(f"an answer is {answer!r:.60}, expected a tuple or one of {WITH_NAMES}")
    parts = {part: decode(item) for part, item in content.items()}
    return parts if name == "map" else SimpleNamespace(**parts)


NVML_FAILURES = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


def refusal(failure: Exception) -> Json:
    if isinstance(failure, pynvml.NVMLError):
        return {"error": int(failure.value)}
    if isinstance(failure, OSError):
        return {"errno": failure.errno or errno.EIO}
    return {"mismatch": True}


def is_refusal(answer: Json) -> TypeGuard[dict[str, Json]]:
    if not isinstance(answer, dict) or len(answer) != 1:
        return False
    ((name, code),) = answer.items()
    known = isinstance(code, int) and 0 < code < 2**64
    return name == "mismatch" or (name in {"error", "errno"} and known)


def refuse(answer: Json, what: str) -> NoReturn:
    code = answer if isinstance(answer, dict) else {}
    if "errno" in code:
        number = int(str(code["errno"]))
        raise OSError(number, os.strerror(number), what)
    if "error" in code:
        raise pynvml.NVMLError(code["error"])
    raise pynvml.NVMLLibraryMismatchError(f"{what}: the driver has only an older version of it")


Answers = list[tuple[int, Json]]
"""All recorded responses to a query, each after the time (ms) from which it applies."""


def at(series: Answers, now: int) -> Json:
    return series[max(0, bisect_right(series, now, key=itemgetter(0)) - 1)][1]


@dataclasses.dataclass(slots=True)
class TapedBuffer:
    """The recorded samples of a driver buffer, with recording times (ms) and timestamps (us)."""

    kind: int = 0
    taped: list[int] = dataclasses.field(default_factory=list)
    stamps: list[int] = dataclasses.field(default_factory=list)
    values: list[int | float] = dataclasses.field(default_factory=list)
    _delay: int | None = None  # us between a sample's timestamp and its availability

    def extend(self, at: int, kind: int, stamps: list[int], values: list[int | float]) -> None:
        """Add samples that were recorded at `at`. Raise ValueError if they are out of order."""
        ordered = all(earlier <= later for earlier, later in pairwise([*self.stamps[-1:], *stamps]))
        if not ordered or len(stamps) != len(values):
            raise ValueError("samples are not in the order of time")
        self.kind, self._delay = kind, None
        self.taped += [at] * len(stamps)
        self.stamps += stamps
        self.values += values

    def newer(self, last_seen: int, now: int) -> list[tuple[int, int | float]]:
        """Return the samples after `last_seen` that the driver probably had at time `now`. They may
        have been recorded later, because read intervals may differ during replay."""
        if self._delay is None:
            self._delay = min(map(sub, (at * 1000 for at in self.taped), self.stamps), default=0)
        had = bisect_right(self.stamps, now * 1000 - self._delay)
        window = slice(bisect_right(self.stamps, last_seen), had)
        return list(zip(self.stamps[window], self.values[window], strict=True))


SILENCE = 50
SPAN = 500  # Milliseconds on the agent's clock
HANG = 1000  # Milliseconds after which a call that has not returned is recorded as hanging
LEVEL = 6
GZIP = 31  # zlib's wbits value for the largest window with a gzip wrapper
ROOM = 1024 * 1024  # Bytes reserved for the header and footer


def line(content: Json) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def packed(content: Json) -> bytes:
    """Return a JSON value as a line in a separate gzip member. Gzip files may have several."""
    press = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    return press.compress(line(content)) + press.flush()


class TapeWriter:
    """Collects responses for a recording. Times are milliseconds since the first query."""

    def __init__(self, clock: Clock, largest: int = TAPE_BYTES) -> None:
        self._clock = clock
        self._room = largest - ROOM
        self._lock = threading.Lock()
        self._start: float | None = None
        self._wall = 0.0
        self._last: dict[tuple[str, str], Json] = {}
        self._newest: dict[str, int] = {}
        self._asking: dict[int, tuple[str, int]] = {}  # call and its start, by thread
        self._frame: dict[str, dict[str, Json]] = {}
        self._opened = self._touched = self._frames = 0
        self._press = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
        self._chunks: list[bytes] = []
        self.full = False

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Return a context manager for a call. If the call hangs, record when. The first call sets
        time 0 of the recording."""
        thread = threading.get_ident()
        with self._lock:
            began = self._now()
            self._asking[thread] = what, began
        try:
            yield
        finally:
            with self._lock:
                self._asking.pop(thread, None)
                if self._now() - began > HANG:
                    self._turn()
                    self._put(HANGS, what, [began / 1000, self._touched / 1000])

    def note(self, section: str, key: str, answer: Json) -> None:
        """Record a response if it differs from the last response to the query."""
        with self._lock:
            self._turn()
            question = (section, key)
            if question not in self._last or self._last[question] != answer:
                self._last[question] = answer
                self._put(section, key, answer)

    def samples(self, key: str, value_type: int, rows: Sequence[tuple[int, float]]) -> None:
        """Record the samples of a buffer (timestamp in us, value) newer than the last recorded."""
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

    def content(self) -> bytes:
        """Return the contents of the recording file so far. Recording may continue after this."""
        with self._lock:
            now = self._now()
            seconds = now / 1000
            self._flush()
            body = b"".join([*self._chunks, self._press.copy().flush()])
            asking = [(what, began) for what, began in self._asking.values() if now - began > HANG]
            if asking:
                hangs: dict[str, Json] = {what: [began / 1000, None] for what, began in asking}
                body += packed({"at": seconds, HANGS: hangs})
            about: dict[str, Json] = {"recorded_at": round(self._wall, 3), "agent": __version__}
            header: Json = {"tape": MAGIC, "version": VERSION, "seconds": seconds, **about}
            return packed(header) + body + packed({"frames": self._frames, "seconds": seconds})

    def _now(self) -> int:
        now = self._clock.monotonic()
        if self._start is None:
            self._start, self._wall = now, self._clock.time()
        return round((now - self._start) * 1000)

    def _turn(self) -> None:
        now = self._now()
        if now - self._touched > SILENCE or now - self._opened > SPAN:
            self._flush()
        self._touched = now

    def _put(self, section: str, key: str, content: Json) -> None:
        if key in self._frame.get(section, {}):
            self._flush()
        if not self._frame:
            self._opened = self._touched
        self._frame.setdefault(section, {})[key] = content

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
