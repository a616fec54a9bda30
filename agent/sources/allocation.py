"""Queries Slurm and the kubelet for the jobs to which they have allocated GPUs."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from posixpath import dirname

from agent.config.settings import Section
from agent.errors import Failure, LogEvent, log
from agent.hardware import schedulers
from agent.hardware.files import names_in, text_or_nothing
from agent.hardware.host import Host
from agent.jobs import allocation
from agent.jobs.allocation import Allocation, Allocations, Given
from agent.metrics import declared_beside
from agent.model import EXPIRY_INTERVALS, Absent, ReadKey, Reason
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses
from agent.polling.reads import Read, ReadOutput
from agent.sources.context import HostOptions
from agent.threads import Spawn, at_once, on_a_thread


class AllocationConfig(Section, frozen=True):
    """Settings for allocations. `slurm` enables calls to squeue and scontrol. `kubelet` is the path
    of the pod resources socket. If the path is empty, the kubelet is not queried."""

    table = "allocation"
    slurm: bool = False
    kubelet: str = "/var/lib/kubelet/pod-resources/kubelet.sock"


_METRICS = declared_beside(__file__)
ALLOCATED = _METRICS["dgx_gpu_allocated"]

EXPIRED = EXPIRY_INTERVALS * intervals.ALLOCATION
"""Seconds for which a response from Slurm or the kubelet is used."""

GRES = ("/run/slurm/conf/gres.conf", "/etc/slurm/gres.conf", "/etc/slurm-llnl/gres.conf")
"""Paths of gres.conf. slurmctld sends the first file to nodes that have no local configuration."""

UNDESCRIBED = Absent(Reason.DENIED, "scontrol does not describe a job that squeue lists")
"""The message omits the job ID, because job IDs are exported only if `job.info` is enabled."""


@dataclass(slots=True)
class AllocationRead:
    """Queries Slurm and the kubelet on separate threads. A later read uses their responses."""

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
            found = (  # an unexpected error affects only one query
                Failure.of(error) if (error := asked.exception()) else asked.result()
                for asked in self._asked.values()
            )
            self._answers = [answer for answer in found if answer is not None]
            self._asked = {}
        elif out.at - self._since >= EXPIRED:
            self._answers, self.allocations.given = [], Given()
            raise Absent(Reason.STALLED, f"{' or '.join(self._asked)} has not answered yet")
        out.failure = next((one for one in self._answers if isinstance(one, Failure)), None)
        given = together(self._answers) if self._answers else Given()
        self.allocations.given = given
        if given.hidden is not None and given.hidden.reason is Reason.MISSING:
            raise given.hidden.without_traceback()
        for (gpu, uuid), _ in self.gpus:
            out.add(ALLOCATED, 1 if self.allocations.of(uuid) else given.hidden or 0, gpu, uuid)

    def _questions(self) -> Iterator[tuple[str, Callable[[], Given | None]]]:
        config = self.options.settings[AllocationConfig]
        if config.slurm:
            yield "slurm", self._of_slurm
        if config.kubelet and names_in(self.host.files, dirname(config.kubelet)):
            yield "kubelet", self._of_kubelet

    def _of_slurm(self) -> Given:
        host = self._host()
        try:
            found = self._slurm_jobs(host)
        except OSError as error:
            if self._failing != str(error):  # log an error only once, not at every query
                log.warning(LogEvent("allocation_unknown", asked="slurm", reason=str(error)))
            self._failing = str(error)
            return Given((), Absent(Reason.FAILED, self._failing))
        self._failing = ""
        minors = allocation.by_minor(self.host.files)
        jobs: list[Allocation] = []
        hidden: Absent | None = None
        for job in found:
            try:
                if job.gres is None:
                    raise UNDESCRIBED.without_traceback()
                places = allocation.slurm_places(job.gres, host)
                gpus = allocation.uuids(places, self._order(minors) if places else (), minors)
                jobs.append(Allocation(allocation.slurm_labels(job), gpus, job.sluid))
            except Absent as absent:
                hidden = absent.without_traceback()
        return Given(tuple(jobs), hidden)

    def _slurm_jobs(self, host: str) -> list[schedulers.SlurmJob]:
        """Return the Slurm jobs on this host. Slurm may use its short or its full name."""
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

    def _order(self, minors: dict[int, str]) -> list[int]:
        """Return the minor numbers of the GPUs in the order in which Slurm numbers the GPUs. Raise
        Absent if this order is unknown."""
        if self.gpus.divided:
            raise Absent(Reason.UNKNOWN, "a GPU is divided (MIG), and Slurm counts its parts")
        for path in GRES:
            if text := text_or_nothing(self.host.files, path):
                return allocation.slurm_order(text, self._host(), minors)
        if len(minors) < len(names_in(self.host.files, allocation.DRIVER)):
            raise Absent(Reason.UNKNOWN, "a GPU has no UUID or minor number, but has a place")
        return sorted(minors)

    def _host(self) -> str:
        return text_or_nothing(self.host.files, "/proc/sys/kernel/hostname")


def together(answers: Sequence[Given | Failure]) -> Given:
    """Return the allocations of all schedulers. If some may be missing, the result has a reason."""
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
