"""Host activity of one GPU's processes and of their children at one tick."""

from dataclasses import dataclass
from functools import cached_property

from agent.diagnosis.tick_context import TickContext
from agent.model import Metric
from agent.sources import workload

SPAN = 6.0
"""Seconds over which the time of threads is divided, and work distinguished from waiting: 300
power samples."""

MESSAGES = 0.25e6
"""Bytes a second up to which what a process moves are lines of a log, and what a server receives or
reads are requests. No load of the tapes is decided otherwise with 0.1 or 5 MB/s."""


@dataclass(eq=False)
class ProcessEvidence:
    """Of one GPU, by its labels; None is what is not known, or cannot be seen."""

    labels: tuple[str, ...]
    context: TickContext

    def share(self, role: str, doing: str, seconds: float = SPAN) -> float:
        """Seconds a second that threads of a role spend so; 0 where that is not known."""
        rate = self.context.samples.rate(
            workload.THREADS, *self.labels, role, doing, seconds=seconds
        )
        return rate or 0.0

    def own(self, doing: str) -> float:
        """The same of the threads that give the GPU its work."""
        return self.share("launching", doing) + self.share("dispatching", doing)

    @cached_property
    def launching(self) -> float | None:
        """Cores that the launching threads use; None where they cannot be seen."""
        return self.context.samples.rate(
            workload.THREADS, *self.labels, "launching", "running", seconds=SPAN
        )

    @cached_property
    def workers(self) -> float:
        """Threads and processes beside them that do anything, a mean."""
        mean = self.context.samples.mean(workload.WORKERS, *self.labels, seconds=SPAN)
        return mean or 0.0

    @cached_property
    def busiest(self) -> float:
        """Share of the time for which the busiest of them does anything, a mean."""
        mean = self.context.samples.mean(workload.BUSIEST, *self.labels, seconds=SPAN)
        return mean or 0.0

    def stalled(self, resource: str) -> float | None:
        """Share of time in which some task of the job's own cgroup waited for the resource."""
        return self.context.samples.rate(
            workload.CGROUP_STALLED, *self.labels, resource, seconds=SPAN
        )

    def job_rate(self, metric: Metric) -> float | None:
        """Growth a second of a counter of the job's cgroup or network namespace."""
        return self.context.samples.rate(metric, *self.labels, seconds=SPAN)

    @cached_property
    def hidden(self) -> str:
        """Reason why the processes of this GPU cannot be seen; empty if they can."""
        absence = self.context.samples.absence(workload.THREADS, *self.labels)
        return absence.detail if absence else ""

    @cached_property
    def cores(self) -> float | None:
        """Cores that they use together now; None where they cannot be seen."""
        rate = self.context.samples.rate
        known = [rate(workload.THREADS, *self.labels, one, "running") for one in workload.ROLES]
        return None if None in known else sum(cores or 0.0 for cores in known)

    @cached_property
    def at_rest(self) -> bool | None:
        """True if they do nothing: next to no core, none in uninterruptible sleep; None if they
        cannot be seen."""
        return None if self.cores is None else self._rests(self.cores)

    @property
    def rests_now(self) -> bool:
        """The same over the last two seconds; false where they cannot be seen."""
        recent = sum(self.share(one, "running", seconds=2.0) for one in workload.ROLES)
        return self.cores is not None and self._rests(recent)

    def _rests(self, cores: float) -> bool:
        blocked = any(self.share(one, "blocked", seconds=3.0) for one in workload.ROLES)
        return cores < workload.AT_REST and not blocked
