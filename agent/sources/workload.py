"""The processes behind each GPU: what its launchers and their loaders do, and whose job it is.

A launcher is a process that NVML names; loaders are its descendants. Nothing is read for a GPU
without a process, and of a GPU that is fed only processes that have just arrived.
"""

from collections.abc import Iterable, Iterator

from agent import beats
from agent.backends.host import Host
from agent.clock import Clock
from agent.model import GPU_LABELS, Metric, ReadKey, gauge, signal
from agent.reads import Out, Read, fixed
from agent.sources.options import HostOptions
from agent.workload import follow
from agent.workload.crew import Crew, Crews
from agent.workload.occupants import Labels, Occupants
from agent.workload.roster import Roster

LAUNCHER_CORES = signal(
    "dgx_workload_launcher_cores",
    "Cores that the GPU's own processes use together: CPU seconds a second of all their threads, "
    "over the last 5 s.",
    "utime and stime in /proc/PID/stat of the processes that NVML names",
    GPU_LABELS,
)
LAUNCHER_WAITING = signal(
    "dgx_workload_launcher_waiting_ratio",
    "Share of the last five looks, 0-1, in which a process of the GPU was in uninterruptible sleep "
    "(D).",
    "state in /proc/PID/stat",
    GPU_LABELS,
)
LOADERS = signal(
    "dgx_workload_loaders",
    "Descendants of the GPU's processes that did anything in the last 5 s: ran, waited "
    "uninterruptibly, or used 2 % of a core.",
    "/proc/PID/task/TID/children and /proc/PID/stat",
    GPU_LABELS,
)
LOADERS_WAITING = signal(
    "dgx_workload_loaders_waiting_ratio",
    "Mean share of the last five looks, 0-1, in which a loader was in uninterruptible sleep (D).",
    "state in /proc/PID/stat",
    GPU_LABELS,
)
LOADERS_RUNNING = signal(
    "dgx_workload_loaders_running_ratio",
    "Mean share of the last 5 s, 0-1, for which a loader ran or was ready to (R); at least the "
    "share of a core that it used.",
    "state, utime and stime in /proc/PID/stat",
    GPU_LABELS,
)
LOADERS_CORES = signal(
    "dgx_workload_loaders_cores",
    "Cores that the loaders use together, over the last 5 s.",
    "utime and stime in /proc/PID/stat",
    GPU_LABELS,
)
ALLOWED_CORES = signal(
    "dgx_workload_allowed_cores",
    "Cores that the processes of the GPU and their loaders may use: those in the affinity of any, "
    "and no more than the CPU quota of their cgroups.",
    "Cpus_allowed_list in /proc/PID/status, cpu.max (version 1: cpu.cfs_quota_us) of the cgroups",
    GPU_LABELS,
)
LIVES = signal(
    "dgx_workload_arrived_seconds",
    "How long ago the newest process of the GPU came, in seconds; of processes older than the "
    "agent the time since their start.",
    "nvmlDeviceGetComputeRunningProcesses, starttime in /proc/PID/stat, /proc/uptime",
    GPU_LABELS,
)
JOB = signal(
    "dgx_workload_job",
    "1 for each job on the GPU, at most 8; GPUs with the same key work for one job. Job and user "
    "are empty unless job.info = true in the configuration.",
    "/proc/PID/stat, status, cgroup and cmdline of the GPU's processes and their ancestors",
    (*GPU_LABELS, "job", "user", "runtime", "key"),
)
JOB_INFO = gauge(
    "dgx_gpu_job_info",
    "1 for each job on the GPU, at most 8. Only with job.info = true in the configuration: off by "
    "default, because every job makes a new series and the labels name users.",
    "/proc/PID/stat, status, cgroup and cmdline of the GPU's processes and their ancestors",
    (*GPU_LABELS, "job", "user", "runtime"),
)

MOST_JOBS = 8
OF_CREW: tuple[Metric, ...] = (
    *(LAUNCHER_CORES, LAUNCHER_WAITING, LOADERS, LOADERS_WAITING, LOADERS_RUNNING, LOADERS_CORES),
    ALLOWED_CORES,
)


class Workload:
    """One look a second at the processes of every GPU."""

    def __init__(
        self, host: Host, clock: Clock, occupants: Occupants, options: HostOptions
    ) -> None:
        self._login = host.login
        self._occupants = occupants
        self._options = options
        self._roster = Roster(host.files, clock)
        self._crews = Crews(host.files)

    def read(self, out: Out) -> None:
        now = dict(self._occupants)
        self._roster.update({gpu: occupant.pids for gpu, occupant in now.items()})
        everyone = {pid for occupant in now.values() for pid in occupant.pids}
        for gpu, (pids, hungry) in now.items():
            self._tell_jobs(out, gpu, pids)
            hidden = self._roster.hidden(pids)
            if hidden is not None:
                for metric in (*OF_CREW, LIVES, JOB):
                    out.absent(metric, hidden, *gpu)
                continue
            age = self._roster.age(pids)
            if age is not None:
                out.add(LIVES, age, *gpu)
            if hungry and pids:
                self._tell_crew(out, gpu, self._crews.look(gpu, pids, everyone, out.at))
        self._crews.forget(now, out.at)

    def _tell_jobs(self, out: Out, gpu: Labels, pids: Iterable[int]) -> None:
        found: dict[tuple[str, ...], None] = {}
        for pid in pids:
            member = self._roster.member(pid)
            if member is not None:
                user = "" if member.uid is None else self._login(member.uid)
                found[member.job, user, member.runtime, self._roster.key(pid)] = None
        named = self._options.job_info
        shown = found if named else dict.fromkeys(map(_nameless, found))
        for labels in list(shown)[:MOST_JOBS]:
            out.add(JOB, 1, *gpu, *labels)
        if named:
            for job in list(dict.fromkeys(labels[:-1] for labels in found))[:MOST_JOBS]:
                out.add(JOB_INFO, 1, *gpu, *job)

    def _tell_crew(self, out: Out, gpu: Labels, there: Crew) -> None:
        """What the processes do; nothing before two looks, for there is no rate of one."""
        launchers = there.launchers.values()
        for pid, launcher in there.launchers.items():
            self._roster.verify(pid, launcher.started)
        cores = follow.cores(launchers)
        if cores is None:
            return
        loading = follow.loading(there.loaders.values())
        told: tuple[float | None, ...] = (
            *(cores, follow.waiting(launchers), loading.number, loading.waiting),
            *(loading.running, loading.cores, there.allowed),
        )
        for metric, value in zip(OF_CREW, told, strict=True):
            if value is not None:
                out.add(metric, value, *gpu)


def _nameless(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Runtime and key of a job: what joins GPUs is needed, whose it is was not asked for."""
    return ("", "", *labels[2:])


def reads(host: Host, clock: Clock, options: HostOptions, occupants: Occupants) -> Iterator[Read]:
    """The read of all processes on GPUs."""
    run = Workload(host, clock, occupants, options).read
    metrics = (*OF_CREW, LIVES, JOB, JOB_INFO)
    yield Read(ReadKey("workload", "processes"), metrics, run, fixed(beats.TICK))
