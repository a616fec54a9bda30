"""Counters that run at known rates: exact at any moment, at the price of a multiplication."""

from collections.abc import Iterable, Mapping


class Meter:
    """Totals by name, each growing at a rate per second since the last settlement."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self._since = 0.0

    def flow(self, now: float, rates: Mapping[str, float]) -> None:
        """Count up to `now` (s), then go on at other rates; a name left out stands still."""
        self.settle(now)
        self.rates = dict(rates)

    def settle(self, now: float) -> None:
        """Count up to `now` at the rates in force."""
        seconds = now - self._since
        if seconds > 0:
            totals = self.totals
            for name, rate in self.rates.items():
                totals[name] = totals.get(name, 0.0) + rate * seconds
            self._since = now

    def read(self, name: str, now: float) -> float:
        """The total at `now`, 0 for a name that never ran."""
        return self.totals.get(name, 0.0) + self.rates.get(name, 0.0) * (now - self._since)

    def add(self, name: str, amount: float) -> None:
        """Count something that happened at once."""
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def copy(self, now: float) -> dict[str, float]:
        """All totals at `now`."""
        self.settle(now)
        return dict(self.totals)

    def forget(self, names: Iterable[str]) -> None:
        """Nobody will ask for these any more."""
        for name in names:
            self.totals.pop(name, None)
            self.rates.pop(name, None)

    def clear(self) -> None:
        """All totals back to 0, as after a reset; the rates go on."""
        self.totals.clear()
