"""Decides whether names of people, programs, and jobs may leave the agent.

Names may leave the agent only while `job.info` is enabled. If it is disabled later, this also
applies to names that are already known. All outputs use this module: the poller before it publishes
a snapshot, and the responses and logs about jobs and hours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

from agent.config.settings import Configuration
from agent.diagnosis.gpu_shares import BOOKED, JOB_SHARE, OF_JOB
from agent.jobs.identity import JobLabels
from agent.jobs.job import Receipt, WatchedJobs
from agent.model import Labels, Metric, Reading, Sample, Snapshot
from agent.series import Derived
from agent.sources import process, workload

PERSONAL: Mapping[Metric, tuple[str, ...]] = {
    workload.JOB_PIDS: ("job", *(name for name in JobLabels._fields if name != "runtime"), "key"),
    workload.JOB_PROCESS: ("key", "uid", "owner"),
    workload.JOB_INFO: JobLabels._fields,
    JOB_SHARE: ("job_id", "namespace", "pod"),
    **dict.fromkeys(BOOKED.values(), OF_JOB),
    process.PROGRAM: ("name",),
    process.PROCESS_MEMORY: ("name",),
}
"""Maps each metric to its labels that identify a person or a person's programs."""

SOURCES = frozenset({workload.KEY.source, "process", "jobs"})
"""Sources of the metrics in PERSONAL."""


NAMELESS = {
    metric.name: itemgetter(*(-1 if one in names else at for at, one in enumerate(metric.labels)))
    for metric, names in PERSONAL.items()
}
"""Functions that return a metric's labels with the personal labels emptied, by metric name."""


def without_names(snapshot: Snapshot, derived: Derived) -> Snapshot:
    """Return a snapshot without personal names. Changed readings are cached in `derived`."""
    named = [reading for key, reading in snapshot.readings.items() if key.source in SOURCES]
    shown = {one.key: derived.of(one.key, (one,), partial(_nameless, one)) for one in named}
    return replace(snapshot, readings={**snapshot.readings, **shown})


def _nameless(reading: Reading) -> Reading:
    """Return a reading without personal names. Personal labels become empty, and series that become
    identical are merged. The metrics dgx_gpu_job_info and job shares are omitted."""
    kept: dict[object, Sample] = {}
    for place, sample in enumerate(reading.samples):
        metric, labels, value = sample
        nameless = NAMELESS.get(metric.name)
        if nameless is None:
            kept[place] = sample
        elif metric not in (workload.JOB_INFO, JOB_SHARE, *BOOKED.values()):
            shown: Labels = nameless((*labels, ""))
            kept.setdefault((metric.name, shown), Sample(metric, shown, value))
    return replace(reading, samples=tuple(kept.values()))


@dataclass(frozen=True, slots=True)
class Disclosure:
    """Applies the current setting of `job.info` to names."""

    configuration: Configuration
    _derived: Derived = field(default_factory=Derived)

    @property
    def names(self) -> bool:
        """Whether the names of users, programs, and jobs may be shown."""
        return self.configuration.current[workload.JobConfig].info

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        return snapshot if self.names else without_names(snapshot, self._derived)

    def jobs(self, jobs: WatchedJobs) -> WatchedJobs:
        if self.names:
            return jobs

        def nameless(receipt: Receipt) -> Receipt:
            return replace(receipt, name="", labels=JobLabels(runtime=receipt.labels.runtime))

        running = (replace(job, receipt=nameless(job.receipt)) for job in jobs.running)
        return WatchedJobs(tuple(running), tuple(map(nameless, jobs.ended)))
