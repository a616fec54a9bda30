"""A DGX H100 of which some GPUs hang, fail, fall off and return at random.

Nothing of the GPUs that are well may be lost, neither a sample nor a second. The machine's clock
stands still while a thread works, so that a busy machine loses nothing either.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.ill_gpus import IllGpus
from tests.support.machine_controls import restore

GPUS, ILL = 8, (2, 5, 6)
CALLS = ("PowerUsage", "Temperature", "ClockInfo", "FieldValues", "UtilizationRates", "MemoryInfo")
CODES = (999, 10, 17, 23)  # unknown, timeout, operating system, insufficient resources
MOST_SLOW, MOST_TROUBLE, MOST_PAUSE = 60.0, 90.0, 40.0  # s


@dataclass
class Troubles:
    """One trouble after the other for each ill GPU, drawn by chance."""

    bench: IllGpus
    chance: random.Random
    count: int = 0
    _until: dict[int, float] = field(default_factory=dict)
    _ill: set[int] = field(default_factory=set)

    def step(self, at: float) -> None:
        """Begin and end what is due."""
        for gpu in ILL:
            until = self._until.setdefault(gpu, self.chance.uniform(3.0, MOST_PAUSE))
            if at < until:
                continue
            if gpu in self._ill:
                self._end(gpu)
                self._until[gpu] = at + self.chance.uniform(1.0, MOST_PAUSE)
            else:
                self._begin(gpu)
                self._until[gpu] = at + self.chance.uniform(1.0, MOST_TROUBLE)

    def _begin(self, gpu: int) -> None:
        self._ill.add(gpu)
        self.count += 1
        machine = self.bench.machine
        kind = self.chance.choice(("slow", "slow", "some", "lost"))
        if kind == "slow":
            self.bench.slow(gpu, self.chance.choice((0.05, 0.3, 1.5, 5.0, MOST_SLOW)))
        elif kind == "some":
            for call in self.chance.sample(CALLS, 3):
                machine.driver.fail(f"nvmlDeviceGet{call}", self.chance.choice(CODES), gpu)
        else:
            machine.lose(gpu)

    def _end(self, gpu: int) -> None:
        self._ill.discard(gpu)
        machine = self.bench.machine
        self.bench.slow(gpu, 0.0)
        for call in CALLS:
            machine.driver.fail(f"nvmlDeviceGet{call}", None, gpu)
        if machine.gpus[gpu].lost:
            restore(machine, gpu)


def soak(minutes: float, seed: int) -> tuple[IllGpus, Troubles]:
    """Watch such a machine for so many minutes of its clock."""
    bench = IllGpus("dgx-h100:training")
    troubles = Troubles(bench, random.Random(seed))
    return bench.run(minutes * 60, troubles.step), troubles


def wrong(bench: IllGpus) -> Iterator[str]:
    """Return the losses of the healthy GPUs."""
    unobserved = bench.unobserved()
    for gpu in set(range(GPUS)) - set(ILL):
        if bench.lost(gpu):
            yield f"GPU {gpu} lost {bench.lost(gpu)} samples of {bench.ticks}"
        if unobserved[str(gpu)]:
            yield f"{unobserved[str(gpu)]:.1f} s of GPU {gpu} are unobserved"
    if bench.threads > len(ILL) + 1:
        yield f"{bench.threads} threads read GPUs"
