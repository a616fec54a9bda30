"""Tracks the jobs on this host: their processes, progress, hangs, and cost."""

from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from agent.bounds import JOBS_KEPT
from agent.config.settings import Configuration, Section
from agent.diagnosis.accounting import GpuStateTime
from agent.diagnosis.advice_seconds import most_fitting
from agent.diagnosis.disclosure import Disclosure
from agent.diagnosis.gpu_shares import BOOKED, JOB_SHARE, KEY, OF_JOB, GpuShares, Shares
from agent.diagnosis.hang import late_gpus
from agent.diagnosis.job_record import JobRecord, Totals, totals
from agent.diagnosis.pulses import GpuPulse, JobPulse
from agent.diagnosis.tick_context import RankActivity
from agent.jobs.grouping import JobGroup, JobMember
from agent.jobs.identity import JobLabels
from agent.jobs.job import PEER, Culprit, CulpritState, Hang, Job, Receipt, WatchedJobs
from agent.jobs.speed import BIN, SLOWER
from agent.metrics import declared_beside
from agent.model import Absent, GpuKey, Labels, Metric, Reading, Reason, Snapshot, State, Verdict
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import SampleStore
from agent.sources import process, workload


class CostConfig(Section, frozen=True):
    """Cost settings: the price per GPU-hour (0 if it is unknown), and the currency."""

    table = "cost"
    gpu_hour: Annotated[float, Meta(ge=0, le=1e6, description="a number from 0 to 1000000")] = 0.0
    currency: Annotated[
        str, Meta(pattern=r"^\w{0,8}$", description="a currency such as EUR, of 8 letters at most")
    ] = ""


_METRICS = declared_beside(__file__)
REFERENCE = _METRICS["dgx_gpu_step_reference_seconds"]
HUNG = _METRICS["dgx_gpu_hung_info"]
PRICE = _METRICS["dgx_cost_gpu_hour"]
CURRENCY = _METRICS["dgx_cost_info"]


@dataclass(slots=True)
class JobWatch:
    """Tracks jobs from tick to tick."""

    inventory: Callable[[], GpuInventory]
    configuration: Configuration
    _current: WatchedJobs = field(default_factory=WatchedJobs)
    _records: list[JobRecord] = field(default_factory=list)
    _ended: deque[Receipt] = field(default_factory=lambda: deque(maxlen=JOBS_KEPT))
    _gpu_shares: GpuShares = field(default_factory=GpuShares)
    _shares: Shares = field(default_factory=dict)
    _hangs: dict[str, Hang] = field(default_factory=dict)  # by job ID

    def take(
        self,
        snapshot: Snapshot,
        samples: SampleStore,
        groups: Sequence[JobGroup],
        of_jobs: Mapping[JobGroup, JobPulse],
        pulses: Mapping[str, GpuPulse],
        *,
        accounts: Mapping[str, GpuStateTime],
    ) -> frozenset[str]:
        """Update the jobs on a tick. Return the UUIDs of GPUs whose job has or had a step time."""
        self._follow(groups, snapshot, samples)
        totals = self._totals(pulses, accounts)
        known = frozenset(int(pid) for _, _, pid, *_ in samples.all(workload.JOB_PROCESS))
        self._shares = self._gpu_shares.take(samples, [record.group for record in self._records])
        for record in self._records:
            record.shares = {
                gpu: None if isinstance(jobs, Absent) else jobs.get(record.group)
                for gpu in record.group.gpus
                if (jobs := self._shares.get(gpu)) is not None
            }
            record.pulse = of_jobs.get(record.group, record.pulse)
            there = (accounts[g.uuid] for g in record.group.gpus if g.uuid in accounts)
            record.advice = most_fitting(account.advice for account in there)
            record.take(snapshot, samples, known, totals, self.inventory().lost)
        self._judge(snapshot, accounts, workload.stopped(samples))
        price, lost = self.configuration.current[CostConfig], self.inventory().lost
        self._current = WatchedJobs(
            tuple(self._job(record, snapshot, price, lost, pulses) for record in self._records),
            tuple(self._ended),
        )
        stepping = (r for r in self._records if r.pulse.step or r.speed.reference)
        return frozenset(uuid for record in stepping for uuid in record.uses)

    @property
    def current(self) -> WatchedJobs:
        """The jobs in the last tick. Their names are empty unless `job.info` is enabled."""
        return Disclosure(self.configuration).jobs(self._current)

    def report(self, snapshot: Snapshot) -> Reading:
        """Return a reading with the price, the job shares, and data about slower and hung jobs."""
        out = ReadOutput(snapshot.at)
        cost = self.configuration.current[CostConfig]
        if cost.gpu_hour:
            out.add(PRICE, cost.gpu_hour)
        if cost.currency:
            out.add(CURRENCY, 1, cost.currency)
        if self.configuration.current[workload.JobConfig].info:
            self._report_shares(out)
        for job in self._current.running:
            for gpu in job.receipt.gpus if job.reference else ():
                out.add(REFERENCE, job.reference or 0.0, *gpu.labels)
            for culprit in job.hang.culprits if job.hang else ():
                rank = "" if culprit.rank is None else str(culprit.rank)
                out.add(HUNG, 1, *culprit.gpu.labels, rank, str(culprit.pid), "")
        return out.reading(KEY)

    def _report_shares(self, out: ReadOutput) -> None:
        """Add samples with the share, seconds, and joules of each job on each shared GPU."""
        for gpu, shares in self._shares.items():
            if isinstance(shares, Absent):
                out.absent(JOB_SHARE, shares, *gpu.labels)
        found: dict[tuple[Metric, Labels], float] = defaultdict(float)
        for record in self._records:
            job = record.names[1]
            for gpu, share in record.shares.items():
                if share is None:
                    continue
                found[JOB_SHARE, (*gpu.labels, job.job_id, job.namespace, job.pod)] += share
                who = (*gpu.labels, *(getattr(job, name) for name in OF_JOB))
                for (name, pair), value in record.uses[gpu.uuid].shared.items():
                    if metric := BOOKED.get(name):
                        found[metric, (*who, *(pair or ()))[: len(metric.labels)]] += value
        for (metric, labels), value in found.items():
            out.add(metric, value, *labels)

    def _follow(self, found: Sequence[JobGroup], snapshot: Snapshot, samples: SampleStore) -> None:
        """Match the process groups in this tick with known jobs. Start new and end old jobs."""
        left = {pid: record for record in self._records for pid in record.group.pids}
        following: list[JobRecord] = []
        for group in found:
            known = dict.fromkeys(left[pid] for pid in sorted(group.pids & left.keys()))
            if known:
                first = min(known, key=lambda record: record.began)
                for other in known:
                    for pid in other.group.pids:
                        left.pop(pid, None)
                    if other is not first:
                        first.join(other)
                first.group = group
                following.append(first)
            else:
                name = f"{snapshot.wall:.0f}-{min(group.pids)}"
                following.append(JobRecord(name, group, snapshot.wall, snapshot.at))
        lost = self.inventory().lost
        for record in dict.fromkeys(left.values()):
            # the job has no process left on any of its GPUs that respond
            there = [gpu.labels for gpu in record.group.gpus if gpu.uuid not in lost]
            if not all(samples.value(process.PROCESSES, *gpu) is not None for gpu in there):
                following.append(record)
            elif snapshot.at - record.began >= BIN:  # a short test of the driver is not a job
                cost = self.configuration.current[CostConfig]
                price = cost.gpu_hour, cost.currency
                self._ended.appendleft(record.receipt(snapshot.at, *price, ended=snapshot.wall))
        self._records = sorted(following, key=lambda record: record.group.gpus)
        names = _names(samples)
        for record in self._records:
            shown = (names[member.key] for member in record.group.members if member.key in names)
            record.names = min(shown, default=record.names)

    def _totals(
        self, pulses: Mapping[str, GpuPulse], accounts: Mapping[str, GpuStateTime]
    ) -> dict[str, Totals]:
        """Return the totals of every GPU that has a job, by UUID."""
        gpus = {gpu for record in self._records for gpu in record.group.gpus}
        return {
            gpu.uuid: totals(
                accounts[gpu.uuid].booked, pulses[gpu.uuid].steps if gpu.uuid in pulses else 0
            )
            for gpu in gpus
            if gpu.uuid in accounts
        }

    def _judge(
        self,
        snapshot: Snapshot,
        accounts: Mapping[str, GpuStateTime],
        stopped: Mapping[tuple[str, ...], Set[int]],
    ) -> None:
        """Determine which jobs hang, and which processes these jobs wait for."""
        self._hangs = {}
        for record in self._records:
            gpus = record.group.gpus
            seen = {gpu: accounts[gpu.uuid].history.seen for gpu in gpus if gpu.uuid in accounts}
            # seconds for which all GPUs of a job on several GPUs have waited
            waits = min(one.waits_for for one in seen.values()) if len(gpus) > 1 and seen else 0.0
            verdicts = map(snapshot.verdicts.get, seen)
            hung = [v.since for v in verdicts if v and v.state is State.HUNG]
            if waits > 0 and len(hung) == len(seen):
                since = min(snapshot.at - waits, max(hung, default=snapshot.at))
                ranks = {gpu: one.rank for gpu, one in seen.items()}
                who = _waited_for(record.group.members, ranks, stopped)
                self._hangs[record.id] = Hang(record.wall_at(since), who, snapshot.at - since)

    def _job(
        self,
        record: JobRecord,
        snapshot: Snapshot,
        price: CostConfig,
        lost: Container[str],
        pulses: Mapping[str, GpuPulse],
    ) -> Job:
        receipt = record.receipt(snapshot.at, price.gpu_hour, price.currency)
        step = record.pulse.step
        verdicts = [v for gpu in record.group.gpus if (v := snapshot.verdicts.get(gpu))]
        return Job(
            receipt=receipt,
            grouped_by=record.group.grouped_by,
            pids=tuple(sorted(record.group.pids)),
            step=step,
            confidence=record.pulse.confidence,
            why_not=None if step else _why_not(pulses.get(gpu.uuid) for gpu in record.group.gpus),
            reference=record.speed.reference,
            slower=record.slower,
            never_waits=_never_waits(record.group.gpus, snapshot.verdicts),
            hang=self._hangs.get(record.id),
            rates=tuple(record.speed.rates),
            shares=record.shares,
            lost=tuple(gpu for gpu in receipt.gpus if gpu.uuid in lost),
            at_rest={one.state for one in verdicts} in ({State.HELD}, {State.IDLE}),
        )


def _waited_for(
    members: Iterable[JobMember],
    ranks: Mapping[GpuKey, RankActivity],
    stopped: Mapping[tuple[str, ...], Set[int]],
) -> tuple[Culprit, ...]:
    """Return the processes on this host that the rest of a hung job waits for."""
    late, found = late_gpus(ranks), []
    for gpu, pid, *_, rank in members:
        halted = stopped.get(gpu.labels, frozenset())
        if gpu in late and (not halted or pid in halted):
            state = CulpritState.STOPPED if halted else CulpritState.ASLEEP
            found.append(Culprit(rank, pid, gpu, state))
    return tuple(found)


def _names(samples: SampleStore) -> dict[str, tuple[str, JobLabels]]:
    """Return the name and the labels of each job, by job key."""
    names: dict[str, tuple[str, JobLabels]] = {}
    for job in samples.labelled(workload.JOB_PIDS):
        name = job["job"], JobLabels(*(job[label] for label in JobLabels._fields))
        names[job["key"]] = min(name, names.get(job["key"], name))
    return names


def _why_not(pulses: Iterable[GpuPulse | None]) -> Reason:
    """Return why a job has no step time: the most frequent of the reasons for its GPUs."""
    reasons = [one.reason for one in pulses if one is not None and one.reason]
    return max(reasons, key=reasons.count) if reasons else Reason.NOT_ENOUGH


def _never_waits(gpus: Sequence[GpuKey], verdicts: Mapping[GpuKey, Verdict]) -> GpuKey | None:
    """Return the only GPU of a job that does not wait for a peer, or None."""
    waits = sorted((verdicts[gpu].shares.get(PEER, 0.0), gpu) for gpu in gpus if gpu in verdicts)
    if len(waits) < 2 or len(waits) < len(gpus):
        return None
    (least, gpu), (second, _), *_ = waits
    return gpu if least < SLOWER <= second - least else None
