"""The jobs on this host: who belongs together, how each gets on, what each has cost at its end."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from agent.bounds import JOBS_KEPT
from agent.config.settings import Configuration, Section
from agent.diagnosis.accounting import GpuStateTime
from agent.diagnosis.disclosure import Disclosure
from agent.diagnosis.hang import late_gpus
from agent.diagnosis.job_record import JobRecord
from agent.diagnosis.pulses import REASONS, GpuPulse, GpuPulses
from agent.diagnosis.tick_context import RankActivity
from agent.jobs.grouping import JobGroup, JobMember, LockSteps, SentBytes, groups
from agent.jobs.identity import JobLabels
from agent.jobs.job import PEER, Culprit, CulpritState, Hang, Job, JobStatus, Receipt, WatchedJobs
from agent.jobs.speed import BIN, SLOWER
from agent.model import (
    GPU_LABELS,
    GpuKey,
    GpuMetric,
    Reading,
    ReadKey,
    Reason,
    Snapshot,
    State,
    Verdict,
    gauge,
)
from agent.polling import intervals
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import SampleStore
from agent.sources import nvlink, process, workload


class CostConfig(Section, frozen=True):
    """The price of a GPU-hour, in whatever currency; 0 where none is known."""

    table = "cost"
    gpu_hour: Annotated[float, Meta(ge=0, le=1e6, description="a number from 0 to 1000000")] = 0.0


REFERENCE = GpuMetric.gauge(
    "dgx_gpu_step_reference_seconds",
    "Median duration of a step of the job on this GPU in the job's own first hour, in seconds; "
    "from a minute after its rhythm was first detected.",
    "agent/jobs/speed.py",
)
HUNG = gauge(
    "dgx_gpu_hung_info",
    "1 for each process that a hung job waits for: it is stopped, or sleeps while the others spin. "
    "rank is empty if it is not known, host as the process is on this one.",
    "/proc/PID/stat, /proc/PID/task/TID/schedstat",
    (*GPU_LABELS, "rank", "pid", "host"),
)
PRICE = gauge(
    "dgx_cost_gpu_hour",
    "Price of a GPU-hour on this machine, in any currency; absent if none is configured.",
    "cost.gpu_hour of the configuration",
)
KEY = ReadKey("jobs", "running")


@dataclass(slots=True)
class JobWatch:
    """Follows the jobs tick by tick; an observer of the poller, after the diagnosis."""

    inventory: Callable[[], GpuInventory]
    accounts: Mapping[str, GpuStateTime]
    pulses: GpuPulses
    job_status: JobStatus
    configuration: Configuration
    _current: WatchedJobs = field(default_factory=WatchedJobs)
    _records: list[JobRecord] = field(default_factory=list)
    _ended: deque[Receipt] = field(default_factory=lambda: deque(maxlen=JOBS_KEPT))
    _seen: dict[int, tuple[str, str, int | None]] = field(default_factory=dict)
    """By pid: the key of its job, its owner, its rank."""
    _hangs: dict[str, Hang] = field(default_factory=dict)  # by id of the job
    _lock_steps: LockSteps = field(default_factory=LockSteps)

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Take in a tick; the snapshot stays as it is."""
        members = self._members(samples)
        found = self._grouped(members, samples)
        self._follow(found, snapshot, samples)
        booked = {uuid: account.booked for uuid, account in self.accounts.items()}
        for record in self._records:
            known = [self.accounts.get(gpu.uuid) for gpu in record.group.gpus]
            # where it is not known, too
            exchanges = any(one and one.history.seen.nvlink_seen for one in known)
            record.take(snapshot, samples, self.pulses.pulses, booked, exchanges=exchanges)
        self.pulses.apart = frozenset(uuid for record in self._records for uuid in record.apart)
        self.job_status.together = tuple(frozenset(r.group.gpus) for r in self._records)
        stepping = [r for r in self._records if r.step or r.speed.reference]
        self.job_status.stepping = frozenset(uuid for r in stepping for uuid in r.uses)
        self._judge(snapshot, workload.stopped(samples))
        price = self.configuration.current[CostConfig].gpu_hour
        self._current = WatchedJobs(
            tuple(self._job(record, snapshot, price) for record in self._records),
            tuple(self._ended),
        )
        return snapshot

    @property
    def current(self) -> WatchedJobs:
        """The jobs of the last tick, without names unless these may leave."""
        return Disclosure(self.configuration).jobs(self._current)

    def report(self, snapshot: Snapshot) -> Reading:
        """The price, the reference of each GPU's steps, and whom hung jobs wait for."""
        out = ReadOutput(snapshot.at)
        if price := self.configuration.current[CostConfig].gpu_hour:
            out.add(PRICE, price)
        for job in self._current.running:
            for gpu in job.receipt.gpus if job.reference else ():
                out.add(REFERENCE, job.reference or 0.0, *gpu.labels)
            for culprit in job.hang.culprits if job.hang else ():
                rank = "" if culprit.rank is None else str(culprit.rank)
                out.add(HUNG, 1, *culprit.gpu.labels, rank, str(culprit.pid), "")
        return Reading(KEY, snapshot.at, intervals.TICK, tuple(out.samples))

    # Who is there

    def _members(self, samples: SampleStore) -> list[JobMember]:
        """Every process on a GPU; what /proc does not show at the moment, it did before."""
        for _, _, pid, key, _, owner, rank in samples.all(workload.JOB_PROCESS):
            self._seen[int(pid)] = key, owner, int(rank) if rank else None
        there = [(gpu, uuid, int(pid)) for gpu, uuid, pid in samples.all(process.PROCESS)]
        alive = {pid for _, _, pid in there}
        self._seen = {pid: known for pid, known in self._seen.items() if pid in alive}
        return [
            JobMember(GpuKey(int(gpu), uuid), pid, *self._seen.get(pid, (f"process {pid}",)))
            for gpu, uuid, pid in sorted(there)
        ]

    def _grouped(self, members: list[JobMember], samples: SampleStore) -> list[JobGroup]:
        """The jobs of this tick; steps are compared only where /proc shows several."""
        found = groups(members)
        if len(found) < 2:
            return found
        sent: dict[GpuKey, SentBytes] = {}
        for gpu in {member.gpu for member in members}:
            point = samples.point(nvlink.TRANSMITTED, *gpu.labels)
            if point is not None:
                pids = {member.pid for member in members if member.gpu == gpu}
                sent[gpu] = SentBytes(pids, point.at, point.value)
        together = list(self._lock_steps.take(sent))
        return groups(members, together) if together else found

    def _follow(self, found: list[JobGroup], snapshot: Snapshot, samples: SampleStore) -> None:
        """Match the groups of this tick to the jobs that are known; begin and end the others."""
        left = list(self._records)
        following: list[JobRecord] = []
        for group in found:
            known = [record for record in left if record.group.pids & group.pids]
            if known:
                first = min(known, key=lambda record: record.began)
                for other in known:
                    left.remove(other)
                    if other is not first:
                        first.join(other)
                first.group = group
                following.append(first)
            else:
                name = f"{snapshot.wall:.0f}-{min(group.pids)}"
                following.append(JobRecord(name, group, snapshot.wall, snapshot.at))
        lost = self.inventory().lost
        for record in left:
            # none of its processes is left on any of its GPUs that answer
            there = [gpu.labels for gpu in record.group.gpus if gpu.uuid not in lost]
            if not all(samples.value(process.PROCESSES, *gpu) is not None for gpu in there):
                following.append(record)
            elif snapshot.at - record.began >= BIN:  # a test of the driver is no job
                price = self.configuration.current[CostConfig].gpu_hour
                self._ended.appendleft(record.receipt(snapshot.at, price, ended=snapshot.wall))
        self._records = sorted(following, key=lambda record: record.group.gpus)
        for record in self._records:
            record.names = _names(record.group, samples) or record.names

    # How they get on

    def _judge(self, snapshot: Snapshot, stopped: Mapping[tuple[str, ...], Set[int]]) -> None:
        """Find the jobs that hang, and the processes that they wait for."""
        self._hangs = {}
        for record in self._records:
            gpus = record.group.gpus
            accounts = {gpu: self.accounts[gpu.uuid] for gpu in gpus if gpu.uuid in self.accounts}
            seen = {gpu: account.history.seen for gpu, account in accounts.items()}
            # seconds for which all GPUs of a job of several have waited
            waits = min(one.waits_for for one in seen.values()) if len(gpus) > 1 and seen else 0.0
            verdicts = map(snapshot.verdicts.get, seen)
            hung = [v.since for v in verdicts if v and v.state is State.HUNG]
            if waits > 0 and len(hung) == len(seen):
                since = min(snapshot.at - waits, max(hung, default=snapshot.at))
                ranks = {gpu: one.rank for gpu, one in seen.items()}
                who = _waited_for(record.group.members, ranks, stopped)
                self._hangs[record.id] = Hang(record.wall_at(since), who, snapshot.at - since)

    def _job(self, record: JobRecord, snapshot: Snapshot, price: float) -> Job:
        pulses = [self.pulses.pulses.get(gpu.uuid) for gpu in record.group.gpus]
        receipt, lost = record.receipt(snapshot.at, price), self.inventory().lost
        return Job(
            receipt=receipt,
            grouped_by=record.group.grouped_by,
            pids=tuple(sorted(record.group.pids)),
            step=record.step,
            confidence=record.confidence,
            why_not=None if record.step else _why_not(pulses),
            reference=record.speed.reference,
            slower=record.slower,
            never_waits=_never_waits(record.group.gpus, snapshot.verdicts),
            hang=self._hangs.get(record.id),
            rates=tuple(record.speed.rates),
            lost=tuple(gpu for gpu in receipt.gpus if gpu.uuid in lost),
        )


def _waited_for(
    members: Iterable[JobMember],
    ranks: Mapping[GpuKey, RankActivity],
    stopped: Mapping[tuple[str, ...], Set[int]],
) -> tuple[Culprit, ...]:
    """The processes that a job waits for, by what /proc shows of those on this host."""
    late, found = late_gpus(ranks), []
    for gpu, pid, *_, rank in members:
        halted = stopped.get(gpu.labels, frozenset())
        if gpu in late and (not halted or pid in halted):
            state = CulpritState.STOPPED if halted else CulpritState.ASLEEP
            found.append(Culprit(rank, pid, gpu, state))
    return tuple(found)


def _names(group: JobGroup, samples: SampleStore) -> tuple[str, JobLabels] | None:
    """Return the name of the job, as far as it may be shown."""
    keys = {member.key for member in group.members}
    found = sorted(
        (job["job"], JobLabels(*(job[name] for name in JobLabels._fields)))
        for job in samples.labelled(workload.JOB)
        if job["key"] in keys
    )
    return found[0] if found else None


def _why_not(pulses: Iterable[GpuPulse | None]) -> Reason:
    """Return the reason why a job has no step: that of most of its GPUs."""
    reasons = [one.reason for one in pulses if one is not None and one.reason]
    return REASONS[max(reasons, key=reasons.count)].reason if reasons else Reason.NOT_ENOUGH


def _never_waits(gpus: Sequence[GpuKey], verdicts: Mapping[GpuKey, Verdict]) -> GpuKey | None:
    """The one GPU of a job that waits for no peer while all others do."""
    waits = sorted((verdicts[gpu].shares.get(PEER, 0.0), gpu) for gpu in gpus if gpu in verdicts)
    if len(waits) < 2 or len(waits) < len(gpus):
        return None
    (least, gpu), (second, _), *_ = waits
    return gpu if least < SLOWER <= second - least else None
