"""The processes behind each GPU, found and read once a second."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from agent.hardware import processes
from agent.hardware.files import FileTree
from agent.jobs.cores import Allowance
from agent.jobs.follow import WINDOW, ProcessActivity
from agent.model import Labels

SEARCH_EVERY = 2.0
"""Seconds between two searches for the loaders of one GPU."""

MOST = 128
"""Loaders that are followed of one GPU."""


@dataclass(slots=True)
class _Found:
    """What the last search for loaders found."""

    launchers: tuple[int, ...]
    loaders: list[int]
    due: float


class GpuProcessGroup(NamedTuple):
    """The processes of one GPU, by pid; `allowed` cores are None where unknown."""

    launchers: Mapping[int, ProcessActivity]
    loaders: Mapping[int, ProcessActivity]
    allowed: float | None


class GpuProcessGroups:
    """Follows processes from reading to reading, each once, however many GPUs it holds."""

    def __init__(self, files: FileTree) -> None:
        self._files = files
        self._descent = processes.Descent(files)
        self._allowance = Allowance(files)
        self._follows: dict[int, ProcessActivity] = {}
        self._parents: dict[int, int] = {}
        self._found: dict[Labels, _Found] = {}

    def read(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> GpuProcessGroup:
        """Read the processes of one GPU now (s). `foreign` are the processes of all GPUs: one
        rank may be the parent of another."""
        launchers = {pid: follow for pid in pids if (follow := self._follow(pid, at))}
        below = self._below(gpu, pids, foreign, at)
        loaders = {pid: follow for pid in below if (follow := self._follow(pid, at))}
        allowed = self._allowance.cores(_named(launchers), _named(loaders), at)
        return GpuProcessGroup(launchers, loaders, allowed)

    def forget(self, gpus: Iterable[Labels], at: float) -> None:
        """Drop what was not read for a window, and the GPUs that are gone."""
        for pid in [p for p, follow in self._follows.items() if follow.at < at - WINDOW]:
            del self._follows[pid]
            self._parents.pop(pid, None)
        for gpu in self._found.keys() - set(gpus):
            del self._found[gpu]
        self._allowance.forget(at)

    def _below(
        self, gpu: Labels, pids: tuple[int, ...], foreign: Set[int], at: float
    ) -> Sequence[int]:
        """The loaders of a GPU; searched for now and then, each GPU in its turn."""
        found = self._found.get(gpu)
        if found is None or found.launchers != pids:
            turn = 1 + len(self._found) % SEARCH_EVERY
            found = self._found[gpu] = _Found(pids, self._search(pids, foreign, at), at + turn)
        elif found.due <= at:
            found.loaders, found.due = self._search(pids, foreign, at), at + SEARCH_EVERY
        return found.loaders

    def _search(self, pids: tuple[int, ...], foreign: Set[int], at: float) -> list[int]:
        return self._descent.below(pids, foreign, MOST, at)

    def _follow(self, pid: int, at: float) -> ProcessActivity | None:
        """One reading of a process, shared by all its GPUs; None where it is not there any more."""
        known = self._follows.get(pid)
        if known is not None and known.at == at:
            return known
        try:
            stat = processes.stat(self._files, pid)
        except OSError:
            self._lose(pid)
            return None
        if known is None or known.started != stat.started:
            self._lose(pid)
            known = self._follows[pid] = ProcessActivity(stat.started)
        known.take(at, stat)
        self._parents[pid] = stat.parent
        return known

    def _lose(self, pid: int) -> None:
        """A process has ended: the kernel adds its time to that of its parent's children."""
        gone, parent = self._follows.pop(pid, None), self._parents.pop(pid, None)
        above = self._follows.get(parent) if parent is not None else None
        if gone is not None and above is not None:
            above.lose(gone.readings[-1].seconds)


def _named(follows: dict[int, ProcessActivity]) -> list[tuple[int, float]]:
    return [(pid, follow.started) for pid, follow in follows.items()]
