"""Decides what may leave the agent of people, programs and jobs.

Their names do only while job.info is on, what was learnt before included. Every way out asks here:
snapshots where the poller publishes them, jobs and hours where they are answered and logged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.config.settings import Configuration
from agent.jobs.identity import JobLabels
from agent.jobs.job import Receipt, WatchedJobs
from agent.model import Labels, Metric, Reading, Sample, Snapshot
from agent.sources import process, workload

PERSONAL: Mapping[Metric, tuple[str, ...]] = {
    workload.JOB: ("job", *(name for name in JobLabels._fields if name != "runtime"), "key"),
    workload.JOB_PROCESS: ("key", "uid", "owner"),
    workload.JOB_INFO: JobLabels._fields,
    process.PROGRAM: ("name",),
    process.PROCESS_MEMORY: ("name",),
}
"""The labels of each metric that name somebody or something of theirs."""

SOURCES = frozenset({workload.KEY.source, "process"})
"""The sources that such metrics come from."""


def without_names(snapshot: Snapshot) -> Snapshot:
    """A snapshot that names no one: these labels are empty, and dgx_gpu_job_info is left out."""
    readings = {
        key: _without_names(reading) if key.source in SOURCES else reading
        for key, reading in snapshot.readings.items()
    }
    return replace(snapshot, readings=readings)


PLACES = {
    metric.name: frozenset(map(metric.labels.index, names)) for metric, names in PERSONAL.items()
}
"""By the name of the metric, the places of those labels."""


def _without_names(reading: Reading) -> Reading:
    """The reading with these labels empty. Series that are alike without them are one."""
    kept: dict[object, Sample] = {}
    for place, sample in enumerate(reading.samples):
        places = PLACES.get(sample.metric.name)
        if places is None:
            kept[place] = sample
        elif sample.metric is not workload.JOB_INFO:
            labels: Labels = tuple(
                "" if at in places else value for at, value in enumerate(sample.labels)
            )
            kept.setdefault((sample.metric.name, labels), sample._replace(labels=labels))
    return replace(reading, samples=tuple(kept.values()))


@dataclass(frozen=True, slots=True)
class Disclosure:
    """The same by the settings in force."""

    configuration: Configuration

    @property
    def names(self) -> bool:
        """True if users, programs and jobs may be named."""
        return self.configuration.current[workload.JobConfig].info

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        return snapshot if self.names else without_names(snapshot)

    def receipt(self, receipt: Receipt) -> Receipt:
        if self.names:
            return receipt
        return replace(receipt, name="", labels=JobLabels(runtime=receipt.labels.runtime))

    def jobs(self, jobs: WatchedJobs) -> WatchedJobs:
        return WatchedJobs(
            tuple(replace(job, receipt=self.receipt(job.receipt)) for job in jobs.running),
            tuple(map(self.receipt, jobs.ended)),
        )
