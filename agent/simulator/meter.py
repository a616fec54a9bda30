"""Counters that run at known rates: exact at any moment, at the price of a multiplication."""

from collections.abc import Iterable, Mapping


class CounterMeter:
    """Totals by name, each growing at a rate per second since the last settlement."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self._since = 0.0

    def flow(self, now: float, rates: Mapping[str, float]) -> None:
        """Count up to `now` (s), then go on at other rates; a name left out stands still."""
        seconds = now - self._since
        for name, rate in self.rates.items():
            self.totals[name] = self.totals.get(name, 0.0) + rate * seconds
        self._since = now
        self.rates = dict(rates)

    def read(self, name: str, now: float) -> float:
        """The total at `now`, 0 for a name that never ran."""
        rate = self.rates.get(name, 0.0)
        return self.totals.get(name, 0.0) + rate * (now - self._since)

    def add(self, name: str, amount: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.totals.pop(name, None)
            self.rates.pop(name, None)
