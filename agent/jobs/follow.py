"""The processes behind one GPU, over a few readings: what they did in that time. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.hardware.processes import Stat

WINDOW = 5
"""Readings that are kept of each process, a second apart."""

BUSY_CORES = 0.02
"""Cores from which a process does something though every reading finds it asleep."""

RUNNING, WAITING = "R", "D"


class ProcessReading(NamedTuple):
    """One reading of a process: when (s), its state, its CPU seconds until then, and those of its
    children that have ended and were never followed."""

    at: float
    state: str
    seconds: float
    children: float


@dataclass(slots=True, eq=False)
class ProcessActivity:
    """One process that is followed; a process with the same pid that started later is another."""

    started: float
    readings: deque[ProcessReading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _ended: float | None = None  # s of all ended children, as the kernel counts them
    _grown: float = 0.0  # s that the last reading added to them
    _followed: float = 0.0  # s of followed children that ended, and are in there, or soon will be

    def take(self, at: float, stat: Stat) -> None:
        """One more reading. What it adds to the children's time is taken in by the next: by then it
        is known which of them were followed."""
        before = self.readings[-1].children if self.readings else 0.0
        new = max(0.0, self._grown - self._followed)
        self._followed = max(0.0, self._followed - self._grown)
        self._grown = 0.0 if self._ended is None else max(0.0, stat.ended - self._ended)
        self._ended = stat.ended
        self.readings.append(ProcessReading(at, stat.state, stat.seconds, before + new))

    def lose(self, seconds: float) -> None:
        """A child that was followed has ended, after so many CPU seconds."""
        self._followed += seconds

    @property
    def at(self) -> float:
        """When it was last read."""
        return self.readings[-1].at

    @property
    def cores(self) -> float | None:
        """CPU seconds a second over the window; None before two readings."""
        return self._rate(lambda reading: reading.seconds)

    @property
    def recent_cores(self) -> float:
        """The same over the last two seconds or so; 0 before two readings."""
        first, last = self.readings[max(0, len(self.readings) - 3)], self.readings[-1]
        span = last.at - first.at
        return (last.seconds - first.seconds) / span if span > 0 else 0.0

    @property
    def child_cores(self) -> float | None:
        """CPU seconds a second of children too short-lived to be followed."""
        return self._rate(lambda reading: reading.children)

    def _rate(self, of: Callable[[ProcessReading], float]) -> float | None:
        first, last = self.readings[0], self.readings[-1]
        return (of(last) - of(first)) / (last.at - first.at) if last.at > first.at else None

    def share(self, state: str) -> float:
        """Share of the readings that found it in this state."""
        return sum(reading.state == state for reading in self.readings) / len(self.readings)

    @property
    def active(self) -> bool:
        """Whether it did anything, or waited for a disk: trackers and loggers that only sleep
        do not."""
        states = {reading.state for reading in self.readings}
        return bool(states & {RUNNING, WAITING}) or (self.cores or 0.0) >= BUSY_CORES


class LoaderActivity(NamedTuple):
    """What the loaders of a GPU do: how many do anything, their cores together, and the mean of
    the shares of time for which each waits or runs (None where there are none)."""

    number: int
    cores: float
    waiting: float | None
    running: float | None


def cores(launchers: Iterable[ProcessActivity]) -> float | None:
    """Cores that processes use together; None before two readings at any."""
    known = [follow.cores for follow in launchers if follow.cores is not None]
    return sum(known) if known else None


def child_cores(followed: Iterable[ProcessActivity]) -> float:
    """Cores that the short-lived children of processes use together."""
    return sum(follow.child_cores or 0.0 for follow in followed)


def waiting(launchers: Iterable[ProcessActivity]) -> float:
    """Share of readings in which any of the processes was in uninterruptible sleep."""
    readings: dict[float, bool] = {}
    for follow in launchers:
        for reading in follow.readings:
            readings[reading.at] = readings.get(reading.at, False) or reading.state == WAITING
    return sum(readings.values()) / len(readings)


def loading(followed: Iterable[ProcessActivity]) -> LoaderActivity:
    """What the loaders do.

    A loader runs for at least the share of a core that it uses: one look in a second may always
    meet it between two batches.
    """
    active = [follow for follow in followed if follow.active]
    used = [follow.cores or 0.0 for follow in active]
    runs = [min(1.0, max(f.share(RUNNING), share)) for f, share in zip(active, used, strict=True)]
    return LoaderActivity(
        len(active), sum(used), _mean([f.share(WAITING) for f in active]), _mean(runs)
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
