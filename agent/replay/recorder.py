"""Records every response of the hardware, and returns it to the sources."""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pynvml

from agent.clock import Clock
from agent.config.atomic_file import atomic_write
from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.hardware.kernel_log import KernelLog, LogLine, nameless, parsed
from agent.hardware.nvml import address_of
from agent.hardware.sockets import Found, Sockets, TcpSocket
from agent.replay import answers
from agent.replay.answers import CALLS, FIELDS, GPM, LOG, Json, TapedDevice, TapeWriter
from agent.replay.masks import CGROUPS, HOST_NAME_FILES, Masks, untaped


class RecordingNvml:
    """Wraps an NVML library and records the responses of its functions. Functions whose responses
    have a special format in the recording have their own methods. Constants are unchanged."""

    def __init__(self, nvml: Any, writer: TapeWriter, masks: Masks) -> None:
        self._nvml = nvml
        self._writer = writer
        self._masks = masks
        self._sampled: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._texts = {"nvmlDeviceGetUUID": masks.uuid, "nvmlDeviceGetSerial": masks.serial}

    def __getattr__(self, name: str) -> Any:
        if name in answers.UNTAPED:
            raise AttributeError(f"not taped: {answers.UNTAPED[name]}")
        found = getattr(self._nvml, name)
        called = name.startswith("nvml") and callable(found) and not isinstance(found, type)
        if not called:
            return found
        if special := getattr(RecordingNvml, f"_{name}", None):
            return partial(special, self)

        def write(answer: Any) -> Json:
            plain = answers.encode(answer)
            mask = self._texts.get(name, self._masks.text)
            return mask(plain) if isinstance(plain, str) else plain

        return partial(self._ask, name, write=write)

    def _ask(
        self,
        name: str,
        *args: Any,
        write: Callable[[Any], Json] = lambda _: None,  # opaque responses are recorded as None
        **keywords: Any,
    ) -> Any:
        """Return NVML's response to a call. Record it as encoded by `write`, or the refusal."""
        key = answers.key_of(name, args, keywords)
        answer = self._raw([(CALLS, key)], name, *args, **keywords)
        self._writer.note(CALLS, key, write(answer))
        return answer

    def _raw(
        self, keys: list[tuple[str, str]], name: str, *args: Any, hangs: str = "", **keywords: Any
    ) -> Any:
        """Return NVML's response, which the caller records. Record a refusal under all `keys`, and
        a call that hangs as a hang of its GPU, or else of `hangs`."""
        real = [arg.real if isinstance(arg, TapedDevice) else arg for arg in args]
        try:
            with self._writer.asking(hangs or answers.hangs_with(name, args)):
                return getattr(self._nvml, name)(*real, **keywords)
        except answers.NVML_FAILURES as error:
            for section, key in keys:
                self._writer.note(section, key, answers.refusal(error))
            raise

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> TapedDevice:
        return TapedDevice(index, self._ask("nvmlDeviceGetHandleByIndex", index))

    def _nvmlDeviceGetFieldValues(
        self, device: TapedDevice, wanted: list[int | tuple[int, int]]
    ) -> Any:
        keys = answers.field_keys(device.index, wanted)
        questions = [(FIELDS, key) for key in keys]
        values = self._raw(questions, "nvmlDeviceGetFieldValues", device, wanted)
        first = dict(zip(keys, values, strict=True))
        for key, value in first.items():
            kind = value.valueType
            good = value.nvmlReturn == pynvml.NVML_SUCCESS
            number = getattr(value.value, answers.union_member(kind))
            entry = [0, kind, number] if good else [value.nvmlReturn]
            if key.endswith(",again") and good:  # microseconds since the first answer
                entry.append(value.timestamp - first[key.removesuffix(",again")].timestamp)
            self._writer.note(FIELDS, key, entry)
        return values

    def _nvmlDeviceGetSamples(self, device: TapedDevice, sampling: int, last_seen: int) -> Any:
        key = answers.key_of("nvmlDeviceGetSamples", (device, sampling))
        try:
            with self._writer.asking(answers.hangs_with("nvmlDeviceGetSamples", (device,))):
                kind, rows = self._nvml.nvmlDeviceGetSamples(device.real, sampling, last_seen)
        except answers.NVML_FAILURES as error:
            # A buffer without new samples is not a refusal, because the buffer exists.
            empty = getattr(error, "value", None) == pynvml.NVML_ERROR_NOT_FOUND
            self._writer.note(CALLS, key, None if empty else answers.refusal(error))
            raise
        self._writer.note(CALLS, key, None)
        member = answers.union_member(kind)
        pairs = [(int(row.timeStamp), getattr(row.sampleValue, member)) for row in rows]
        self._writer.samples(key, kind, pairs)
        return kind, rows

    def _nvmlGpmSampleAlloc(self) -> Any:
        return self._ask("nvmlGpmSampleAlloc")

    def _nvmlGpmSampleFree(self, sample: Any) -> Any:
        self._sampled.pop(address_of(sample), None)
        return self._nvml.nvmlGpmSampleFree(sample)

    def _nvmlGpmSampleGet(self, device: TapedDevice, sample: Any) -> Any:
        self._sampled[address_of(sample)] = device.index
        return self._ask("nvmlGpmSampleGet", device, sample)

    def _nvmlGpmMetricsGet(self, request: Any) -> Any:
        index = self._sampled.get(address_of(request.sample2), -1)
        metrics = [request.metrics[number] for number in range(request.numMetrics)]
        keys = [(GPM, key) for key in answers.gpm_keys(self._asked, index, metrics)]
        answer = self._raw(keys, "nvmlGpmMetricsGet", request, hangs=f"gpu {index}")
        for (section, key), metric in zip(keys, metrics, strict=True):
            good = metric.nvmlReturn == pynvml.NVML_SUCCESS
            value = metric.value  # stored with six significant digits
            six_digits = float(f"{value:.6g}") if math.isfinite(value) else None
            entry: Json = [0, six_digits] if good else [metric.nvmlReturn]
            self._writer.note(section, key, entry)
        return answer


Answer = TypeVar("Answer")


class RecordingFiles(FileTree):
    """Reads files and records their masked contents, but not of files that identify a machine."""

    def __init__(self, files: FileTree, writer: TapeWriter, masks: Masks) -> None:
        self._files = files
        self._writer = writer
        self._masks = masks
        for path in HOST_NAME_FILES:
            with suppress(OSError):
                masks.host_name(files.read(path))

    def asked(self, key: str, ask: Callable[[], Answer], write: Callable[[Any], Json]) -> Answer:
        """Return the host's response from `ask`. Record it as encoded by `write`, or the errno."""
        try:
            with self._writer.asking(key):
                answer = ask()
        except OSError as error:
            self._writer.note(CALLS, key, answers.refusal(error))
            raise
        self._writer.note(CALLS, key, write(answer))
        return answer

    def read(self, path: str) -> str:
        if untaped(path):
            return self._files.read(path)

        masked = partial(self._masks.contents, path)
        return self.asked(self._key("read", path), lambda: self._files.read(path), masked)

    def names(self, path: str) -> list[str]:
        def masked(names: list[str]) -> Json:
            if f"{path}/".startswith(CGROUPS):
                names = sorted(map(self._masks.group, names))
            return [*map(self._masks.text, names)]

        return self.asked(self._key("names", path), lambda: self._files.names(path), masked)

    def link(self, path: str) -> str:
        ask = lambda: self._files.link(path)  # noqa: E731
        return self.asked(self._key("link", path), ask, self._masks.text)

    def sockets(self, ask: Sockets, cgroups: Collection[str]) -> Found:
        """Return the sockets of cgroups from `ask`. Record those of each cgroup apart."""
        once = cache(lambda: ask(cgroups))

        def masked(found: list[TcpSocket]) -> Json:
            mask = self._masks.address
            ends = ((mask(one.address), mask(one.remote_address)) for one in found)
            pairs = zip(found, ends, strict=True)
            return [[*one._replace(address=a, remote_address=b)] for one, (a, b) in pairs]

        def of(path: str) -> list[TcpSocket]:
            key = f"sockets {self._masks.group(path)}"
            return self.asked(key, lambda: once().get(path, []), masked)

        return {path: of(path) for path in cgroups}

    def _key(self, question: str, path: str) -> str:
        return f"{question} {self._masks.path(path)}"


class RecordingLog(KernelLog):
    """Reads a kernel log and records its lines about GPUs, without names of programs."""

    def __init__(self, kernel_log: KernelLog, writer: TapeWriter, masks: Masks) -> None:
        self._log, self._writer, self._masks = kernel_log, writer, masks
        self._taped: list[Json] = []

    def lines(self) -> Sequence[LogLine]:
        with self._writer.asking(LOG):
            lines = self._log.lines()
        self._taped += [[at, self._masks.text(nameless(t))] for at, t in lines if parsed(t)]
        self._writer.note(CALLS, LOG, [*self._taped])
        return lines


class TapeRecorder:
    """Records the responses of an NVML library and a host. Its `nvml` and `host` wrap them."""

    def __init__(self, nvml: Any, host: Host, clock: Clock) -> None:
        masks = Masks()
        self.writer = TapeWriter(clock)
        self.nvml = RecordingNvml(nvml, self.writer, masks)
        files = RecordingFiles(host.files, self.writer, masks)

        def counters(name: str, **options: Any) -> Any:
            ask = partial(getattr(host.psutil, name), **options)
            return files.asked(answers.key_of(name, (), options), ask, answers.encode)

        psutil = SimpleNamespace(**{name: partial(counters, name) for name in answers.PSUTIL})
        self.host = Host(
            files=files,
            psutil=psutil,
            sockets=partial(files.sockets, host.sockets),
            kernel_log=RecordingLog(host.kernel_log, self.writer, masks),
        )

    def write(self, path: str | Path) -> None:
        """Write the recording so far to `path`, or raise BadInput and keep the old file."""
        atomic_write(Path(path), self.writer.content())
