"""How many cores processes may use: their affinity, and the CPU quota of their cgroups."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from agent.hardware import processes
from agent.hardware.files import WIDEST, FileTree

CGROUPS = "/sys/fs/cgroup"

KEPT = 60.0
"""Seconds for which an answer holds: few processes ever change their affinity."""

SPREAD = 20
"""Seconds over which questions are spread, so that loaders that came together take turns."""

LONGEST_CPU = 5  # digits

Reader = Callable[[FileTree, str], float | None]
"""From the folder of a cgroup to the cores that it grants."""


def cpus(text: str) -> int:
    """The CPUs in a list such as `0-3,8`, each a bit; none where it is no such list."""
    found = 0
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not _is_cpu(first) or not _is_cpu(last or first):
            return 0
        found |= (1 << int(last or first) + 1) - (1 << int(first))
    return found


def _is_cpu(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_CPU


def quota(files: FileTree, cgroup: str) -> float | None:
    """Cores that the cgroup of a process and those above it grant at most; None for no bound.

    `cgroup` is the text of /proc/PID/cgroup.
    """
    granted = [
        cores
        for line in cgroup.splitlines()
        for folder, read in _hierarchies(line)
        for above in _upwards(folder, line.partition(":")[2].partition(":")[2])
        if (cores := read(files, above)) is not None
    ]
    return min(granted, default=None)


def _hierarchies(line: str) -> Iterator[tuple[str, Reader]]:
    """Where the CPU quota of this line of /proc/PID/cgroup stands, and how it is written."""
    number, _, rest = line.partition(":")
    controllers = rest.partition(":")[0]
    if number == "0":
        yield CGROUPS, _version_2
    elif "cpu" in controllers.split(","):
        yield f"{CGROUPS}/{controllers}", _version_1


def _upwards(folder: str, path: str) -> Iterator[str]:
    """The folder of a cgroup, and those of all above it."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # outside of what this cgroup namespace shows
        parts = []
    for depth in range(len(parts), -1, -1):
        yield "/".join([folder, *parts[:depth]])


def _version_2(files: FileTree, folder: str) -> float | None:
    try:
        most, period = files.read(f"{folder}/cpu.max").split()
        return int(most) / int(period)
    except (OSError, ValueError, ArithmeticError):  # no such file, or "max"
        return None


def _version_1(files: FileTree, folder: str) -> float | None:
    try:
        most = int(files.read(f"{folder}/cpu.cfs_quota_us"))
        period = int(files.read(f"{folder}/cpu.cfs_period_us"))
    except (OSError, ValueError):
        return None
    return most / period if 0 < most < WIDEST and period > 0 else None  # -1: no quota


class _Answer(NamedTuple):
    until: float
    cpus: int  # each a bit
    quota: float | None


Named = tuple[int, float]
"""A process by its pid and when it started."""


class Allowance:
    """What processes may use; asked when one arrives, and now and then."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._answers: dict[Named, _Answer] = {}

    def cores(
        self, launchers: Iterable[Named], loaders: Iterable[Named], at: float
    ) -> float | None:
        """Cores that launchers and their loaders may use together; None where nobody tells."""
        first = [self._answer(process, at, launcher=True) for process in launchers]
        rest = [self._answer(process, at, launcher=False) for process in loaders]
        allowed = 0
        for answer in (*first, *rest):
            allowed |= answer.cpus
        if not allowed:
            return None
        bounds = [answer.quota for answer in first if answer.quota is not None]
        if not first or len(bounds) < len(first):  # one that is not bounded may use them all
            return float(allowed.bit_count())
        return min(float(allowed.bit_count()), max(bounds))

    def forget(self, at: float) -> None:
        """Drop the answers that hold no longer."""
        for process in [p for p, answer in self._answers.items() if answer.until < at]:
            del self._answers[process]

    def _answer(self, process: Named, at: float, *, launcher: bool) -> _Answer:
        answer = self._answers.get(process)
        if answer is None or answer.until < at:
            answer = self._answers[process] = self._ask(process[0], at, launcher=launcher)
        return answer

    def _ask(self, pid: int, at: float, *, launcher: bool) -> _Answer:
        """Loaders share the cgroup of their launcher."""
        try:
            text = processes.status(self._files, pid).get("Cpus_allowed_list", "")
        except OSError:
            text = ""
        bound = quota(self._files, processes.cgroup(self._files, pid)) if launcher else None
        return _Answer(at + KEPT - pid % SPREAD, cpus(text), bound)
