"""One kind of machine of a fleet: what its agent reported as it came, then its last minute again.

An agent over a simulated DGX-1 costs some 15 ms of CPU a tick. It lives for a little more than two
minutes, after which it shows what it is like; then its last minute is repeated, and costs nothing.
Gauges repeat; counters go on growing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.model import Kind, Sample

LIFETIME = 130
"""Ticks of a second: every scenario shows its trait within a minute, and a minute is kept."""

EVERY, KEPT = 5, 12  # Ticks from one moment that is kept to the next, and how many there are

Key = tuple[str, tuple[str, ...]]
Moment = tuple[Sample, ...]


@dataclass(slots=True, eq=False)
class FleetMachine:
    """Metrics of one simulated agent. Times are seconds of the fleet's clock."""

    ticks: int = 0
    newest: Moment = ()
    moments: list[Moment] = field(default_factory=list)  # one more than are played: the next first
    growth: dict[Key, float] = field(default_factory=dict)  # of counters, over all of them
    since: float = 0.0  # when they began to be played

    @property
    def lives(self) -> bool:
        return self.ticks < LIFETIME

    def take(self, samples: Iterable[Sample], now: float) -> None:
        self.ticks += 1
        self.newest = tuple(samples)
        if self.ticks > LIFETIME - EVERY * KEPT - 1 and (LIFETIME - self.ticks) % EVERY == 0:
            self.moments.append(self.newest)
        if not self.lives:
            first, last = (dict(_counters(m)) for m in (self.moments[0], self.moments[-1]))
            self.growth = {key: last[key] - first[key] for key in first.keys() & last.keys()}
            self.since = now

    def samples(self, now: float) -> Iterable[Sample]:
        return self.newest if self.lives else self._again(now)

    def _again(self, now: float) -> Iterator[Sample]:
        """The moments in turn, with what counters had grown by whenever they came before."""
        # The last moment that lived is the first of the next time.
        times, place = divmod(int((now - self.since) / EVERY) + KEPT, KEPT)
        for sample in self.moments[place]:
            grown = self.growth.get((sample.metric.name, sample.labels), 0.0)
            yield sample._replace(value=sample.value + times * grown) if grown else sample


def _counters(moment: Moment) -> Iterator[tuple[Key, float]]:
    for metric, labels, value in moment:
        if metric.kind is Kind.COUNTER:
            yield (metric.name, labels), value
