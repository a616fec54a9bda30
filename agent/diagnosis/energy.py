"""Divides the increases of a GPU's energy counter by state and cause."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from agent.bounds import POWER_SAMPLES
from agent.metrics import declared_beside
from agent.model import PAIRS, Cause, Pair, State, TimedSeries

Parts = Mapping[Pair, float]
"""Shares of a tick's time by state and cause, which sum to 1."""

UNOBSERVED = "unobserved"
"""Value of the state label for energy used while the state was unknown."""

_METRICS = declared_beside(__file__)
STATE_JOULES = _METRICS["dgx_gpu_state_joules_total"]

HUNGER = (State.IDLE, State.HELD, State.STARVED, State.HUNG, State.COMMUNICATING, State.THROTTLED)
"""States in ascending order of typical power draw. All other states draw more power."""


def draws(pair: Pair | None) -> int:
    """Return a number that sorts states by typical power draw, lowest first."""
    if pair == (State.STARVED, Cause.PEER):
        return HUNGER.index(State.HUNG)
    return HUNGER.index(pair[0]) if pair and pair[0] in HUNGER else len(HUNGER)


def split(seconds: Mapping[Pair | None, float], watts: Iterable[float]) -> dict[Pair | None, float]:
    """Return each state's share of the energy, based on the seconds in each state and the power
    samples. The lowest samples are attributed to the states that draw the least power."""
    sums = [0.0, *accumulate(sorted(watts))]
    whole = sum(seconds.values())

    def below(share: float) -> float:
        place = share * (len(sums) - 1)
        low = min(int(place), len(sums) - 2)
        return (sums[low] + (sums[low + 1] - sums[low]) * (place - low)) / sums[-1]

    found, reached = {}, 0.0
    for pair in sorted(seconds, key=draws):
        share = seconds[pair] / whole
        found[pair] = below(reached + share) - below(reached) if sums[-1] > 0 else share
        reached += share
    return found


@dataclass(slots=True)
class EnergyByState:
    """A GPU's energy in joules by state and cause. The key None is for time without a known state.
    The counter's increase between two readings is divided among the states in that time."""

    joules: dict[Pair | None, float] = field(default_factory=dict)
    counted: float | None = None  # last reading of the counter
    _read_at: float | None = None
    _grown: float | None = None  # joules since the previous reading, not divided yet
    _seconds: dict[Pair | None, float] = field(default_factory=dict)  # since the last reading
    _drawn: float = 0.0  # joules since the last reading, based on power
    _ticks: deque[float] = field(default_factory=lambda: deque(maxlen=POWER_SAMPLES))  # W
    _samples: deque[float] = field(default_factory=lambda: deque(maxlen=POWER_SAMPLES))
    _watts: float = 1.0

    def sample(self, series: TimedSeries) -> None:
        """Add the GPU's 20 ms power samples (W)."""
        self._samples.extend(series.values)

    def count(self, at: float, value: float) -> None:
        """Process a reading of the energy counter, which a reload of the driver resets to 0."""
        if at == self._read_at:
            return
        before = value if self.counted is None else self.counted
        self._grown = value - before if value >= before else value
        self.counted, self._read_at = value, at

    def enter(self, parts: Parts | None, seconds: float, watts: float | None) -> None:
        """Add a tick of `seconds` seconds. `parts` are time shares by state, or None if unknown."""
        self._watts = watts or self._watts
        for pair, part in ({None: 1.0} if parts is None else parts).items():
            if part * seconds > 0:
                self._seconds[pair] = self._seconds.get(pair, 0.0) + part * seconds
        self._drawn += self._watts * seconds
        self._ticks.append(self._watts)
        if self._grown is not None:
            self.joules = self._with(self._grown)
            self._seconds, self._drawn, self._grown = {}, 0.0, None
            self._ticks.clear()
            self._samples.clear()

    def spent(self) -> dict[Pair | None, float]:
        """Return the joules by state and cause, with an estimate for the time since the last
        reading. Return an empty dict if the GPU has no energy counter."""
        return {} if self.counted is None else self._with(self._drawn)

    def _with(self, joules: float) -> dict[Pair | None, float]:
        """Divide `joules` among recent states. Return the totals by state and cause."""
        found, seconds = dict(self.joules), self._seconds or {None: 1.0}
        shares = split(seconds, self._samples or self._ticks) if joules else {}
        for pair, share in shares.items():
            found[pair] = found.get(pair, 0.0) + share * joules
        return found


NAMES = {None: (UNOBSERVED, Cause.NONE.value)} | {p: (p[0].value, p[1].value) for p in PAIRS}
