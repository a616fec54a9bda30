"""The processes on each GPU: the activity of their threads, and their jobs.

Nothing is read for GPUs without processes.
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
from agent.jobs.job_sockets import WAYS, CgroupSockets
from agent.jobs.process_table import VISIBLE, ProcessTable
from agent.jobs.process_times import NONE, GpuTimes, ProcessTimes, Times
from agent.metrics import declared_beside
from agent.model import Absent, Labels, Metric, ReadKey, Reason, Sample
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import Read, ReadOutput, fixed
from agent.series import SampleStore
from agent.sources.context import HostOptions
from agent.threads import Spawn, on_a_thread


class JobConfig(Section, frozen=True):
    """Settings for jobs: `info` enables the export of the names and users of jobs."""

    table, retired = "job", ("nccl",)
    info: bool = False


_METRICS = declared_beside(__file__)
THREADS = _METRICS["dgx_workload_thread_seconds"]
WORKERS = _METRICS["dgx_workload_workers"]
BUSIEST = _METRICS["dgx_workload_busiest_worker_ratio"]
PINNING = _METRICS["dgx_workload_pinning_processes"]
TRAINING = _METRICS["dgx_workload_training_processes"]
STOPPED = _METRICS["dgx_workload_stopped"]
PROCESS_BYTES = _METRICS["dgx_workload_process_bytes"]
HOSTS = _METRICS["dgx_workload_hosts"]
CGROUP_STALLED = _METRICS["dgx_workload_cgroup_stalled_seconds"]
CGROUP_READ = _METRICS["dgx_workload_cgroup_read_bytes"]
CGROUP_WRITTEN = _METRICS["dgx_workload_cgroup_written_bytes"]
RECEIVED = _METRICS["dgx_workload_received_bytes"]
SOCKETS = _METRICS["dgx_workload_socket_bytes"]
NEWEST_PROCESS_AGE = _METRICS["dgx_workload_arrived_seconds"]
JOB_PIDS = _METRICS["dgx_workload_job"]
JOB_PROCESS = _METRICS["dgx_workload_job_process"]
JOB_INFO = _METRICS["dgx_gpu_job_info"]

OF_PROCESSES: tuple[Metric, ...] = (THREADS, WORKERS, BUSIEST)
OF_CGROUP: tuple[Metric, ...] = (CGROUP_STALLED, CGROUP_READ, CGROUP_WRITTEN, RECEIVED)
ROLES = "launching", "dispatching", "working"
DOING = Times._fields
KEY = ReadKey("workload", "processes")
UNSEEN = Absent(
    Reason.DENIED, f"/proc hides a thread or a child of a process on the GPU: {VISIBLE}"
)
MOST_JOBS = 8
REST_CORES = 0.05  # CPU usage in cores below which processes count as idle
CGROUP_HOLDS = 60.0  # Seconds for which a process is assumed to remain in its cgroup


def stopped(samples: SampleStore) -> dict[Labels, frozenset[int]]:
    found: dict[Labels, frozenset[int]] = {}
    for *gpu, pid in samples.all(STOPPED):
        found[tuple(gpu)] = found.get(tuple(gpu), frozenset()) | {int(pid)}
    return found


@dataclass(slots=True)
class Workload:
    """Reads the times, bytes, and jobs of the processes on every GPU, once per second."""

    host: Host
    options: HostOptions
    gpu_processes: GpuProcesses
    allocations: Allocations
    table: ProcessTable
    times: ProcessTimes
    sockets: CgroupSockets
    _seconds: dict[Labels, dict[str, Times]] = field(default_factory=dict)  # since first seen
    _cgroups: dict[int, tuple[str | None, float]] = field(default_factory=dict)
    _moved: dict[int, int] = field(default_factory=dict)  # bytes by PID, in the last read
    _totals: dict[str, cgroup.CgroupTotals] = field(default_factory=dict)  # shared by all GPUs
    _received: dict[Labels, float] = field(default_factory=dict)  # bytes, in the last read

    def read(self, out: ReadOutput) -> None:
        now = dict(self.gpu_processes)
        self.table.update(now)
        all_pids = {pid for pids in now.values() for pid in pids}
        self._totals.clear()
        self._received.clear()
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
        self._add_sockets(out, now)
        self.times.forget(now, out.at)
        for gpu in self._seconds.keys() - now.keys():
            del self._seconds[gpu]
        for of_processes in (self._cgroups, self._moved):
            for pid in of_processes.keys() - all_pids:
                del of_processes[pid]

    def _jobs(self, now: Mapping[Labels, Iterable[int]]) -> dict[str, tuple[str, ...]]:
        """Return the name and labels of each job, by job key. If the processes of a job have
        different labels, use the most complete ones."""
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
            more = (one.labels for one in given)
            jobs.update((one, None) for one in more if not _is_among(one, jobs))
            for names in list(jobs)[:MOST_JOBS]:
                out.add(JOB_INFO, 1, *gpu, *names)

    def _add_times(
        self, out: ReadOutput, gpu: Labels, pids: Sequence[int], grown: GpuTimes | None
    ) -> None:
        known = {pid: one for pid in pids if (one := self.times.known.get(pid))}
        for pid, one in known.items():
            self.table.verify(pid, one.started)
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
        out.add(TRAINING, grown.training, *gpu)
        for pid in (pid for pid, one in known.items() if one.state in ("T", "t")):
            out.add(STOPPED, 1, *gpu, str(pid))  # by a signal or a debugger
        ran = [times.running for times in grown[:3] if times is not None]
        if len(ran) == len(ROLES) and sum(ran) < REST_CORES:
            self._add_bytes(out, gpu, pids)

    def _add_bytes(self, out: ReadOutput, gpu: Labels, pids: Sequence[int]) -> None:
        """Add the bytes that the idle processes of a GPU have read and written. If a GPU has many
        processes, each call updates only some of them."""
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
            self._received[gpu] = received
        path = self._path(pid, out.at)
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

    def _path(self, pid: int, at: float) -> str | None:
        """Return the cgroup of a process, which is read once in CGROUP_HOLDS seconds."""
        path, until = self._cgroups.get(pid, (None, 0.0))
        if at >= until:
            path = cgroup.path_of(self.host.files, pid)
            self._cgroups[pid] = path, at + CGROUP_HOLDS
        return path

    def _add_sockets(self, out: ReadOutput, now: Mapping[Labels, Iterable[int]]) -> None:
        """Add the bytes of the sockets of each GPU's processes, if all are known. The root cgroup
        and that of the agent have sockets of others. Processes in one cgroup have the same."""
        counts, due = self.sockets.counts, self.sockets.due(out.at, sum(self._received.values()))
        if not due and not counts:
            return
        path_of = {pid: self._path(pid, out.at) or "" for pids in now.values() for pid in pids}
        if due:
            jobs: dict[str, set[str]] = {}
            for pid, path in path_of.items():
                jobs.setdefault(self.table.key(pid), set()).add(path)
            others = {"", cgroup.path_of(self.host.files, "self")}
            one_of = {path: pid for pid, path in path_of.items()}
            here = {path for path, pid in one_of.items() if self._shares_network(pid)}
            self.sockets.look([its for job, its in jobs.items() if job and not its & others], here)
        for gpu, pids in now.items():
            paths = {path_of[pid] for pid in pids}
            if paths <= counts.keys():
                for way in WAYS:
                    out.add(SOCKETS, sum(counts[path][way] for path in paths), *gpu, way)

    def _shares_network(self, pid: int) -> bool:
        """Return whether a process is in the agent's network namespace: the agent's has received
        at least as many bytes as the process's before, and at most as many as it has after."""
        counts = [cgroup.received(self.host.files, one) for one in (pid, "self", pid)]
        known = [count for count in counts if count]
        return len(known) == len(counts) and known == sorted(known)


def _is_among(labels: JobLabels, jobs: Iterable[tuple[str, ...]]) -> bool:
    """Return whether `jobs` contains a job with the job ID or pod in `labels`."""
    return any(
        (one.job_id, one.runtime) == (labels.job_id, labels.runtime)
        or (labels.pod and (one.namespace, one.pod) == (labels.namespace, labels.pod))
        for one in (JobLabels(*names) for names in jobs)
    )


def _nameless(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return a job's labels without names, for use while `job.info` is disabled. The runtime and
    the key remain. All GPUs of a job have the same key."""
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
    """Yield one read, of the processes on all GPUs. `spawn` runs a function on another thread."""

    def named() -> bool:
        return options.settings[JobConfig].info

    table = ProcessTable(host.files, clock.monotonic, named, spawn)
    times, sockets = ProcessTimes(host.files), CgroupSockets(host.sockets)
    run = Workload(host, options, gpu_processes, allocations, table, times, sockets).read
    yield Read(KEY, tuple(_METRICS.values()), run, fixed(intervals.TICK))
