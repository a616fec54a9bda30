"""Allocation of GPUs to jobs, from the environments of Slurm jobs, Slurm, and the kubelet."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from posixpath import dirname

from agent.config.settings import Section
from agent.errors import Failure, LogEvent
from agent.hardware import processes, schedulers
from agent.hardware.files import names_in, text_or_nothing, whole
from agent.hardware.host import Host
from agent.jobs import allocation
from agent.jobs.allocation import Allocation, Allocations, Given
from agent.jobs.identity import SHOWN, JobLabels
from agent.metrics import declared_beside
from agent.model import EXPIRY_INTERVALS, Absent, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import HostOptions
from agent.threads import Spawn, at_once, on_a_thread


class AllocationConfig(Section, frozen=True):
    """Sources of allocations. `slurm` enables squeue and scontrol. `kubelet` is the path of the pod
    resources socket, or empty to disable the kubelet."""

    table = "allocation"
    slurm: bool = False
    kubelet: str = "/var/lib/kubelet/pod-resources/kubelet.sock"


_METRICS = declared_beside(__file__)
ALLOCATED = _METRICS["dgx_gpu_allocated"]

EXPIRED = EXPIRY_INTERVALS * intervals.ALLOCATION
"""Seconds after which the last response to a query expires."""

SLICE = "/sys/fs/cgroup/system.slice"
GRES = ("/run/slurm/conf/gres.conf", "/etc/slurm/gres.conf", "/etc/slurm-llnl/gres.conf")
"""Paths of gres.conf. slurmctld sends the first file to nodes without local configuration."""

MOST_JOBS = 64
SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
"""Directory name of a job since Slurm 26.05, which does not contain the job number any more."""

HIDDEN = "the environment of a job's processes, which has its GPUs of Slurm, may not be read: \
set allocation.slurm = true"
PARTLY = Absent(
    Reason.UNKNOWN,
    "a step of a job names its own GPUs alone, or shards of GPUs: set allocation.slurm = true",
)
"""`srun` without `sbatch` or `salloc` sets only SLURM_STEP_GPUS."""

UNDESCRIBED = Absent(Reason.DENIED, "scontrol does not describe a job that squeue lists")
"""As in HIDDEN, the message has no job number, because only job.info permits to export it."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AllocationRead:
    """Reads Slurm's cgroups on the host thread. Commands and sockets are queried through `spawn`,
    and a later read collects the responses."""

    host: Host
    options: HostOptions
    gpus: GpuProcesses
    allocations: Allocations
    spawn: Spawn
    _asked: dict[str, Future[Given | None]] = field(default_factory=dict)  # by scheduler name
    _since: float = 0.0
    _answers: list[Given | Failure] = field(default_factory=list)
    _failing: str = ""  # error of the last query to Slurm

    def every(self) -> float:
        return intervals.TICK if self._asked else intervals.ALLOCATION

    def read(self, out: ReadOutput) -> None:
        if not self._asked:
            self._since = out.at
            self._asked = {who: self.spawn(f"ask-{who}", ask) for who, ask in self._questions()}
        if all(asked.done() for asked in self._asked.values()):
            found = [outcome(asked) for asked in self._asked.values()]
            self._answers = [answer for answer in found if answer is not None]
            self._asked = {}
        elif out.at - self._since >= EXPIRED:
            self._answers, self.allocations.given = [], Given()
            raise Absent(Reason.STALLED, f"{' or '.join(self._asked)} has not answered yet")
        out.failure = next((one for one in self._answers if isinstance(one, Failure)), None)
        given = together(self._answers) if self._answers else self._seen()
        self.allocations.given = given
        if given.hidden is not None and given.hidden.reason is Reason.MISSING:
            raise given.hidden.without_traceback()
        for (gpu, uuid), _ in self.gpus:
            out.add(ALLOCATED, 1 if self.allocations.of(uuid) else given.hidden or 0, gpu, uuid)

    # Responses of the schedulers

    def _questions(self) -> Iterator[tuple[str, Callable[[], Given | None]]]:
        config = self.options.settings[AllocationConfig]
        if config.slurm:
            yield "slurm", self._of_slurm
        if config.kubelet and names_in(self.host.files, dirname(config.kubelet)):
            yield "kubelet", self._of_kubelet

    def _of_slurm(self) -> Given:
        host = self._host()
        try:
            lines = self._lines(host)
        except OSError as error:
            if self._failing != str(error):  # log an error only once, not at every query
                log.warning(LogEvent("allocation_unknown", asked="slurm", reason=str(error)))
            self._failing, seen = str(error), self._seen()
            failed = Given((), Absent(Reason.FAILED, str(error)))
            return failed if seen.hidden is allocation.NO_SCHEDULER else seen
        self._failing = ""
        minors = allocation.by_minor(self.host.files)
        jobs: list[Allocation] = []
        hidden: Absent | None = None
        for line in lines:
            labels, places = allocation.slurm_job(line, host)
            try:
                if " " not in line:
                    raise UNDESCRIBED.without_traceback()
                if isinstance(places, Absent):
                    raise places
                sluid = re.search(r" SLUID=(\S+)", line)
                gpus = self._uuids(places, minors)
                jobs.append(Allocation(labels, gpus, sluid[1] if sluid else ""))
            except Absent as absent:
                hidden = absent.without_traceback()
        return Given(tuple(jobs), hidden)

    def _lines(self, host: str) -> list[str]:
        """Query Slurm by the short host name, and then by the full name. Slurm may use either."""
        short = host.partition(".")[0]
        try:
            return self.host.schedulers.slurm(short)
        except TimeoutError:
            raise
        except OSError:
            if host == short:
                raise
            return self.host.schedulers.slurm(host)

    def _of_kubelet(self) -> Given | None:
        path = self.options.settings[AllocationConfig].kubelet
        try:
            pods = list(schedulers.pods(self.host.schedulers.kubelet(path)))
        except FileNotFoundError:  # there is no kubelet
            return None
        minors = {str(n): uuid for n, uuid in allocation.by_minor(self.host.files).items()}
        indices = {gpu: uuid for (gpu, uuid), _ in self.gpus}
        devices = allocation.Devices(self.gpus.parents(), minors, indices)
        return allocation.of_pods(pods, devices)

    # Environments of Slurm jobs

    def _seen(self) -> Given:
        minors = allocation.by_minor(self.host.files)
        scopes = [n for n in names_in(self.host.files, SLICE) if n.endswith("slurmstepd.scope")]
        if not minors or not scopes:
            return Given()
        jobs: list[Allocation] = []
        hidden: Absent | None = None
        for number, folder in list(self._jobs(scopes))[:MOST_JOBS]:
            try:
                gpus, user, rest = self._of_job(number, folder, minors)
            except Absent as absent:
                hidden = absent.without_traceback()
                continue
            hidden = rest or hidden
            jobs.append(Allocation(JobLabels(number, user, "slurm"), gpus, claimed=True))
        return Given(tuple(jobs), hidden)

    def _jobs(self, scopes: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the number and the directory of each job in Slurm's scopes, whose names may include
        the name of the node (node7_slurmstepd.scope)."""
        for folder in (f"{SLICE}/{scope}" for scope in scopes):
            for job in names_in(self.host.files, folder):
                number = job.removeprefix("job_")
                if (number != job and number.isdecimal()) or SLUID.fullmatch(job):
                    yield number, f"{folder}/{job}"

    def _of_job(
        self, number: str, folder: str, minors: dict[int, str]
    ) -> tuple[frozenset[str], str, Absent | None]:
        """Return the GPUs of a job, its user, and the reason why the job may have more GPUs. Raises
        Absent if the GPUs are unknown."""
        environment = self._environment(number, folder)
        if "SLURM_JOB_ID" not in environment:
            raise Absent(Reason.DENIED, HIDDEN)
        of_job, of_step = (environment.get(f"SLURM_{of}_GPUS", "") for of in ("JOB", "STEP"))
        shares = environment.get("SLURM_SHARDS_ON_NODE", "0").strip("0")
        rest = PARTLY if not of_job and (of_step or shares) else None
        places = allocation.numbers(of_job or of_step)
        gpus = self._uuids(places, minors)
        return gpus, environment["user"], rest

    def _environment(self, number: str, folder: str) -> dict[str, str]:
        """Return the environment of the first readable process that confirms the job number, with
        its user as `user`. Since Slurm 26.05, the directory name has no job number, so any process
        with a job number is accepted, and the directory name identifies the job."""
        for pid in self._pids(folder):
            environment = processes.environment(self.host.files, pid, SHOWN)
            said = environment.get("SLURM_JOB_ID", "")
            confirmed = said == number or (SLUID.fullmatch(number) and said)
            if confirmed and (status := processes.status(self.host.files, pid)):
                uid = processes.uid(status)
                return environment | {"user": "" if uid is None else self.host.login(uid)}
        return {}

    def _pids(self, folder: str) -> Iterator[int]:
        """Yield the processes of a job, from the tasks of its steps."""
        for step in names_in(self.host.files, folder):
            if step.startswith("step_"):
                inside = f"{folder}/{step}"
                tasks = [
                    f"{above}/{name}"
                    for above in (inside, f"{inside}/user")
                    for name in names_in(self.host.files, above)
                    if name.startswith("task_")
                ]
                for place in [inside, *tasks]:
                    words = text_or_nothing(self.host.files, f"{place}/cgroup.procs").split()[:8]
                    yield from (pid for word in words if (pid := whole(word, 10)) is not None)

    def _uuids(self, places: Sequence[int], minors: dict[int, str]) -> frozenset[str]:
        if not places:
            return frozenset()
        return allocation.uuids(places, self._order(minors), minors)

    def _order(self, minors: dict[int, str]) -> list[int]:
        """Return Slurm's order of GPUs. Raise Absent if Slurm may count other devices."""
        if self.gpus.divided:
            raise Absent(Reason.UNKNOWN, "a GPU is divided (MIG), and Slurm counts its parts")
        for path in GRES:
            if text := text_or_nothing(self.host.files, path):
                return allocation.slurm_order(text, self._host(), minors)
        if not allocation.is_complete(self.host.files):
            raise Absent(Reason.UNKNOWN, "a GPU has no UUID or minor number, but has a place")
        return sorted(minors)

    def _host(self) -> str:
        return text_or_nothing(self.host.files, "/proc/sys/kernel/hostname")


def outcome(asked: Future[Given | None]) -> Given | Failure | None:
    """Return the response or the failure. An unexpected error affects only one query."""
    error = asked.exception()
    return Failure.of(error) if error else asked.result()


def together(answers: Sequence[Given | Failure]) -> Given:
    """Return all allocations, and the reason why some may be missing."""
    given = [one for one in answers if isinstance(one, Given)]
    hidden = [one.hidden for one in given if one.hidden]
    hidden += [Absent(Reason.FAILED, str(one)) for one in answers if isinstance(one, Failure)]
    return Given(tuple(job for one in given for job in one.jobs), next(iter(hidden), None))


def reads(
    host: Host, options: HostOptions, gpu_processes: GpuProcesses, allocations: Allocations
) -> Iterator[Read]:
    spawn = on_a_thread if host.schedulers.slow else at_once
    asked = AllocationRead(host, options, gpu_processes, allocations, spawn)
    key = ReadKey("allocation", "jobs")
    yield Read(key, (ALLOCATED,), asked.read, asked.every, varies=True)
