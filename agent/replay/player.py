"""The player: answers from a tape what the machine answered, at the time it did."""

import ctypes
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from errno import ENOENT
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pynvml

from agent.clock import Clock, SystemClock
from agent.hardware.files import FileTree
from agent.hardware.host import Host, Psutil
from agent.replay.answers import (
    CALLS,
    FABRIC,
    FIELDS,
    GPM,
    Json,
    TapedDevice,
    decode,
    fill_union,
    identity,
    is_refusal,
    key_of,
    psutil_key,
    refuse,
)
from agent.replay.reading import Tape
from agent.replay.recorder import EVENT_PARTS, SAMPLE_GET, WAIT, field_key

AHEAD = 250
"""Milliseconds by which a replay in real time runs ahead of the tape.

The ticks of recording and replay start equally late after the first question, but for some
jitter: without this, a tick would find now the frame of its own time, now the one before.
"""


class TapeClock:
    """Milliseconds since the first question, which may be asked from several threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ahead = AHEAD if isinstance(clock, SystemClock) else 0
        self._lock = threading.Lock()
        self._start: float | None = None

    def now(self) -> int:
        now = self.clock.monotonic()
        with self._lock:
            if self._start is None:
                self._start = now
            return round((now - self._start) * 1000) + self._ahead

    def passed(self, seconds: float) -> bool:
        return self._start is not None and self.now() - self._ahead > round(seconds * 1000)


NAP = 0.02  # Seconds between two checks for an event
UNSEEN: Json = [pynvml.NVML_ERROR_NOT_SUPPORTED]

Entry = list[Any]


class TapedNvml:
    """The functions of an NVML library, answered from a tape; constants are pynvml's."""

    def __init__(self, tape: Tape, clock: TapeClock) -> None:
        self._tape = tape
        self._clock = clock
        self._lock = threading.Lock()
        self._delivered = 0
        self._numbers = count(1)
        self._sampled: dict[int, int] = {}
        self._with_fields = {key.partition(",")[0] for key in tape.series[FIELDS]}
        self._special: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetFieldValues": self._fields,
            FABRIC: self._fabric,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetSamples": self._samples,
            "nvmlEventSetCreate": self._event_set,
            "nvmlEventSetFree": lambda _: None,
            WAIT: self._wait,
            "nvmlGpmMetricsGet": self._gpm_metrics,
            "nvmlGpmSampleAlloc": self._gpm_alloc,
            "nvmlGpmSampleFree": lambda sample: self._sampled.pop(identity(sample), None),
            SAMPLE_GET: self._gpm_sample,
            "nvmlShutdown": lambda: None,
        }

    def __getattr__(self, name: str) -> Any:
        known = getattr(pynvml, name, None)
        if not name.startswith("nvml") or not (known is None or inspect.isroutine(known)):
            return getattr(pynvml, name)
        plain = lambda *args, **keywords: self._answer(key_of(name, args, keywords))  # noqa: E731
        return self._special.get(name) or plain

    def _answer(self, key: str) -> Any:
        """The answer of now; Function Not Found where this was never asked."""
        now = self._clock.now()
        answers = self._tape.series[CALLS].get(key)
        if answers is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        answer = answers.at(now)
        return refuse(answer, key) if is_refusal(answer) else decode(answer)

    def _entries(self, section: str, keys: Sequence[str]) -> list[Entry]:
        """Return the answers to one call with many questions; refused if each of them was refused
        whole."""
        now = self._clock.now()
        series = self._tape.series[section]
        found = [series[key].at(now) for key in keys if key in series]
        if found and all(map(is_refusal, found)):
            refuse(found[0], keys[0])
        answers = [series[key].at(now) if key in series else UNSEEN for key in keys]
        return [
            [one.get("error", pynvml.NVML_ERROR_UNKNOWN)] if isinstance(one, dict) else one
            for one in answers
            if isinstance(one, dict | list)
        ]

    def _handle(self, index: int) -> TapedDevice:
        self._answer(key_of("nvmlDeviceGetHandleByIndex", (index,)))
        return TapedDevice(index)

    def _fields(self, device: TapedDevice, wanted: list[int | tuple[int, int]]) -> Any:
        if str(device.index) not in self._with_fields:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        keys = [field_key(device.index, field) for field in wanted]
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        stamp = int(self._clock.clock.time() * 1e6)
        for value, key, entry in zip(values, keys, self._entries(FIELDS, keys), strict=True):
            value.fieldId, value.scopeId = map(int, key.split(",")[1:])
            value.nvmlReturn, *known = entry
            if known:
                value.valueType, value.timestamp = known[0], stamp
                fill_union(value.value, *known)
        return values

    def _samples(self, device: TapedDevice, sampling: int, last_seen: int) -> Any:
        key = key_of("nvmlDeviceGetSamples", (device, sampling))
        self._answer(key)
        buffer = self._tape.buffers.get(key)
        rows = buffer.newer(last_seen, self._clock.now()) if buffer else []
        if buffer is None or not rows:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        samples = (pynvml.c_nvmlSample_t * len(rows))()
        for sample, (stamp, value) in zip(samples, rows, strict=True):
            sample.timeStamp = stamp
            fill_union(sample.sampleValue, buffer.kind, value)
        return buffer.kind, list(samples)

    def _fabric(self, device: TapedDevice, reference: Any) -> int:
        info = getattr(reference, "_obj", reference)
        taped = self._answer(key_of(FABRIC, (device, int(getattr(info, "version", 0)))))
        try:
            for name, value in vars(taped).items():
                setattr(info, name, tuple(value) if isinstance(value, list) else value)
        except (TypeError, ValueError) as error:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN) from error
        return int(pynvml.NVML_SUCCESS)

    def _gpm_alloc(self) -> Any:
        self._answer("nvmlGpmSampleAlloc()")
        # An address that no one ever follows: it only distinguishes one sample from another.
        return ctypes.cast(ctypes.c_void_p(next(self._numbers)), pynvml.c_nvmlGpmSample_t)

    def _gpm_sample(self, device: TapedDevice, sample: Any) -> Any:
        self._answer(key_of(SAMPLE_GET, (device,)))
        self._sampled[identity(sample)] = device.index
        return sample

    def _gpm_metrics(self, request: Any) -> Any:
        first, second = (
            self._sampled.get(identity(sample)) for sample in (request.sample1, request.sample2)
        )
        if first is None or first != second:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        metrics = [request.metrics[number] for number in range(request.numMetrics)]
        keys = [f"{first},{metric.metricId}" for metric in metrics]
        for metric, entry in zip(metrics, self._entries(GPM, keys), strict=True):
            metric.nvmlReturn, *known = entry
            if known:
                metric.value = float("nan") if known[0] is None else known[0]
        return request

    def _event_set(self) -> object:
        self._answer("nvmlEventSetCreate()")
        return object()

    def _wait(self, _: object, timeout: int) -> Any:
        """The next event whose time has come; waits only where the clock moves by itself."""
        clock = self._clock.clock
        deadline = clock.monotonic() + timeout / 1000
        while (event := self._next_event()) is None:
            if not isinstance(clock, SystemClock) or clock.monotonic() >= deadline:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(NAP)
        return event

    def _next_event(self) -> Any:
        self._answer(key_of(WAIT, ()))
        with self._lock:
            waiting = self._tape.events[self._delivered : self._delivered + 1]
            if not waiting or waiting[0].at > self._clock.now():
                return None
            self._delivered += 1
        parts = dict(zip(EVENT_PARTS, waiting[0].parts, strict=True))
        return SimpleNamespace(device=TapedDevice(waiting[0].gpu), **parts)


class TapedFiles(FileTree):
    """Files as they were, answered from their series; a path never taped is not there."""

    def __init__(self, tape: Tape, clock: TapeClock) -> None:
        self._series = tape.series[CALLS]
        self._clock = clock

    def answer(self, key: str, what: str) -> Any:
        """Return the answer on the tape; FileNotFoundError if it never had one."""
        now = self._clock.now()
        answers = self._series.get(key)
        if answers is None:
            raise FileNotFoundError(ENOENT, "was never taped", what)
        answer = answers.at(now)
        return refuse(answer, what) if is_refusal(answer) else decode(answer)

    def read(self, path: str) -> str:
        return str(self.answer(f"read {path}", path))

    def names(self, path: str) -> list[str]:
        return [str(name) for name in self.answer(f"names {path}", path)]

    def link(self, path: str) -> str:
        return str(self.answer(f"link {path}", path))


class TapedPsutil:
    """psutil's counters as they were; `nowrap` was settled when they were taped."""

    def __init__(self, files: TapedFiles) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return lambda **options: self._files.answer(psutil_key(name, options), f"psutil.{name}")


class TapePlayer:
    """A taped machine; `nvml` and `host` are used in place of real ones."""

    def __init__(self, tape: Tape, clock: Clock) -> None:
        self._clock = TapeClock(clock)
        self._seconds = tape.seconds
        files = TapedFiles(tape, self._clock)
        self.nvml = TapedNvml(tape, self._clock)
        self.host = Host(files=files, psutil=cast(Psutil, TapedPsutil(files)))

    @property
    def finished(self) -> bool:
        return self._clock.passed(self._seconds)
