"""Keeps the record of a job: its use of GPUs and its speed."""

from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, field

from agent.bounds import HOUR
from agent.diagnosis.pulses import JobPulse
from agent.diagnosis.state_seconds import SecondsByState
from agent.jobs.grouping import JobGroup
from agent.jobs.identity import JobLabels
from agent.jobs.job import Receipt, Slowdown, savings
from agent.jobs.speed import SLOWER, JobSpeed
from agent.model import PAIRS, GpuKey, Pair, Snapshot
from agent.series import SampleStore
from agent.sources import workload

Totals = dict[tuple[str, Pair | None], float]
"""Totals by name and by state and cause. The latter is None for totals such as `steps`."""


def totals(booked: SecondsByState, steps: int) -> Totals:
    """Return the totals of a GPU: the seconds, joules, and tensor work in `booked`, and the steps.
    All of them count from 0 since the agent started."""
    now: Totals = {("seconds", pair): part for pair, part in booked.seconds.items() if part}
    now |= {("joules", pair): part for pair, part in booked.energy.spent().items()}
    now |= {("unobserved", None): booked.unobserved, ("steps", None): steps}
    return now if booked.tensor is None else now | {("tensor", None): booked.tensor}


@dataclass(slots=True)
class GpuUse:
    """A job's use of a GPU: the increases of the GPU's totals while the job was on the GPU."""

    gpu: GpuKey
    sums: Totals = field(default_factory=dict)
    shared: Totals = field(default_factory=dict)  # the part of `sums` with known shares
    before: Totals | None = None  # None while the job is not on the GPU

    def take(self, now: Totals, share: float | None, *, shared: bool) -> None:
        """Add the increases in the GPU's totals, multiplied by the job's share, to its sums. If the
        share is unknown (None), count the seconds of the whole GPU as `undivided`."""
        before = now if self.before is None else self.before
        for key, value in now.items():
            name = key[0]
            unknown = share is None and name in ("seconds", "unobserved")
            part = 1.0 if unknown or name == "steps" else share or 0.0
            booked: tuple[str, Pair | None] = ("undivided", None) if unknown else key
            grown = part * (value - before.get(key, 0.0))
            self.sums[booked] = self.sums.get(booked, 0.0) + grown
            if shared and not unknown:
                self.shared[key] = self.shared.get(key, 0.0) + grown
        self.before = before | now


def of(totals: Totals, name: str) -> dict[Pair, float]:
    """Return the totals with this name by state and cause. Omit totals that are not above 0."""
    return {pair: part for pair in PAIRS if (part := totals.get((name, pair), 0.0)) > 0}


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job's use of GPUs and its speed, updated on every tick. Times are in seconds on the agent's
    monotonic clock, except `wall`, which is in seconds since the epoch."""

    id: str
    group: JobGroup
    wall: float
    began: float
    speed: JobSpeed = field(init=False)
    uses: dict[str, GpuUse] = field(default_factory=dict)  # by UUID
    names: tuple[str, JobLabels] = ("", JobLabels())
    pulse: JobPulse = field(default_factory=JobPulse)
    advice: Mapping[Pair, str] = field(default_factory=dict)
    shares: Mapping[GpuKey, float | None] = field(default_factory=dict)
    """The job's share of each GPU that other jobs also use, or None if the share is unknown."""
    slower: Slowdown | None = None
    missing: dict[str, float] = field(default_factory=dict)  # s since a GPU was lost, by UUID
    _at: float = 0.0
    _wall: float = 0.0
    _slower_since: float | None = None
    _older: float | None = None  # seconds that the job had been running when it was first seen

    def __post_init__(self) -> None:
        self._at, self._wall, self.speed = self.began, self.wall, JobSpeed(self.began)

    def take(
        self,
        snapshot: Snapshot,
        samples: SampleStore,
        known: Set[int],
        totals: Mapping[str, Totals],
        lost: Container[str] = (),
    ) -> None:
        """Update the record on a tick. `known` contains the PIDs of processes that were read in
        /proc, `totals` contains totals by GPU UUID, and `lost` contains the UUIDs of lost GPUs."""
        now = snapshot.at
        seconds = now - self._at
        self._at, self._wall = now, snapshot.wall
        if self._older is None:
            self._older = self._age(samples, known, now)
        there = {gpu.uuid: gpu for gpu in self.group.gpus}
        for uuid, gpu in there.items():
            if uuid in totals:
                self.uses.setdefault(uuid, GpuUse(gpu)).take(
                    totals[uuid], self.shares.get(gpu, 1.0), shared=gpu in self.shares
                )
        for uuid in self.uses.keys() - there.keys():
            self.uses[uuid].before = None
            if uuid in lost:
                self.missing[uuid] = self.missing.get(uuid, 0.0) + seconds
        self.speed.take(now, seconds, self.pulse.step)
        self._compare(now)

    def join(self, other: "JobRecord") -> None:
        """Merge another record into this one, because both turned out to be about the same job."""
        for uuid, use in other.uses.items():
            mine = self.uses.get(uuid)
            if mine is None or mine.before is None:
                for key, part in mine.sums.items() if mine else ():
                    use.sums[key] = use.sums.get(key, 0.0) + part
                self.uses[uuid] = use

    def age(self, now: float) -> float:
        """Return the number of seconds since the newest process of the job started or, if its start
        is unknown, since the agent first saw the job."""
        return now - self.began + (self._older or 0.0)

    def _age(self, samples: SampleStore, read: Set[int], now: float) -> float | None:
        """Return how many seconds the job had been running when the agent first saw it. Return None
        until its own processes have been read, because until then the age may be that of others,
        such as the processes of an earlier Slurm job step on the same GPUs."""
        known = () if read.isdisjoint(self.group.pids) else self.group.gpus
        ages = [samples.value(workload.NEWEST_PROCESS_AGE, *gpu.labels) for gpu in known]
        oldest = max((age for age in ages if age is not None), default=None)
        return None if oldest is None else max(0.0, oldest - (now - self.began))

    def _compare(self, now: float) -> None:
        """Compare the current step time with that of the first hour, and update `slower`."""
        reference, step = self.speed.reference, self.pulse.step
        if not step:
            return
        if not reference or step <= (1 + SLOWER) * reference:
            self.slower = self._slower_since = None
            return
        since = self._slower_since = self._slower_since or now - self.pulse.lag
        self.slower = Slowdown(step, reference, self.wall_at(since), now - since)

    def wall_at(self, moment: float) -> float:
        """Return the time since the epoch for a time on the agent's monotonic clock."""
        return self._wall - (self._at - moment)

    def receipt(
        self, now: float, price: float, currency: str = "", ended: float | None = None
    ) -> Receipt:
        """Return the job's receipt, with its GPU time up to `now`."""
        by_gpu = {use.gpu: of(use.sums, "seconds") for use in self.uses.values()}
        total: Totals = {}
        for use in self.uses.values():
            for key, part in use.sums.items():
                total[key] = total.get(key, 0.0) + max(0.0, part)
        seconds, joules = of(total, "seconds"), of(total, "joules")
        missing = sum(self.missing.values())
        unobserved = total.get(("unobserved", None), 0.0) + missing
        hours = (sum(seconds.values()) + unobserved) / HOUR
        return Receipt(
            self.id,
            *self.names,
            gpus=tuple(sorted(by_gpu)),
            began=self.wall - (self._older or 0.0),
            ended=ended,
            lasted=self.age(now),
            watched=now - self.began,
            seconds=seconds,
            unobserved=unobserved,
            undivided=total.get(("undivided", None), 0.0),
            missing=missing,
            held=sum(self.shares.get(gpu, 1.0) or 0.0 for gpu in self.group.gpus)
            + len(self.missing),
            steps=int(max([0.0, *(u.sums.get(("steps", None), 0.0) for u in self.uses.values())])),
            mean_rate=self.speed.mean,
            joules=sum(joules.values()) if any(name == "joules" for name, _ in total) else None,
            joules_by=joules,
            tensor=total.get(("tensor", None)),
            cost=hours * price if price else None,
            currency=currency,
            savings=tuple(
                one._replace(advice=self.advice.get(one.due_to or one.pair))
                for one in savings(by_gpu)
            ),
        )
