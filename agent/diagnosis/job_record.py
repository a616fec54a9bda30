"""One job as it is followed: what it has used, how fast it is, what changed."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TypeVar

from agent.bounds import HOUR, RATES_KEPT
from agent.diagnosis.energy import EnergyByState
from agent.diagnosis.pulses import GpuPulse
from agent.diagnosis.state_seconds import SecondsByState
from agent.jobs.grouping import JobGroup
from agent.jobs.identity import JobLabels
from agent.jobs.job import PEER, ChangeKind, JobChange, Receipt, Slowdown, savings
from agent.jobs.speed import BIN, SLOWER, JobSpeed
from agent.model import GAINED_BY, GpuKey, Metric, Pair, Snapshot
from agent.series import SampleStore
from agent.sources import activity, clocks, temperature, workload

WARMER = 5.0
"""Degrees that count as a change; chosen, not measured. Of the clock and of shares of the time it
is SLOWER: they make a job slower by as much."""

Parts = dict[Pair, float]
Of = TypeVar("Of")


def added(parts: Iterable[Mapping[Of, float]]) -> dict[Of, float]:
    """The sums of all."""
    total: dict[Of, float] = {}
    for one in parts:
        for pair, part in one.items():
            total[pair] = total.get(pair, 0.0) + part
    return total


@dataclass(slots=True)
class GpuUse:
    """Use of one GPU by the job: seconds by state and cause, and steps, less those before."""

    gpu: GpuKey
    booked: SecondsByState
    before: Mapping[Pair, float]
    unobserved_before: float
    steps_before: int
    steps: int = 0
    left: bool = False
    tensor: float | None = None  # s at the peak of the tensor cores
    _counted: float | None = None  # the counter of those when it was last read
    joules_before: Mapping[Pair | None, float] = field(default_factory=dict)

    @classmethod
    def of(cls, gpu: GpuKey, booked: SecondsByState, steps: int) -> "GpuUse":
        before = booked.energy.spent()
        use = cls(gpu, booked, dict(booked.seconds), booked.unobserved, steps)
        use.joules_before = before
        return use

    @property
    def unobserved(self) -> float:
        """GPU-seconds since the job came of which nothing is known."""
        return self.booked.unobserved - self.unobserved_before

    @property
    def seconds(self) -> Parts:
        """GPU-seconds since the job came, those above 0."""
        parts = {p: s - self.before.get(p, 0.0) for p, s in self.booked.seconds.items()}
        return {pair: part for pair, part in parts.items() if part > 0}

    def add_tensor(self, counted: float | None) -> None:
        """Take in the GPU's counter of seconds at the peak of the tensor cores, if it is known."""
        if counted is not None and not self.left:
            grown = 0.0 if self._counted is None else max(0.0, counted - self._counted)
            self.tensor, self._counted = (self.tensor or 0.0) + grown, counted

    @property
    def joules(self) -> dict[Pair | None, float]:
        """Joules since the job came, None for seconds without a state; empty without a counter."""
        spent = self.booked.energy.spent()
        return {p: max(0.0, j - self.joules_before.get(p, 0.0)) for p, j in spent.items()}

    def freeze(self) -> None:
        """The job has left this GPU: what it does from now on is not the job's."""
        spent = EnergyByState(self.booked.energy.spent(), self.booked.energy.counted)
        kept = SecondsByState(unobserved=self.booked.unobserved, energy=spent)
        kept.seconds = dict(self.booked.seconds)
        self.booked, self.left, self._counted = kept, True, None

    def after(self, earlier: "GpuUse") -> "GpuUse":
        """The same with what the job did on this GPU before it was away."""
        self.before = _less(self.before, earlier.seconds)
        self.joules_before = _less(self.joules_before, earlier.joules)
        self.unobserved_before -= earlier.unobserved
        self.steps_before -= earlier.steps
        self.steps += earlier.steps
        if earlier.tensor is not None:
            self.tensor = (self.tensor or 0.0) + earlier.tensor
        return self


def _less(before: Mapping[Of, float], done: Mapping[Of, float]) -> dict[Of, float]:
    return {pair: before.get(pair, 0.0) - done.get(pair, 0.0) for pair in {*before, *done}}


@dataclass(frozen=True, slots=True)
class JobBin:
    """State of the GPUs of a job over ten seconds; clock in Hz, temperature in degrees Celsius."""

    at: float
    clock: float | None
    temperature: float | None
    shares: Mapping[Pair, float]
    waits: Mapping[GpuKey, float]  # share of the time in which the GPU waited for a peer
    neighbours: int


@dataclass(slots=True)
class JobRecord:
    """Followed tick by tick; seconds are of the agent's monotonic clock, `wall` since the epoch."""

    id: str
    group: JobGroup
    wall: float
    began: float
    speed: JobSpeed
    uses: dict[str, GpuUse] = field(default_factory=dict)  # by UUID
    names: tuple[str, JobLabels] = ("", JobLabels())
    step: float | None = None
    confidence: float = 0.0
    apart: frozenset[str] = frozenset()  # UUIDs of GPUs whose steps are not the job's
    slower: Slowdown | None = None
    _bins: deque[JobBin] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    _totals: dict[str, Parts] = field(default_factory=dict)  # by UUID, at the end of the last bin
    _at: float = 0.0
    _wall: float = 0.0
    _pace: float = 1.0  # wall seconds in a second of the agent's clock
    _slower_since: float | None = None
    _lag: float = 0.0  # s after which a change of its steps shows
    _older: float | None = None  # s for which it had run when the agent met it

    def __post_init__(self) -> None:
        self._at, self._wall = self.began, self.wall

    def take(
        self,
        snapshot: Snapshot,
        samples: SampleStore,
        pulses: Mapping[str, GpuPulse],
        neighbours: int,
        exchanges: bool,
    ) -> None:
        """Take in a tick, on which so many other jobs are on this host. GPUs that exchange data
        take the same steps; others may be jobs of one sweep, each with its steps."""
        now = snapshot.at
        seconds = now - self._at
        self._at, self._wall = now, snapshot.wall
        self._pace = (self._wall - self.wall) / (now - self.began) if now > self.began else 1.0
        if self._older is None:
            self._older = self._age(samples, now)
        for use in self.uses.values():
            use.add_tensor(samples.value(activity.TENSOR_SECONDS, *use.gpu.labels))
        mine = {g.uuid: pulses[g.uuid] for g in self.group.gpus if g.uuid in pulses}
        for uuid, pulse in mine.items():
            if uuid in self.uses:
                self.uses[uuid].steps = pulse.steps - self.uses[uuid].steps_before
        self._agree(mine, exchanges)
        if self.speed.take(now, seconds, self.step):
            self._bins.append(self._bin(samples, now, neighbours))
        self._compare(now)

    def join(self, other: "JobRecord") -> None:
        """Take over what another job did that turns out to be this one."""
        for uuid, use in other.uses.items():
            mine = self.uses.get(uuid)
            if mine is None or mine.left:
                self.uses[uuid] = use if mine is None else use.after(mine)

    def age(self, now: float) -> float:
        """Seconds since its newest process came, as far as that is known."""
        return now - self.began + (self._older or 0.0)

    def _age(self, samples: SampleStore, now: float) -> float | None:
        """For how long it had run when it was met. What was read before its own processes were is
        the age of others: of the step of a Slurm job that ran on these GPUs before."""
        read = {int(pid) for _, _, pid, *_ in samples.all(workload.JOB_PROCESS)}
        ages = self._values(samples, workload.NEWEST_PROCESS_AGE) if read & self.group.pids else []
        return max(0.0, max(ages) - (now - self.began)) if ages else None

    def _values(self, samples: SampleStore, metric: Metric, *labels: str) -> list[float]:
        """The values of its GPUs that are known."""
        values = (samples.value(metric, *gpu.labels, *labels) for gpu in self.group.gpus)
        return [value for value in values if value is not None]

    def _agree(self, pulses: Mapping[str, GpuPulse], exchanges: bool) -> None:
        """The step on which most of its GPUs agree; where they exchange data, those that report
        another one stand apart."""
        steps = {uuid: pulse.step for uuid, pulse in pulses.items() if pulse.step}
        middle = median(steps.values()) if steps else 0.0
        near = {uuid for uuid, step in steps.items() if abs(step / middle - 1) <= SLOWER}
        if 2 * len(near) <= len(steps):
            near = set()
        self.apart = frozenset(steps.keys() - near) if exchanges else frozenset()
        self.step = fmean(steps[uuid] for uuid in near) if near else None
        believed = [p.reading for u, p in pulses.items() if u in near and p.reading]
        self.confidence = fmean(one.confidence for one in believed) if near else 0.0
        self._lag = max((one.lag for one in believed), default=0.0)

    def _bin(self, samples: SampleStore, now: float, neighbours: int) -> JobBin:
        total: Parts = {}
        waits: dict[GpuKey, float] = {}
        for uuid, use in self.uses.items():
            seconds, before = use.seconds, self._totals.get(uuid, {})
            grown = {pair: part - before.get(pair, 0.0) for pair, part in seconds.items()}
            self._totals[uuid] = seconds
            whole = sum(grown.values())
            if whole > 0:
                waits[use.gpu] = grown.get(PEER, 0.0) / whole
            for pair, part in grown.items():
                total[pair] = total.get(pair, 0.0) + part
        whole = sum(total.values())
        return JobBin(
            now,
            min(self._values(samples, clocks.CLOCK, "sm"), default=None),
            max(self._values(samples, temperature.TEMPERATURE), default=None),
            {pair: part / whole for pair, part in total.items()} if whole > 0 else {},
            waits,
            neighbours,
        )

    def _compare(self, now: float) -> None:
        """Compare its speed with its first hour; look for the change while new bins come."""
        reference = self.speed.reference
        if not self.step or not reference or not self.speed.slower(self.step):
            if self.step:
                self.slower = self._slower_since = None
            return
        since = self._slower_since = self._slower_since or now - self._lag
        lasted = (self._at - since) * self._pace
        changes = self.changes(since)
        self.slower = Slowdown(self.step, reference, self.wall_at(since), lasted, changes)

    def wall_at(self, moment: float) -> float:
        """The wall time of a moment of the agent's clock, which may run faster."""
        return self._wall - (self._at - moment) * self._pace

    def changes(self, since: float) -> tuple[JobChange, ...]:
        """Return the changes since then, compared with what is kept of before."""
        before = [one for one in self._bins if one.at <= since]
        after = [one for one in self._bins if one.at - BIN >= since]
        if not before or not after:
            return ()
        return tuple(_changes(before, after))

    @property
    def never_waits(self) -> GpuKey | None:
        """The one GPU that has not waited for a peer lately while all others have."""
        bins = list(self._bins)
        if len(self.group.gpus) < 2 or not bins:
            return None
        mean = [(fmean(b.waits.get(gpu, 0.0) for b in bins), gpu) for gpu in self.group.gpus]
        (least, gpu), (second, _), *_ = sorted(mean)
        return gpu if least < SLOWER <= second - least else None

    def receipt(self, now: float, price: float, ended: float | None = None) -> Receipt:
        """Return the division of its GPU-hours up to now."""
        by_gpu = {use.gpu: use.seconds for use in self.uses.values()}
        total = added(by_gpu.values())
        spent = added(use.joules for use in self.uses.values())
        joules = {pair: part for pair, part in spent.items() if pair is not None}
        watched = now - self.began
        unobserved = sum(use.unobserved for use in self.uses.values())
        tensor = [use.tensor for use in self.uses.values() if use.tensor is not None]
        hours = (sum(total.values()) + unobserved) / HOUR
        return Receipt(
            self.id,
            *self.names,
            gpus=tuple(sorted(by_gpu)),
            began=self.wall - (self._older or 0.0) * self._pace,
            ended=ended,
            lasted=self.age(now),
            watched=watched,
            seconds=total,
            unobserved=unobserved,
            steps=max((use.steps for use in self.uses.values()), default=0),
            mean_rate=self.speed.mean,
            best_rate=self.speed.best,
            joules=sum(joules.values()) if spent else None,
            joules_by=joules,
            tensor=sum(tensor) if tensor else None,
            cost=hours * price if price else None,
            savings=savings(by_gpu),
        )


def _changes(before: Sequence[JobBin], after: Sequence[JobBin]) -> Iterable[JobChange]:
    clock = _mean(one.clock for one in before), _mean(one.clock for one in after)
    if clock[0] and clock[1] and clock[1] < (1 - SLOWER) * clock[0]:
        yield JobChange(ChangeKind.CLOCK, clock[0], clock[1])
    heat = _mean(one.temperature for one in before), _mean(one.temperature for one in after)
    if heat[0] is not None and heat[1] is not None and heat[1] >= heat[0] + WARMER:
        yield JobChange(ChangeKind.TEMPERATURE, heat[0], heat[1])
    pairs = {pair for one in after for pair in one.shares if pair[0] in GAINED_BY}
    for pair in sorted(pairs):
        then = fmean(one.shares.get(pair, 0.0) for one in before)
        now = fmean(one.shares.get(pair, 0.0) for one in after)
        if now >= then + SLOWER:
            yield JobChange(ChangeKind.SHARE, then, now, pair)
    came = max(one.neighbours for one in after)
    if came > max(one.neighbours for one in before):
        yield JobChange(ChangeKind.NEIGHBOURS, max(one.neighbours for one in before), came)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
