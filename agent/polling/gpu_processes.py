"""The processes on each GPU: written by the NVML worker, read by the host worker."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.model import Labels


@dataclass(slots=True)
class GpuProcesses:
    """The compute processes of every GPU by its labels (index, UUID).

    Written by the worker that reads NVML and read by the worker that reads the host; each entry is
    replaced whole, so neither waits for the other.
    """

    _by_gpu: dict[Labels, tuple[int, ...]] = field(default_factory=dict)
    _divided: dict[Labels, tuple[str, ...]] = field(default_factory=dict)

    def set_processes(self, gpu: Labels, pids: Iterable[int]) -> None:
        self._by_gpu[gpu] = tuple(pids)

    def divide(self, gpu: Labels, uuids: Iterable[str]) -> None:
        self._divided[gpu] = tuple(uuids)

    def parents(self) -> dict[str, str]:
        """UUIDs of GPUs by their own, and by those of their MIG devices."""
        parents = {gpu[1]: gpu[1] for gpu in list(self._by_gpu)}
        for gpu, uuids in list(self._divided.items()):
            parents.update(dict.fromkeys(uuids, gpu[1]))
        return parents

    def keep(self, gpus: Iterable[Labels]) -> None:
        """Keep only the GPUs that answer: forget those that are lost, and those whose index
        moved."""
        kept = set(gpus)
        for gone in self._by_gpu.keys() - kept:
            del self._by_gpu[gone]
        for gone in self._divided.keys() - kept:
            del self._divided[gone]

    @property
    def at_rest(self) -> bool:
        """True if there are GPUs, and no process is on any of them."""
        there = list(self._by_gpu.values())
        return bool(there) and not any(there)

    def __iter__(self) -> Iterator[tuple[Labels, tuple[int, ...]]]:
        return iter(list(self._by_gpu.items()))
