"""The jobs in a tick: processes on GPUs, grouped by their data in /proc or by equal steps."""

from agent.jobs.grouping import JobGroup, JobMember, LockSteps, SentBytes, groups, pids_by_gpu
from agent.model import GpuKey
from agent.series import SampleStore
from agent.sources import nvlink, process, workload


class JobGroups:
    """Groups the processes of each tick into jobs."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, str, int | None]] = {}
        """Job key, owner, and rank, by PID."""
        self._lock_steps = LockSteps()

    def take(self, samples: SampleStore) -> list[JobGroup]:
        """Return the jobs in this tick. Steps are compared only if /proc shows several jobs."""
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
        """Return every process on a GPU, with earlier data if /proc no longer shows it."""
        for _, _, pid, key, _, owner, rank in samples.all(workload.JOB_PROCESS):
            self._seen[int(pid)] = key, owner, int(rank) if rank else None
        there = [(gpu, uuid, int(pid)) for gpu, uuid, pid in samples.all(process.PROCESS)]
        alive = {pid for _, _, pid in there}
        self._seen = {pid: known for pid, known in self._seen.items() if pid in alive}
        return [
            JobMember(GpuKey(int(gpu), uuid), pid, *self._seen.get(pid, (f"process {pid}",)))
            for gpu, uuid, pid in sorted(there)
        ]
