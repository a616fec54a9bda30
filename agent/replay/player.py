"""The player: answers from a tape what the machine answered, at the time it did."""

from collections.abc import Mapping
from errno import ENOENT
from typing import Any

from agent.clock import Clock
from agent.hardware.files import FileTree
from agent.hardware.host import Host
from agent.replay.answers import CALLS, decode, is_refusal, key_of, refuse
from agent.replay.nvml_player import TapedNvml
from agent.replay.reading import Tape
from agent.replay.tape_clock import TapeClock


class TapedHost:
    """The questions of files and psutil, answered from their series."""

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


class TapedFiles(FileTree):
    """Files as they were; a path never taped is not there."""

    def __init__(self, taped: TapedHost) -> None:
        self._taped = taped

    def read(self, path: str) -> str:
        return str(self._taped.answer(f"read {path}", path))

    def names(self, path: str) -> list[str]:
        return [str(name) for name in self._taped.answer(f"names {path}", path)]

    def link(self, path: str) -> str:
        return str(self._taped.answer(f"link {path}", path))


class TapedPsutil:
    """psutil's counters as they were; `nowrap` was settled when they were taped."""

    def __init__(self, taped: TapedHost) -> None:
        self._taped = taped

    def disk_io_counters(self, perdisk: bool = False, nowrap: bool = True) -> Mapping[str, Any]:  # noqa: ARG002
        return self._counters(key_of("disk_io_counters", (perdisk,)))

    def net_io_counters(self, pernic: bool = False, nowrap: bool = True) -> Mapping[str, Any]:  # noqa: ARG002
        return self._counters(key_of("net_io_counters", (pernic,)))

    def cpu_times(self) -> Any:
        return self._taped.answer("cpu_times()", "psutil.cpu_times")

    def _counters(self, key: str) -> Mapping[str, Any]:
        counters: Mapping[str, Any] = self._taped.answer(key, f"psutil.{key}")
        return counters


class TapePlayer:
    """A taped machine; `nvml` and `host` are used in place of real ones."""

    def __init__(self, tape: Tape, clock: Clock) -> None:
        self._clock = TapeClock(clock)
        self._seconds = tape.seconds
        taped = TapedHost(tape, self._clock)
        self.nvml = TapedNvml(tape, self._clock)
        self.host = Host(files=TapedFiles(taped), psutil=TapedPsutil(taped))

    @property
    def finished(self) -> bool:
        """True if the tape has run out; its last answers stay."""
        return self._clock.passed(self._seconds)
