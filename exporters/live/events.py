"""Recent errors: their counters stay above 0 for ever after one event."""

from dataclasses import dataclass, field

from agent.model import GpuKey, Labels
from agent.series import SampleStore
from agent.sources import nvlink, xid

Event = tuple[str, GpuKey, str]
"""Name of the counter, GPU, XID code or number of the link."""

COUNTERS = (xid.ERRORS, nvlink.ERRORS)
NAMES = tuple(metric.name for metric in COUNTERS)


@dataclass(slots=True)
class RecentEvents:
    """Takes each tick. A counter that is above 0 when first seen counts as an event then."""

    recent: dict[Event, float] = field(default_factory=dict)  # when it grew last (s)
    number: int = 0  # of events so far: growth of a counter, by however much
    _counts: dict[tuple[str, Labels], float] = field(default_factory=dict)
    _turn: int = 0  # of the samples, up to which they have been looked through

    def take(self, samples: SampleStore) -> None:
        """Take in a tick."""
        since, self._turn = self._turn, samples.turn
        if not samples.changed(NAMES, since):
            return
        for metric in COUNTERS:
            for labels, value in samples.all(metric).items():
                place = metric.name, labels
                if value > self._counts.get(place, 0.0):
                    self.number += 1
                    index, uuid, which, *_ = labels
                    self.recent[metric.name, GpuKey(int(index), uuid), which] = samples.now
                self._counts[place] = value

    def forget(self, before: float) -> None:
        """Events that were over at this second are no longer of late."""
        self.recent = {event: at for event, at in self.recent.items() if at >= before}
