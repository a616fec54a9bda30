"""The part of the agent that the live page reads, and recent errors: their counters stay above 0
for ever after one event."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agent import __version__
from agent.diagnosis.accounting import Diagnosis
from agent.faults.thresholds import AlertThresholds
from agent.jobs.job import WatchedJobs
from agent.limits.paths import PathAccounts
from agent.model import GpuKey, Labels, ReadKey, Snapshot
from agent.series import SampleStore
from agent.sources import nvlink, xid
from agent.specs.sheets import SystemSpec

CONNECTION = ReadKey("nvml", "connection")
"""The reading that every turn of the NVML worker yields: its age reports a driver that hangs."""

SILENT = 3.0
"""Seconds without a turn of the NVML worker after which the driver does not answer."""


@dataclass(frozen=True, slots=True)
class View:
    """Verdicts and data paths as they are kept each tick, and the costly whole on request."""

    diagnosis: Diagnosis
    samples: SampleStore  # of the last seconds; on the event loop alone
    latest: Callable[[], Snapshot]  # with health and reports: milliseconds, for any thread
    system: Callable[[], SystemSpec | None]
    uptime: Callable[[], float | None]  # of the host, s
    now: Callable[[], float]  # monotonic seconds, as those of the snapshots
    jobs: Callable[[], WatchedJobs] = WatchedJobs
    thresholds: Callable[[], AlertThresholds] = AlertThresholds  # of faults
    simulated: bool = False
    host: str = ""  # the name of the host that the agent runs on
    version: str = __version__

    @property
    def bandwidth(self) -> PathAccounts:
        return self.diagnosis.bandwidth


def silence(snapshot: Snapshot) -> float:
    """Seconds for which the driver has not answered; 0 while it does."""
    reading = snapshot.readings.get(CONNECTION)
    waited = snapshot.at - (reading.at if reading else 0.0)
    return waited if waited > SILENT else 0.0


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
