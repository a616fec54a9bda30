"""The counter filter of a source: one for each series, forgotten with its device."""

from collections.abc import Collection

from agent.model import Absent, Metric, Reason
from agent.polling.counters import CounterFilter
from agent.polling.reads import ReadOutput

FASTEST_WIRE = 1e12
"""Bytes per second that no single disk, array, NIC or port can carry: more is a glitch."""

IN_DOUBT = Absent(Reason.UNKNOWN, "the counter fell or leapt, and the next reading must confirm it")


class CounterFilters:
    """Follows the raw counters of one source; a doubtful reading is absent for one read."""

    def __init__(self) -> None:
        self._followed: dict[tuple[str, ...], CounterFilter] = {}

    def add(
        self,
        out: ReadOutput,
        metric: Metric,
        raw: float,
        *labels: str,
        fastest: float | None = None,
    ) -> None:
        """Yield `raw` if it can follow what came before; `fastest` as of a CounterFilter."""
        series = (metric.name, *labels)
        counter_filter = self._followed.get(series)
        if counter_filter is None:
            counter_filter = self._followed[series] = CounterFilter(fastest)
        value = counter_filter.read(raw, out.at)
        if value is None:
            out.absent(metric, IN_DOUBT, *labels)
        else:
            out.add(metric, value, *labels)

    def keep(self, devices: Collection[str]) -> None:
        """Forget every series whose first label is none of `devices`."""
        self._followed = {s: o for s, o in self._followed.items() if s[1] in devices}
