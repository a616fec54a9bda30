"""Computes the shares of jobs that use a GPU together, based on the driver's process samples."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from agent.bounds import HOUR
from agent.jobs.grouping import JobGroup
from agent.metrics import declared_beside
from agent.model import Absent, GpuKey, ReadKey, Reason
from agent.series import SampleStore
from agent.sources import process

_METRICS = declared_beside(__file__)
JOB_SHARE = _METRICS["dgx_gpu_job_share_ratio"]
OF_JOB = "job_id", "user", "partition", "account"
JOB_SECONDS = _METRICS["dgx_gpu_job_seconds_total"]
JOB_JOULES = _METRICS["dgx_gpu_job_joules_total"]
JOB_TENSOR = _METRICS["dgx_gpu_job_tensor_throughput_seconds_total"]
BOOKED = {"seconds": JOB_SECONDS, "joules": JOB_JOULES, "tensor": JOB_TENSOR}
"""The counter metric for each name of a job's totals."""
KEY = ReadKey("jobs", "running")
WINDOW = HOUR / 60  # seconds of samples that every process must have
TOO_SHORT = Absent(Reason.NOT_ENOUGH, "a process has shared the GPU for less than a minute")

Shares = Mapping[GpuKey, Mapping[JobGroup, float] | Absent]
"""For each GPU with several jobs: the jobs' shares, which sum to 1, or why they are unknown."""


@dataclass(slots=True)
class GpuShares:
    """Computes each job's share of each shared GPU on every tick."""

    _windows: dict[GpuKey, deque[tuple[float, Mapping[int, float]]]] = field(default_factory=dict)
    """The readings (time, and share by PID) of the last minute, and the last reading before it."""

    def take(self, samples: SampleStore, groups: Iterable[JobGroup]) -> Shares:
        """Return each job's share of the GPU time that all jobs used in the last minute. If no job
        used the GPU, the jobs have equal shares."""
        on: dict[GpuKey, list[JobGroup]] = {}
        for group in groups:
            for gpu in group.gpus:
                on.setdefault(gpu, []).append(group)
        shared = {gpu: jobs for gpu, jobs in on.items() if len(jobs) > 1}
        self._windows = {gpu: self._windows.get(gpu, deque()) for gpu in shared}
        return {gpu: self._divided(samples, gpu, jobs) for gpu, jobs in shared.items()}

    def _divided(
        self, samples: SampleStore, gpu: GpuKey, jobs: Sequence[JobGroup]
    ) -> Mapping[JobGroup, float] | Absent:
        window, of_job = self._windows[gpu], {job: job.pids_on[gpu] for job in jobs}
        pids = frozenset[int]().union(*of_job.values())
        asked = ((pid, samples.point(process.SHARE, *gpu.labels, str(pid))) for pid in pids)
        points = {pid: point for pid, point in asked if point}
        at = max((point.at for point in points.values()), default=0.0)
        if points and (not window or at > window[-1][0]):
            window.append((at, {pid: point.value for pid, point in points.items()}))
        begin = samples.now - WINDOW
        while len(window) > 1 and window[1][0] <= begin:
            window.popleft()
        if refused := samples.absence(process.SHARE, *gpu.labels):
            return Absent(refused.reason, refused.detail)
        if len(window) < 2 or window[0][0] > begin or not pids <= window[0][1].keys():
            return TOO_SHORT
        used = {
            job: sum(parts.get(pid, 0.0) for _, parts in islice(window, 1, None) for pid in its)
            for job, its in of_job.items()
        }
        whole = sum(used.values())
        return {job: part / whole if whole else 1 / len(jobs) for job, part in used.items()}
