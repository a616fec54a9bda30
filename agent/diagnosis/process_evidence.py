"""What the processes of one GPU's job show at one tick: its own, and those below them."""

from dataclasses import dataclass
from functools import cached_property

from agent.diagnosis.tick_context import TickContext
from agent.model import Metric
from agent.sources import workload


@dataclass(eq=False)
class ProcessEvidence:
    """Of one GPU, by its labels; None is what is not known, or cannot be seen."""

    labels: tuple[str, ...]
    context: TickContext

    @cached_property
    def launcher_cores(self) -> float | None:
        """Cores that the GPU's own processes use."""
        return self.context.samples.last(workload.LAUNCHER_CORES, *self.labels)

    @cached_property
    def loaders(self) -> int:
        """Processes below them that do anything."""
        return int(self.context.samples.last(workload.LOADERS, *self.labels) or 0)

    @cached_property
    def waiting(self) -> float | None:
        """Share of time in uninterruptible sleep, of the loaders or of a process that has none."""
        metric = workload.LOADERS_WAITING if self.loaders else workload.LAUNCHER_WAITING
        return self.context.samples.last(metric, *self.labels)

    @cached_property
    def threads(self) -> int:
        """Threads of its own processes that do anything."""
        return int(self.context.samples.last(workload.THREADS, *self.labels) or 0)

    @cached_property
    def busiest_thread(self) -> float | None:
        """Cores of the busiest thread of its own processes."""
        return self.context.samples.last(workload.BUSIEST_THREAD, *self.labels)

    @cached_property
    def threads_queued(self) -> float | None:
        """Share of the time in which its threads could have run and had no core."""
        return self.context.samples.last(workload.THREADS_QUEUED, *self.labels)

    @cached_property
    def threads_waiting(self) -> float | None:
        """Mean share of time that its active threads are in uninterruptible sleep."""
        return self.context.samples.last(workload.THREADS_WAITING, *self.labels)

    def stalled(self, resource: str) -> float | None:
        """Share of time in which some task of the job's own cgroup waited for the resource."""
        return self.context.samples.rate(workload.CGROUP_STALLED, *self.labels, resource)

    def job_rate(self, metric: Metric) -> float | None:
        """Growth a second of a counter of the job's cgroup or network namespace."""
        return self.context.samples.rate(metric, *self.labels)

    @cached_property
    def running(self) -> float | None:
        """Share of time for which each loader runs, or would."""
        return self.context.samples.last(workload.LOADERS_RUNNING, *self.labels)

    @cached_property
    def cores(self) -> float | None:
        """Cores that launchers, loaders and short-lived commands use together."""
        if self.launcher_cores is None:
            return None
        return self.launcher_cores + self.loader_cores + self.children_cores

    @cached_property
    def children_cores(self) -> float:
        """Cores that short-lived commands below its processes use together."""
        return self.context.samples.last(workload.CHILDREN_CORES, *self.labels) or 0.0

    @cached_property
    def loader_cores(self) -> float:
        """Cores that its loaders use together."""
        return self.context.samples.last(workload.LOADERS_CORES, *self.labels) or 0.0

    @property
    def host_sensitive(self) -> bool:
        """Whether its processes do anything that the host could hold up; true where they cannot
        be seen. A server that waits for requests does not starve by somebody else's backup."""
        least = self.context.thresholds.host_sensitive
        return self.cores is None or self.cores >= least or bool(self.waiting)

    @cached_property
    def allowed_cores(self) -> float | None:
        """Cores that they may use."""
        return self.context.samples.last(workload.ALLOWED_CORES, *self.labels)

    @cached_property
    def hidden(self) -> str:
        """Why the processes of this GPU cannot be seen; empty where they can."""
        absence = self.context.samples.absence(workload.LAUNCHER_CORES, *self.labels)
        return absence.detail if absence else ""

    @property
    def at_rest(self) -> bool | None:
        """Whether its processes do nothing: next to no core, none in uninterruptible sleep; None
        where they cannot be seen."""
        return None if self.cores is None else self._rests(self.cores)

    @property
    def rests_now(self) -> bool:
        """The same over the last two seconds; false where they cannot be seen."""
        recent = self.context.samples.last(workload.RECENT_CORES, *self.labels)
        return recent is not None and self._rests(recent + self.children_cores)

    def _rests(self, cores: float) -> bool:
        waits = bool(self.waiting) or bool(self.threads_waiting)
        return cores < workload.AT_REST and not waits
