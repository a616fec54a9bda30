"""Analyses a tick in steps. Each step uses the results of earlier steps and of the last tick."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from agent.config.settings import Configuration
from agent.diagnosis.accounting import Diagnosis
from agent.diagnosis.job_watch import JobWatch
from agent.diagnosis.pulses import GpuPulses, JobPulse
from agent.diagnosis.tick_context import LastTick
from agent.jobs.grouping import JobGroup, JobMember, LockSteps, SentBytes, groups, pids_by_gpu
from agent.limits.paths import PathAccounts
from agent.model import GpuKey, Reading, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.polling.worker import Guard
from agent.series import SampleStore
from agent.sources import nvlink, process, workload


class TickAnalysis:
    """Analyses each tick for the poller in these steps: data paths, process groups, pulses,
    verdicts, and jobs. If a step fails, only its results are missing."""

    def __init__(
        self,
        configuration: Configuration,
        inventory: Callable[[], GpuInventory],
        clock_speed: float = 1.0,
    ) -> None:
        self.paths = PathAccounts(configuration, inventory=inventory)
        self._groups = JobGroups()
        self._pulses = GpuPulses(inventory, clock_speed)
        self.diagnosis = Diagnosis(inventory, self.paths, configuration, clock_speed)
        self.jobs = JobWatch(inventory, configuration)
        self._last = LastTick()
        self._grouping = Guard("jobs")
        sources = ("bandwidth", "pulse", "diagnosis", "jobs")
        self._guards = {name: Guard(name) for name in sources}

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Analyse a tick, and return the snapshot with the verdicts added."""
        last, guards, diagnosis = self._last, self._guards, self.diagnosis
        guards["bandwidth"].run(lambda: self.paths.take(snapshot, samples), None)
        groups = self._grouping.run(lambda: self._groups.take(samples), None)
        of_jobs = guards["pulse"].run(
            lambda: self._pulses.take(snapshot, samples, groups or (), last),
            dict[JobGroup, JobPulse](),
        )
        pulses, accounts = self._pulses.pulses, diagnosis.accounts
        judged = guards["diagnosis"].run(
            lambda: diagnosis.take(snapshot, samples, groups or (), last), snapshot
        )
        stepping = last.stepping
        if groups is not None:  # otherwise all jobs would seem to have ended
            stepping = guards["jobs"].run(
                lambda: self.jobs.take(judged, samples, groups, of_jobs, pulses, accounts=accounts),
                stepping,
            )
        moved = (uuid for uuid, one in accounts.items() if one.history.seen.nvlink_seen)
        self._last = LastTick(stepping, frozenset(moved))
        return judged

    def report(self, snapshot: Snapshot) -> Iterator[Reading]:
        """Yield the readings with the results of each step of the analysis."""
        guards, failed = self._guards, self._grouping.failure
        yield guards["bandwidth"].report(self.paths.report, snapshot)
        yield guards["pulse"].report(self._pulses.report, snapshot)
        yield guards["diagnosis"].report(self.diagnosis.report, snapshot)
        of_jobs = guards["jobs"].report(self.jobs.report, snapshot)
        yield replace(of_jobs, failure=failed) if failed else of_jobs


class JobGroups:
    """Groups the GPU processes of each tick into jobs."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, str, int | None]] = {}
        """The job key, owner, and rank of each process, by PID."""
        self._lock_steps = LockSteps()

    def take(self, samples: SampleStore) -> list[JobGroup]:
        """Return the jobs in this tick. Jobs whose GPUs run in lockstep are merged into one."""
        members = self._members(samples)
        found = groups(members)
        if len(found) < 2:
            return found
        sent: dict[GpuKey, SentBytes] = {}
        for gpu, pids in pids_by_gpu(members).items():
            point = samples.point(nvlink.TRANSMITTED, *gpu.labels)
            if point is not None:
                sent[gpu] = SentBytes(pids, point.at, point.value)
        together = list(self._lock_steps.take(sent))
        return groups(members, together) if together else found

    def _members(self, samples: SampleStore) -> list[JobMember]:
        """Return all processes on the GPUs, with earlier data for those that /proc lacks."""
        for _, _, pid, key, _, owner, rank in samples.all(workload.JOB_PROCESS):
            self._seen[int(pid)] = key, owner, int(rank) if rank else None
        there = [(gpu, uuid, int(pid)) for gpu, uuid, pid in samples.all(process.PROCESS)]
        alive = {pid for _, _, pid in there}
        self._seen = {pid: known for pid, known in self._seen.items() if pid in alive}
        return [
            JobMember(GpuKey(int(gpu), uuid), pid, *self._seen.get(pid, (f"process {pid}",)))
            for gpu, uuid, pid in sorted(there)
        ]
