"""The recorder: stands between sources and hardware, passes every answer on, and tapes it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agent.clock import Clock
from agent.config.atomic_file import atomic_write
from agent.hardware.files import FileTree
from agent.hardware.host import Host, Psutil
from agent.replay.answers import CALLS, Json, encode, key_of, refusal
from agent.replay.masks import CGROUPS, HOST_NAME_FILES, MOUNTS, Masks, untaped
from agent.replay.nvml_recorder import RecordingNvml
from agent.replay.tape_writer import TapeWriter

Answer = TypeVar("Answer")


def asked(
    writer: TapeWriter, key: str, ask: Callable[[], Answer], write: Callable[[Any], Json]
) -> Answer:
    """Ask the host, and note what `write` makes of the answer, or else the errno."""
    writer.begin()
    try:
        answer = ask()
    except OSError as error:
        writer.note(CALLS, key, refusal(error))
        raise
    writer.note(CALLS, key, write(answer))
    return answer


class RecordingFiles(FileTree):
    """Files whose content is noted, without what would identify the machine."""

    def __init__(self, files: FileTree, writer: TapeWriter, masks: Masks) -> None:
        self._files = files
        self._writer = writer
        self._masks = masks
        for path in HOST_NAME_FILES:
            self._learn(path)

    def read(self, path: str) -> str:
        if untaped(path):
            return self._files.read(path)
        return asked(
            self._writer,
            self._key("read", path),
            lambda: self._files.read(path),
            lambda text: self._masked(path, text),
        )

    def names(self, path: str) -> list[str]:
        return asked(
            self._writer,
            self._key("names", path),
            lambda: self._files.names(path),
            lambda names: [*self._named(path, names)],
        )

    def link(self, path: str) -> str:
        return asked(
            self._writer, self._key("link", path), lambda: self._files.link(path), self._masks.text
        )

    def _key(self, question: str, path: str) -> str:
        return f"{question} {self._masks.path(path)}"

    def _named(self, path: str, names: list[str]) -> Iterator[Json]:
        inside = f"{path}/".startswith(CGROUPS)
        masked = map(self._masks.text, names)
        yield from sorted(map(self._masks.group, masked)) if inside else masked

    def _masked(self, path: str, text: str) -> str:
        if MOUNTS.match(path):
            return self._masks.text(self._masks.mounts(text))
        return self._masks.of_process(path, self._masks.text(text))

    def _learn(self, path: str) -> None:
        try:
            self._masks.host_name(self._files.read(path))
        except OSError:
            return


class RecordingPsutil:
    """psutil whose counters are noted."""

    def __init__(self, psutil: Psutil, writer: TapeWriter) -> None:
        self._psutil = psutil
        self._writer = writer

    def disk_io_counters(self, perdisk: bool = False, nowrap: bool = True) -> Mapping[str, Any]:
        key = key_of("disk_io_counters", (perdisk,))
        return self._ask(key, lambda: self._psutil.disk_io_counters(perdisk, nowrap))

    def net_io_counters(self, pernic: bool = False, nowrap: bool = True) -> Mapping[str, Any]:
        key = key_of("net_io_counters", (pernic,))
        return self._ask(key, lambda: self._psutil.net_io_counters(pernic, nowrap))

    def cpu_times(self) -> Any:
        return self._ask("cpu_times()", self._psutil.cpu_times)

    def _ask(self, key: str, ask: Callable[[], Answer]) -> Answer:
        return asked(self._writer, key, ask, encode)


class TapeRecorder:
    """Wraps a machine's backends; `nvml` and `host` are used in their place."""

    def __init__(self, nvml: Any, host: Host, clock: Clock) -> None:
        masks = Masks()
        self._writer = TapeWriter(clock)
        self.nvml = RecordingNvml(nvml, self._writer, masks)
        self.host = Host(
            files=RecordingFiles(host.files, self._writer, masks),
            psutil=RecordingPsutil(host.psutil, self._writer),
            kernel_log=host.kernel_log,  # passed on, not taped: it names people's programs
            nccl=host.nccl,  # the same: it names hosts
        )

    @property
    def full(self) -> bool:
        """True if the tape has reached its largest size and takes no more."""
        return self._writer.full

    def write(self, path: str | Path) -> None:
        """Write the tape up to now; on failure (BadInput) `path` stays as it was."""
        atomic_write(Path(path), self.content())

    def content(self) -> bytes:
        return self._writer.content()
