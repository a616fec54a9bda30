"""Who is on which GPU: the NVML lane writes it down, the host lane looks into those processes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Labels = tuple[str, ...]


class Occupant(NamedTuple):
    """One GPU as its processes matter to the host."""

    pids: tuple[int, ...] = ()
    hungry: bool = True  # its activity is unknown, or below what rules out a bottleneck before it


@dataclass(slots=True)
class Occupants:
    """The compute processes of every GPU by its labels (index, UUID).

    Written by the lane that reads NVML and read by the lane that reads the host; each entry is
    replaced whole, so neither waits for the other. `fed` is the activity, 0-1, from which nothing
    before the GPU can be what holds it up.
    """

    fed: float = 0.8
    _by_gpu: dict[Labels, Occupant] = field(default_factory=dict)

    def settle(self, gpu: Labels, pids: Iterable[int]) -> None:
        """These processes are on the GPU now."""
        self._by_gpu[gpu] = Occupant(tuple(pids), self._known(gpu).hungry)

    def feed(self, gpu: Labels, activity: float | None) -> None:
        """How active the GPU is, 0-1; None where that is not known."""
        hungry = activity is None or activity < self.fed
        self._by_gpu[gpu] = Occupant(self._known(gpu).pids, hungry)

    def keep(self, gpus: Iterable[Labels]) -> None:
        """Only these GPUs answer: forget those that are lost, and those whose index moved."""
        for gone in self._by_gpu.keys() - set(gpus):
            del self._by_gpu[gone]

    @property
    def at_rest(self) -> bool:
        """Whether there are GPUs, and no process is on any of them."""
        there = list(self._by_gpu.values())
        return bool(there) and not any(occupant.pids for occupant in there)

    def _known(self, gpu: Labels) -> Occupant:
        return self._by_gpu.get(gpu, Occupant())

    def __iter__(self) -> Iterator[tuple[Labels, Occupant]]:
        return iter(list(self._by_gpu.items()))
