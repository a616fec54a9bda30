"""The processes behind each GPU: the state of their threads, and their job.

Nothing is read for a GPU without a process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.bounds import MOST_AT_REST
from agent.clock import Clock
from agent.config.settings import Section
from agent.hardware import processes
from agent.hardware.host import Host
from agent.jobs import cgroup
from agent.jobs.allocation import Allocations, completed
from agent.jobs.identity import JobLabels
from agent.jobs.process_table import VISIBLE, ProcessTable
from agent.jobs.process_times import NONE, GpuTimes, ProcessTimes, Times
from agent.model import (
    GPU_LABELS,
    Absent,
    GpuMetric,
    Labels,
    Metric,
    ReadKey,
    Reason,
    Sample,
    gauge,
    internal,
)
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import Read, ReadOutput, fixed
from agent.series import SampleStore
from agent.sources.context import HostOptions
from agent.threads import Spawn, on_a_thread


class JobConfig(Section, frozen=True):
    """Options for jobs: `info` exports those on each GPU by name and user."""

    table, retired = "job", ("nccl",)
    info: bool = False


THREADS = internal(
    "dgx_workload_thread_seconds",
    "Seconds of the threads of the GPU's processes by what they do: `running` on a core, `queued` "
    "without one, `blocked` in uninterruptible sleep (sampled every second, not gapless), `system` "
    "those of `running` in the kernel. Role `launching` is the main thread of each process and "
    "those of its backward pass; `dispatching` are all threads of a process of XLA, which sleep "
    "while the GPU works; `working` are all others, the descendants of the processes, and children "
    "that have ended.",
    "/proc/PID/task/TID/schedstat and stat, /proc/PID/stat",
    (*GPU_LABELS, "role", "doing"),
)
WORKERS = GpuMetric.internal(
    "dgx_workload_workers",
    "Threads and processes of role `working` that did anything since the last read.",
    "/proc/PID/stat, /proc/PID/task/TID/schedstat",
)
BUSIEST = GpuMetric.internal(
    "dgx_workload_busiest_worker_ratio",
    "Share of the time, 0-1, for which the busiest of them did something since the last read.",
    "/proc/PID/stat, /proc/PID/task/TID/schedstat",
)
PINNING = GpuMetric.internal(
    "dgx_workload_pinning_processes",
    "Processes on the GPU with a thread that moves batches to pinned memory (PyTorch's loader).",
    "/proc/PID/task/TID/stat",
)
STOPPED = internal(
    "dgx_workload_stopped",
    "1 for each process of the GPU that is stopped by a signal or a debugger.",
    "state T or t in /proc/PID/stat",
    (*GPU_LABELS, "pid"),
)
PROCESS_BYTES = GpuMetric.internal(
    "dgx_workload_process_bytes",
    "Bytes that the GPU's processes have read and written, read only while they and their loaders "
    "use next to no core.",
    "/proc/PID/io",
)
HOSTS = GpuMetric.internal(
    "dgx_workload_hosts",
    "Hosts that the job of the GPU runs on, as the environment of its processes says.",
    "SLURM_NNODES, WORLD_SIZE and LOCAL_WORLD_SIZE (torchrun), or the like of Open MPI, in "
    "/proc/PID/environ",
)
CGROUP_STALLED = internal(
    "dgx_workload_cgroup_stalled_seconds",
    "Seconds in which some task of the job's cgroup waited for the resource.",
    "{io,cpu,memory}.pressure of the cgroup (version 2) of the GPU's first process",
    (*GPU_LABELS, "resource"),
)
CGROUP_READ, CGROUP_WRITTEN = (
    GpuMetric.internal(
        f"dgx_workload_cgroup_{done}_bytes",
        f"Bytes that the job's cgroup {verb} block devices.",
        f"{key} in io.stat of the cgroup",
    )
    for done, verb, key in (("read", "read from", "rbytes"), ("written", "wrote to", "wbytes"))
)
RECEIVED = GpuMetric.internal(
    "dgx_workload_received_bytes",
    "Bytes received by all interfaces of the network namespace of the GPU's first process.",
    "/proc/PID/net/dev",
)
NEWEST_PROCESS_AGE = GpuMetric.internal(
    "dgx_workload_arrived_seconds",
    "How long ago the newest process of the GPU came, in seconds; of processes older than the "
    "agent the time since their start.",
    "nvmlDeviceGetComputeRunningProcesses, starttime in /proc/PID/stat, /proc/uptime",
)
JOB_PIDS = internal(
    "dgx_workload_job",
    "1 for each job on the GPU, at most 8; GPUs with the same key work for one job. All names are "
    "empty unless job.info = true in the configuration.",
    "/proc/PID/stat, status, cgroup, environ and cmdline of the GPU's processes and ancestors",
    (*GPU_LABELS, "job", *JobLabels._fields, "key"),
)
JOB_PROCESS = internal(
    "dgx_workload_job_process",
    "1 for each process on the GPU that can be seen: its number, the one that it has in its own "
    "pid namespace, the key of its job, the number of its user, its owner, and its rank, as far as "
    "these are known.",
    "Uid in /proc/PID/status; /proc/PID/ns/user, cgroup, and RANK in environ",
    (*GPU_LABELS, "pid", "key", "uid", "owner", "rank"),
)
JOB_INFO = gauge(
    "dgx_gpu_job_info",
    "1 for each job that runs on the GPU or was allocated it, at most 8. Only with job.info = true "
    "in the configuration: off by default, because every job makes a new series and the labels "
    "name users. Unknown labels are empty.",
    "/proc/PID/stat, status, cgroup, environ and cmdline of the GPU's processes and ancestors",
    (*GPU_LABELS, *JobLabels._fields),
)

OF_PROCESSES: tuple[Metric, ...] = (THREADS, WORKERS, BUSIEST)
OF_CGROUP: tuple[Metric, ...] = (CGROUP_STALLED, CGROUP_READ, CGROUP_WRITTEN, RECEIVED)
ROLES = "launching", "dispatching", "working"
DOING = Times._fields
KEY = ReadKey("workload", "processes")
UNSEEN = Absent(
    Reason.DENIED,
    f"/proc hides a thread or a child of a process on the GPU: {VISIBLE}",
)
MOST_JOBS = 8
REST_CORES = 0.05  # Cores below which processes do nothing
CGROUP_HOLDS = 60.0  # Seconds for which a process is taken to stay in its cgroup


def stopped(samples: SampleStore) -> dict[Labels, frozenset[int]]:
    found: dict[Labels, frozenset[int]] = {}
    for *gpu, pid in samples.all(STOPPED):
        found[tuple(gpu)] = found.get(tuple(gpu), frozenset()) | {int(pid)}
    return found


@dataclass(slots=True)
class Workload:
    """Reads the processes of every GPU once a second."""

    host: Host
    options: HostOptions
    gpu_processes: GpuProcesses
    allocations: Allocations
    table: ProcessTable
    times: ProcessTimes
    _seconds: dict[Labels, dict[str, Times]] = field(default_factory=dict)  # since it was met
    _cgroups: dict[int, tuple[str | None, float]] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)  # bytes, by pid, when it was read last
    _totals: dict[str, cgroup.CgroupTotals] = field(default_factory=dict)  # GPUs share a cgroup

    def read(self, out: ReadOutput) -> None:
        now = dict(self.gpu_processes)
        self.table.update(now)
        all_pids = {pid for pids in now.values() for pid in pids}
        self._totals.clear()
        jobs = self._jobs(now)
        for gpu, pids in now.items():
            self._add_jobs(out, gpu, pids, jobs)
            hidden = self.table.hidden(pids)
            if hidden is not None:
                for metric in (*OF_PROCESSES, *OF_CGROUP, NEWEST_PROCESS_AGE, JOB_PIDS):
                    out.absent(metric, hidden, *gpu)
                continue
            age = self.table.age(pids)
            if age is not None:
                out.add(NEWEST_PROCESS_AGE, age, *gpu)
            if pids:
                self._add_times(out, gpu, pids, self.times.read(gpu, pids, all_pids, out.at))
                self._add_cgroup(out, gpu, pids[0])
        self.times.forget(now, out.at)
        for gpu in self._seconds.keys() - now.keys():
            del self._seconds[gpu]
        for of_processes in (self._cgroups, self._moved):
            for pid in of_processes.keys() - all_pids:
                del of_processes[pid]

    def _jobs(self, now: Mapping[Labels, Iterable[int]]) -> dict[str, tuple[str, ...]]:
        """Return the names of each job, by its key: its processes may have begun apart, and not all
        report as much, on one GPU or several."""
        found: dict[str, tuple[str, ...]] = {}
        for gpu, pids in now.items():
            given = self.allocations.of(gpu[1])
            for pid in pids:
                member = self.table.member(pid)
                if member is not None:
                    user = "" if member.uid is None else self.host.login(member.uid)
                    labels = completed(member.labels._replace(user=user), given)
                    key, names = self.table.key(pid), (member.job, *labels)
                    known = found.setdefault(key, names)
                    if names != known:
                        found[key] = min(known, names, key=lambda one: (one.count(""), one))
        return found

    def _add_jobs(
        self,
        out: ReadOutput,
        gpu: Labels,
        pids: Iterable[int],
        of_key: Mapping[str, tuple[str, ...]],
    ) -> None:
        found: dict[tuple[str, ...], None] = {}
        given, hosts = self.allocations.of(gpu[1]), 0
        for pid in pids:
            member = self.table.member(pid)
            if member is not None:
                key = self.table.key(pid)
                found[*of_key[key], key] = None
                uid = "" if member.uid is None else str(member.uid)
                rank = "" if member.rank is None else str(member.rank)
                labels = (*gpu, str(pid), key, uid, member.owner, rank)
                out.samples.append(Sample(JOB_PROCESS, labels, 1.0))
                hosts = max(hosts, member.hosts or 0)
        if hosts:
            out.add(HOSTS, hosts, *gpu)
        named = self.options.settings[JobConfig].info
        shown = found if named else dict.fromkeys(map(_nameless, found))
        for labels in list(shown)[:MOST_JOBS]:
            out.add(JOB_PIDS, 1, *gpu, *labels)
        if named:
            jobs = dict.fromkeys(labels[1:-1] for labels in found)
            more = [one.labels for one in given if not one.claimed or not found]
            jobs.update((one, None) for one in more if not _is_among(one, jobs))
            for names in list(jobs)[:MOST_JOBS]:
                out.add(JOB_INFO, 1, *gpu, *names)

    def _add_times(
        self, out: ReadOutput, gpu: Labels, pids: Sequence[int], grown: GpuTimes | None
    ) -> None:
        for pid in pids:
            if (started := self.times.started(pid)) is not None:
                self.table.verify(pid, started)
        if grown is None:
            return
        seconds = self._seconds.setdefault(gpu, dict.fromkeys(ROLES, NONE))
        for role, times in zip(ROLES, grown[:3], strict=True):
            if times is None or (grown.hidden and role == "working"):
                out.absent(THREADS, UNSEEN, *gpu)
                continue
            seconds[role] = seconds[role].plus(times)
            for doing, value in seconds[role]._asdict().items():
                out.add(THREADS, value, *gpu, role, doing)
        out.add(WORKERS, grown.workers, *gpu)
        out.add(BUSIEST, grown.busiest, *gpu)
        out.add(PINNING, grown.pinning, *gpu)
        for pid in filter(self.times.is_stopped, pids):
            out.add(STOPPED, 1, *gpu, str(pid))
        known = [times.running for times in grown[:3] if times is not None]
        if len(known) == len(ROLES) and sum(known) < REST_CORES:
            self._add_bytes(out, gpu, pids)

    def _add_bytes(self, out: ReadOutput, gpu: Labels, pids: Sequence[int]) -> None:
        """Add the bytes of a GPU's processes at rest; if they are many, they take turns."""
        parts = -(-len(pids) // MOST_AT_REST)
        for pid in pids[int(out.at) % parts :: parts]:
            count = processes.bytes_moved(self.host.files, pid)
            if count is not None:
                self._moved[pid] = count
        counts = [self._moved[pid] for pid in pids if pid in self._moved]
        if counts:
            out.add(PROCESS_BYTES, sum(counts), *gpu)

    def _add_cgroup(self, out: ReadOutput, gpu: Labels, pid: int) -> None:
        received = cgroup.received(self.host.files, pid)
        if received is not None:
            out.add(RECEIVED, received, *gpu)
        path, until = self._cgroups.get(pid, (None, 0.0))
        if out.at >= until:
            path = cgroup.path_of(self.host.files, pid)
            self._cgroups[pid] = path, out.at + CGROUP_HOLDS
        if path is None:
            return
        totals = self._totals.get(path)
        if totals is None:
            totals = self._totals[path] = cgroup.totals(self.host.files, path)
        for resource, seconds in totals.stalled.items():
            out.add(CGROUP_STALLED, seconds, *gpu, resource)
        for metric, value in ((CGROUP_READ, totals.read), (CGROUP_WRITTEN, totals.written)):
            if value is not None:
                out.add(metric, value, *gpu)


def _is_among(labels: JobLabels, jobs: Iterable[tuple[str, ...]]) -> bool:
    """Return whether a process of this job is there: of the same number, or in the same pod."""
    return any(
        (one.job_id, one.runtime) == (labels.job_id, labels.runtime)
        or (labels.pod and (one.namespace, one.pod) == (labels.namespace, labels.pod))
        for one in (JobLabels(*names) for names in jobs)
    )


def _nameless(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Runtime and key of a job, which join its GPUs; the owner did not ask for its names."""
    _, *names, key = labels
    return ("", *JobLabels(runtime=JobLabels(*names).runtime), key)


def reads(
    host: Host,
    clock: Clock,
    options: HostOptions,
    gpu_processes: GpuProcesses,
    allocations: Allocations,
    *,
    spawn: Spawn = on_a_thread,
) -> Iterator[Read]:
    """The read of all processes on GPUs; `spawn` runs work that may block."""

    def named() -> bool:
        return options.settings[JobConfig].info

    table = ProcessTable(host.files, clock.monotonic, named, spawn)
    times = ProcessTimes(host.files)
    run = Workload(host, options, gpu_processes, allocations, table, times).read
    metrics = (
        *(*OF_PROCESSES, *OF_CGROUP, PROCESS_BYTES, PINNING, STOPPED, NEWEST_PROCESS_AGE),
        *(JOB_PIDS, JOB_INFO, JOB_PROCESS, HOSTS),
    )
    yield Read(KEY, metrics, run, fixed(intervals.TICK))
