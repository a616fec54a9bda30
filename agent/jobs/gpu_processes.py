"""The processes on each GPU: written by the NVML worker, read by the host worker."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Labels = tuple[str, ...]


@dataclass(slots=True)
class GpuProcesses:
    """The compute processes of every GPU by its labels (index, UUID).

    Written by the worker that reads NVML and read by the worker that reads the host; each entry is
    replaced whole, so neither waits for the other.
    """

    _by_gpu: dict[Labels, tuple[int, ...]] = field(default_factory=dict)

    def settle(self, gpu: Labels, pids: Iterable[int]) -> None:
        """These processes are on the GPU now."""
        self._by_gpu[gpu] = tuple(pids)

    def keep(self, gpus: Iterable[Labels]) -> None:
        """Only these GPUs answer: forget those that are lost, and those whose index moved."""
        for gone in self._by_gpu.keys() - set(gpus):
            del self._by_gpu[gone]

    @property
    def at_rest(self) -> bool:
        """Whether there are GPUs, and no process is on any of them."""
        there = list(self._by_gpu.values())
        return bool(there) and not any(there)

    def __iter__(self) -> Iterator[tuple[Labels, tuple[int, ...]]]:
        return iter(list(self._by_gpu.items()))
