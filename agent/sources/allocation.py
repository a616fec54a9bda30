"""Which GPUs jobs were given: what Slurm's cgroups show, what Slurm and the kubelet say."""

import logging
import threading
from collections.abc import Callable, Iterator
from posixpath import dirname

from agent.config.settings import Section
from agent.errors import LogEvent
from agent.hardware import processes, schedulers
from agent.hardware.files import names_in, read_text
from agent.hardware.host import Host
from agent.jobs import allocation
from agent.jobs.allocation import Allocation, Allocations, Given
from agent.jobs.identity import TOLD, JobLabels, printable
from agent.model import GPU_LABELS, Absent, ReadKey, Reason, gauge
from agent.polling import intervals
from agent.polling.gpu_processes import GpuProcesses
from agent.polling.reads import Read, ReadOutput
from agent.sources.options import HostOptions


class AllocationConfig(Section, frozen=True):
    """Who is asked which GPUs jobs were given: `slurm` by squeue and scontrol, `kubelet` at its
    pod-resources socket, empty for never."""

    table = "allocation"
    slurm: bool = False
    kubelet: str = "/var/lib/kubelet/pod-resources/kubelet.sock"


ALLOCATED = gauge(
    "dgx_gpu_allocated",
    "1 while a job or a container was given the GPU, whether it uses it or not, 0 while none was; "
    "only where Slurm or the kubelet reports it.",
    "devices.list of Slurm's cgroups (version 1), SLURM_JOB_GPUS of a job's processes, scontrol, "
    "or the kubelet's pod-resources socket; /proc/driver/nvidia/gpus/*/information",
    GPU_LABELS,
)

VERSION_1 = "/sys/fs/cgroup/devices"
VERSION_2 = "/sys/fs/cgroup/system.slice"
GRES = ("/etc/slurm/gres.conf", "/etc/slurm-llnl/gres.conf")
MOST_JOBS = 64
NOBODY = "no control group of Slurm is here, no kubelet answers, and allocation.slurm is off"
UNKNOWN = (
    "which GPUs Slurm gave to a job stands in the environment of its processes, which may not \
be read: set allocation.slurm = true"
)
UNDESCRIBED = "scontrol does not describe a job that squeue lists"

log = logging.getLogger(__name__)


class AllocationRead:
    """Looks through Slurm's cgroups on the thread of the host; asks commands and sockets on
    another one (`spawn`), and takes in at the next read what they said."""

    def __init__(
        self,
        host: Host,
        options: HostOptions,
        gpu_processes: GpuProcesses,
        allocations: Allocations,
        spawn: Callable[[Callable[[], None]], None],
    ) -> None:
        self._files = host.files
        self._login = host.login
        self._schedulers = host.schedulers
        self._options = options
        self._gpus = gpu_processes
        self._allocations = allocations
        self._spawn = spawn
        self._asking = self._news = self._undescribed = False
        self._from_scheduler: Given | None = None
        self._failing: dict[str, str] = {}  # by who was asked

    def every(self) -> float:
        """What was asked for is taken in as soon as it is told."""
        return intervals.TICK if self._news or self._asking else intervals.ALLOCATION

    def read(self, out: ReadOutput) -> None:
        if not self._news and not self._asking and self._worth_asking():
            self._asking = True
            self._spawn(self._ask)
        self._news = False  # before it is looked at: it may be told in between
        scheduled = self._from_scheduler
        given = scheduled if scheduled is not None else self._seen()
        self._allocations.given = given
        if given.hidden is None:
            raise Absent(Reason.MISSING, NOBODY)
        for (gpu, uuid), _ in self._gpus:
            if self._allocations.of(uuid):
                out.add(ALLOCATED, 1, gpu, uuid)
            elif given.hidden:
                out.absent(ALLOCATED, Absent(Reason.DENIED, given.hidden), gpu, uuid)
            else:
                out.add(ALLOCATED, 0, gpu, uuid)

    # What others say

    def _worth_asking(self) -> bool:
        config = self._options.settings[AllocationConfig]
        if config.slurm or (config.kubelet and names_in(self._files, dirname(config.kubelet))):
            return True
        self._from_scheduler = None
        return False

    def _ask(self) -> None:
        try:
            found = [one for one in (self._of_slurm(), self._of_kubelet()) if one is not None]
            hidden = UNDESCRIBED if self._undescribed else ""
            self._from_scheduler = (
                Given(tuple(one for jobs in found for one in jobs), hidden) if found else None
            )
            self._news = True
        finally:
            self._asking = False

    def _of_slurm(self) -> list[Allocation] | None:
        self._undescribed = False
        if not self._options.settings[AllocationConfig].slurm:
            return None
        host = self._host()
        try:
            lines = self._schedulers.slurm(host)
        except OSError as error:
            self._failed("slurm", error)
            return None
        self._undescribed = any(" " not in line for line in lines)
        minors = allocation.by_minor(self._files)
        order = self._order(minors)
        jobs = [allocation.slurm_job(line, host) for line in lines]
        return [Allocation(job, allocation.uuids(gpus, order, minors)) for job, gpus in jobs]

    def _of_kubelet(self) -> list[Allocation] | None:
        path = self._options.settings[AllocationConfig].kubelet
        if not path:
            return None
        try:
            pods = list(schedulers.pods(self._schedulers.kubelet(path)))
        except FileNotFoundError:  # no kubelet here
            return None
        except (OSError, ValueError) as error:
            self._failed("kubelet", error)
            return None
        return list(allocation.of_pods(pods, self._gpus.parents()))

    def _failed(self, who: str, error: Exception) -> None:
        if self._failing.get(who) != str(error):  # once, not at each read
            log.warning(LogEvent("allocation_unknown", asked=who, reason=str(error)))
        self._failing[who] = str(error)

    # What Slurm's cgroups show

    def _seen(self) -> Given:
        minors = allocation.by_minor(self._files)
        folders = [*self._jobs(VERSION_1, "slurm"), *self._jobs(VERSION_2, "slurmstepd.scope")]
        if not minors or not self._runs_slurm():
            return Given()
        jobs, hidden = [], ""
        for number, folder in folders[:MOST_JOBS]:
            gpus, environment = self._of_job(number, folder, minors)
            partition, account = (
                environment.get(f"SLURM_JOB_{k}", "") for k in ("PARTITION", "ACCOUNT")
            )
            user = environment.get("user", "")
            if gpus is None:
                hidden = UNKNOWN  # without its number: only job.info lets that leave
            else:
                labels = JobLabels(number, user, "slurm", printable(partition), printable(account))
                jobs.append(Allocation(labels, gpus))
        return Given(tuple(jobs), hidden)

    def _runs_slurm(self) -> bool:
        tops = [*names_in(self._files, VERSION_1), *names_in(self._files, VERSION_2)]
        return any(name.startswith("slurm") or name.endswith("slurmstepd.scope") for name in tops)

    def _jobs(self, root: str, top: str) -> Iterator[tuple[str, str]]:
        """Number and folder of each job below the cgroups of Slurm, which may carry the node's
        name (slurm_node7, node7_slurmstepd.scope)."""
        for name in names_in(self._files, root):
            if name.startswith(f"{top}_") or name == top or name.endswith(f"_{top}"):
                users = [n for n in names_in(self._files, f"{root}/{name}") if n.startswith("uid_")]
                for folder in [f"{root}/{name}/{user}" for user in users] or [f"{root}/{name}"]:
                    for job in names_in(self._files, folder):
                        number = job.removeprefix("job_")
                        if number != job and number.isdecimal():
                            yield number, f"{folder}/{job}"

    def _of_job(
        self, number: str, folder: str, minors: dict[int, str]
    ) -> tuple[frozenset[str] | None, dict[str, str]]:
        """The GPUs of a job, None where they are hidden, and what its environment tells."""
        environment = self._environment(number, folder)
        try:
            listed = allocation.allowed(read_text(self._files, f"{folder}/devices.list"))
        except Absent:
            listed = None
        if listed is not None:
            return frozenset(minors[minor] for minor in listed & minors.keys()), environment
        if "SLURM_JOB_ID" not in environment:
            return None, environment
        places = allocation.numbers(environment.get("SLURM_JOB_GPUS", ""))
        return allocation.uuids(places, self._order(minors), minors), environment

    def _environment(self, number: str, folder: str) -> dict[str, str]:
        """Of the first process of the job whose environment may be read and agrees that it is of
        this job, and its `user`."""
        for pid in self._pids(folder):
            environment = processes.environment(self._files, pid, TOLD)
            if environment.get("SLURM_JOB_ID") == number:
                try:
                    uid = processes.uid(processes.status(self._files, pid))
                except OSError:
                    continue
                return environment | {"user": "" if uid is None else self._login(uid)}
        return {}

    def _pids(self, folder: str) -> Iterator[int]:
        """The job's own processes: in its steps (version 1), in their tasks (version 2)."""
        for step in names_in(self._files, folder):
            if step.startswith("step_"):
                inside = f"{folder}/{step}"
                tasks = [
                    f"{above}/{name}"
                    for above in (inside, f"{inside}/user")
                    for name in names_in(self._files, above)
                    if name.startswith("task_")
                ]
                for place in [inside, *tasks]:
                    yield from self._listed(f"{place}/cgroup.procs")

    def _listed(self, path: str) -> Iterator[int]:
        try:
            words = read_text(self._files, path).split()
        except Absent:
            return
        yield from (int(word) for word in words[:8] if word.isdecimal() and len(word) <= 10)

    def _order(self, minors: dict[int, str]) -> list[int]:
        for path in GRES:
            try:
                return allocation.slurm_order(read_text(self._files, path), self._host(), minors)
            except Absent:
                continue
        return sorted(minors)

    def _host(self) -> str:
        """As Slurm calls a node unless told otherwise: the name up to the first dot."""
        try:
            name = read_text(self._files, "/proc/sys/kernel/hostname")
        except Absent:
            return ""
        return name.partition(".")[0]


def on_a_thread(ask: Callable[[], None]) -> None:
    """A daemon thread: a command that hangs must not hold up the exit."""
    threading.Thread(target=ask, name="allocation", daemon=True).start()


def _at_once(ask: Callable[[], None]) -> None:
    ask()


def reads(
    host: Host,
    options: HostOptions,
    gpu_processes: GpuProcesses,
    allocations: Allocations,
) -> Iterator[Read]:
    """The read of all allocations."""
    spawn = on_a_thread if host.schedulers.slow else _at_once
    asked = AllocationRead(host, options, gpu_processes, allocations, spawn)
    key = ReadKey("allocation", "jobs")
    yield Read(key, (ALLOCATED,), asked.read, asked.every, varies=True)
