"""One GPU's energy by state and cause: what its counter grew by, over the seconds in between."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from agent.bounds import POWER_SAMPLES
from agent.model import PAIRS, Cause, Pair, State, TimedSeries, counter
from agent.polling import intervals
from agent.sources.power import ENERGY

Parts = Mapping[Pair, float]

UNOBSERVED = "unobserved"
"""The state of energy in seconds of which no state is known."""

STATE_JOULES = counter(
    "dgx_gpu_state_joules_total",
    "Energy of the GPU in joules by state and cause since the agent detected it. The growth of the "
    "energy counter is divided over the seconds by the power drawn, and within a second over its "
    "shares by 20 ms power samples if these are read, else evenly; seconds without a state are "
    "`unobserved`. The sum is the growth of dgx_gpu_energy_joules_total: of GPUs without an energy "
    "counter (P100 and older) that is the integral of power.",
    "agent/diagnosis/energy.py",
    (*ENERGY.labels, "state", "cause"),
    fastest=ENERGY.fastest,
)

HUNGER = (State.IDLE, State.HELD, State.STARVED, State.HUNG, State.COMMUNICATING, State.THROTTLED)
PEER: Pair = (State.STARVED, Cause.PEER)


def draws(pair: Pair) -> int:
    """The rank of a state by the power that it draws: at rest, spinning, moving data, at work."""
    if pair == PEER:
        return HUNGER.index(State.HUNG)
    return HUNGER.index(pair[0]) if pair[0] in HUNGER else len(HUNGER)


def split(parts: Parts, watts: Sequence[float]) -> dict[Pair, float]:
    """Shares of a second's energy: the states that draw little have its lowest samples."""
    there = {pair: part for pair, part in parts.items() if part > 0}
    total = sum(watts)
    if len(there) < 2 or total <= 0:
        return there
    sums = [0.0, *accumulate(sorted(watts))]

    def below(share: float) -> float:
        place = min(share * len(watts), len(watts) - 1e-9)
        whole = int(place)
        return sums[whole] + (sums[whole + 1] - sums[whole]) * (place - whole)

    found, reached = {}, 0.0
    for pair in sorted(there, key=draws):
        found[pair] = (below(reached + there[pair]) - below(reached)) / total
        reached += there[pair]
    return found


class Tick(NamedTuple):
    """So many seconds until `at`; `parts` None where nothing is known of them."""

    at: float
    seconds: float
    parts: Parts | None
    watts: float


class CounterGrowth(NamedTuple):
    """Growth of the energy counter until `at`."""

    at: float
    joules: float


@dataclass(slots=True)
class EnergyByState:
    """Joules by state and cause, None for those of seconds without one.

    Between two readings of the counter the power drawn says how much it may be; a reading decides.
    """

    joules: dict[Pair | None, float] = field(default_factory=dict)
    counted: float | None = None  # the counter, as it was last read
    _read_at: float | None = None
    _due: CounterGrowth | None = None
    _waiting: deque[Tick] = field(default_factory=deque)
    _estimated: dict[Pair | None, float] = field(default_factory=dict)  # since the last reading
    _samples: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=POWER_SAMPLES)
    )
    _sampled: float = 0.0  # when the newest of them was taken
    _watts: float = 1.0

    def sample(self, series: TimedSeries, now: float) -> None:
        """Take in power samples (W) of 20 ms, the newest of which was taken now: the driver's clock
        has another origin, which moves where a user sets the time."""
        times = (now - series.times[-1] + at for at in series.times)
        self._samples.extend(zip(times, series.values, strict=True))
        self._sampled = now

    def count(self, at: float, value: float) -> None:
        """Take in what the counter says; it begins again with the driver."""
        if at == self._read_at:
            return
        if self._due is not None:
            self._settle(self._due)
        if self.counted is None:
            self._waiting.clear()
            self._samples.clear()
        else:
            self._due = CounterGrowth(at, value - self.counted if value >= self.counted else value)
        self.counted, self._read_at = value, at

    def enter(self, parts: Parts | None, seconds: float, now: float, watts: float | None) -> None:
        """Take in a tick of so many seconds that ends now."""
        self._watts = watts or self._watts
        if seconds > 0 and self.counted is not None:
            self._waiting.append(Tick(now, seconds, parts, self._watts))
        sampled = max(self._sampled, now - 2 * intervals.POWER_BUFFER)  # or no sample came
        while self._waiting and self._waiting[0].at <= sampled:
            if self._due is not None and self._waiting[0].at > self._due.at:
                self._settle(self._due)
            self._estimate(self._waiting.popleft())
        if self._due is not None and not (self._waiting and self._waiting[0].at <= self._due.at):
            self._settle(self._due)

    def spent(self) -> dict[Pair | None, float]:
        """Joules up to now, those since the last reading estimated; empty without a counter."""
        if self.counted is None:
            return {}
        found = dict(self.joules)
        waiting = (({None: 1.0} if t.parts is None else t.parts, t) for t in self._waiting)
        estimated = [(self._estimated, 1.0), *((p, t.watts * t.seconds) for p, t in waiting)]
        for parts, joules in estimated:
            for pair, part in parts.items():
                found[pair] = found.get(pair, 0.0) + part * joules
        return found

    def _estimate(self, tick: Tick) -> None:
        while self._samples and self._samples[0][0] <= tick.at - tick.seconds:
            self._samples.popleft()
        watts = [value for at, value in self._samples if at <= tick.at]
        mean = sum(watts) / len(watts) if watts else tick.watts
        shares = {None: 1.0} if tick.parts is None else split(tick.parts, watts)
        for pair, share in shares.items():
            more = mean * tick.seconds * share
            self._estimated[pair] = self._estimated.get(pair, 0.0) + more

    def _settle(self, due: CounterGrowth) -> None:
        whole = sum(self._estimated.values())
        shares = self._estimated if whole > 0 else {None: 1.0}
        for pair, share in shares.items():
            self.joules[pair] = self.joules.get(pair, 0.0) + due.joules * share / (whole or 1.0)
        self._estimated, self._due = {}, None


NAMES = {None: (UNOBSERVED, Cause.NONE.value)} | {p: (p[0].value, p[1].value) for p in PAIRS}
