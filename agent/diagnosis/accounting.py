"""Keeps an account of each GPU's time: its seconds by state and cause."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from agent import model
from agent.config.settings import Configuration
from agent.diagnosis.advice_seconds import AdviceSeconds, most_fitting
from agent.diagnosis.confidence import Likeness, similar
from agent.diagnosis.division import TimeSplit, divide_second
from agent.diagnosis.energy import NAMES, STATE_JOULES
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.facts import Found
from agent.diagnosis.gpu_history_tracker import GpuHistoryTracker
from agent.diagnosis.inactive_share import doubts
from agent.diagnosis.state_seconds import SecondsByState
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.tick_context import LastTick, TickContext
from agent.errors import Failure, LogEvent, log
from agent.jobs.grouping import JobGroup
from agent.limits.paths import PathAccounts
from agent.metrics import declared_beside
from agent.model import Absence, Cause, GpuKey, Pair, Reason, Sample, Snapshot, State, Verdict
from agent.polling import intervals
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import SampleStore
from agent.sources import activity, power

_METRICS = declared_beside(__file__)
STATE = _METRICS["dgx_gpu_state"]
STATE_SECONDS = _METRICS["dgx_gpu_state_seconds_total"]
UNOBSERVED_SECONDS = _METRICS["dgx_gpu_unobserved_seconds_total"]
WAITS_FOR = _METRICS["dgx_gpu_waits_for_seconds_total"]
KEY = model.ReadKey("diagnosis", "verdicts")
LONGEST = model.EXPIRY_INTERVALS * intervals.TICK
"""Maximum wall-clock seconds between two ticks. Longer intervals count as unobserved."""

NOT_KNOWN = "activity not known"


@dataclass(slots=True)
class GpuStateTime:
    """The account of a GPU: its seconds by state and cause, its history, and its verdict."""

    booked: SecondsByState = field(default_factory=SecondsByState)
    history: GpuHistoryTracker = field(default_factory=GpuHistoryTracker)
    waits: dict[str, float] = field(default_factory=dict)  # seconds by UUID of the awaited GPU
    verdict: Verdict | None = None
    at: float | None = None  # time of the last tick
    failure_logged: bool = False
    failure: Failure | None = None  # why the last second could not be divided
    advice: AdviceSeconds = field(default_factory=AdviceSeconds)
    _found: dict[Pair, Found] = field(default_factory=dict)
    _waits_for: GpuKey | None = None

    def enter(
        self,
        e: Evidence | None,
        split: TimeSplit | None,
        now: float,
        watts: float | None,
        longest: float = LONGEST,
    ) -> None:
        """Count the time and energy since the last tick by state and cause, or as unobserved."""
        seconds = 0.0 if self.at is None else max(0.0, now - self.at)
        self.at = now
        parts = split.parts if split is not None and seconds <= longest else None
        if parts and not all(part >= 0 for part in parts.values()):  # or if a part is NaN
            parts = None
        self.booked.energy.enter(parts, seconds, watts)
        if e is None or split is None or parts is None:
            self.booked.miss(seconds, now)
            self.verdict = None
            return
        self.booked.enter(parts, seconds, now)
        self.advice.take(e, split, seconds)
        self._found.update(split.found)
        self._waits_for = split.waits_for
        if split.waits_for is not None:
            uuid = split.waits_for.uuid
            waited = split.parts[State.STARVED, Cause.PEER] * seconds
            self.waits[uuid] = self.waits.get(uuid, 0.0) + waited
        self.verdict = self._verdict(e)

    def _verdict(self, e: Evidence) -> Verdict | None:
        """Return the verdict: the state and cause to show (the leader), and the latest facts that
        support it. Return None if there is no leader."""
        leader, shares = self.booked.leader, self.booked.shares
        if leader is None:
            return None
        return Verdict(
            *leader,
            e.quality,
            shares,
            since=self.booked.since,
            gaps=self.booked.gaps,
            evidence=self._found.get(leader, ()),
            of_losses={
                pair: facts
                for pair, facts in self._found.items()
                if pair != leader and pair[0] in model.LOST_STATES and shares.get(pair)
            },
            doubts=tuple(doubts(e)) if leader[0] is State.STARVED else (),
            waits_for=self._waits_for,
            confidence=similar(Likeness(e.quality, bool(e.peers), leader)).confidence,
            advice=most_fitting([self.advice]),
        )


@dataclass(slots=True)
class Diagnosis:
    """Divides each GPU's time by state and cause on every tick, and keeps the running totals."""

    inventory: Callable[[], GpuInventory]
    bandwidth: PathAccounts
    configuration: Configuration
    speed: float = 1.0  # clock speed
    accounts: dict[str, GpuStateTime] = field(default_factory=lambda: defaultdict(GpuStateTime))
    """Accounts by GPU UUID. They are kept for lost GPUs, because a lost GPU may return."""

    def take(
        self, snapshot: Snapshot, samples: SampleStore, groups: Sequence[JobGroup], last: LastTick
    ) -> Snapshot:
        """Update the accounts on a tick, and return the snapshot with the verdicts added."""
        inventory, now = self.inventory(), snapshot.at
        for series in samples.fresh_series(power.SAMPLES):
            if (account := self.accounts.get(series.labels[1])) is not None:
                account.history.sample_power(series, now)
                account.booked.energy.sample(series)
        thresholds = self.configuration.current[Thresholds]
        context = TickContext(samples, self.bandwidth, thresholds, groups, last)
        evidence = self._gathered(context, now)
        verdicts: dict[GpuKey, Verdict] = {}
        unjudged: dict[GpuKey, Absence] = {}
        for identity in inventory.gpus:
            gpu, account = identity.key, self.accounts[identity.uuid]
            counted = samples.point(power.ENERGY, *gpu.labels)
            if counted is not None:
                account.booked.energy.count(counted.at, counted.value)
            if (worked := samples.value(activity.TENSOR_SECONDS, *gpu.labels)) is not None:
                account.booked.count_tensor(worked)
            seen, split = evidence.get(gpu), None
            if seen is not None:
                with self._guarded(account, gpu):
                    split = divide_second(seen)
            watts, longest = samples.value(power.POWER, *gpu.labels), LONGEST * self.speed
            account.enter(seen, split, now, watts, longest)
            if account.verdict is not None:
                verdicts[gpu] = account.verdict
            else:
                unjudged[gpu] = _why_not(gpu, account, inventory)
        for e in evidence.values():
            vars(e).clear()  # it refers to that of the others, which refers to it
        return replace(snapshot, verdicts=verdicts, unjudged=unjudged)

    def _gathered(self, context: TickContext, now: float) -> dict[GpuKey, Evidence]:
        """Return the evidence about each GPU with known activity."""
        inventory = self.inventory()
        evidence: dict[GpuKey, Evidence] = {}
        for identity in inventory.gpus:
            account = self.accounts[identity.uuid]
            account.failure_logged, account.failure = account.failure is not None, None
            if identity.uuid in inventory.lost:
                continue
            e = Evidence(identity.key, context, others=evidence)
            with self._guarded(account, e.gpu):
                if e.activity is None:
                    account.history.forget()
                else:
                    account.history.update(e, now)
                    e.history = account.history.seen
                    evidence[e.gpu] = e
        return evidence

    @contextmanager
    def _guarded(self, account: GpuStateTime, gpu: GpuKey) -> Iterator[None]:
        """Catch and log any exception, so that only the given GPU has no verdict."""
        failure = None
        try:
            yield
        except Exception as error:
            failure = Failure.of(error)
        if failure is not None:
            if not account.failure_logged:
                log.error(LogEvent("verdict_failed", gpu=gpu.index, error=str(failure)))
            account.failure, account.failure_logged = failure, True

    def report(self, snapshot: Snapshot) -> model.Reading:
        """Return a reading with the accounts and verdicts of the GPUs that are present."""
        out = ReadOutput(snapshot.at)
        for identity in self.inventory().gpus:
            account = self.accounts.get(identity.uuid)
            if account is not None and account.at is not None:
                out.labels = identity.key.labels
                _report(account, out, snapshot.unjudged.get(identity.key))
        return out.reading(KEY)


def _why_not(gpu: GpuKey, account: GpuStateTime, inventory: GpuInventory) -> Absence:
    """Return an absence with the reason why a GPU has no verdict."""
    if gpu.uuid in inventory.lost:
        return Absence(STATE, gpu.labels, Reason.LOST, "")
    if gpu.uuid in inventory.not_answering:
        _, why = inventory.not_answering[gpu.uuid]
        return Absence(STATE, gpu.labels, Reason.NOT_ANSWERING, why)
    if account.failure:
        return Absence(STATE, gpu.labels, Reason.FAILED, str(account.failure))
    return Absence(STATE, gpu.labels, Reason.UNKNOWN, NOT_KNOWN)


def _report(account: GpuStateTime, out: ReadOutput, unjudged: Absence | None) -> None:
    for pair, seconds in account.booked.seconds.items():
        out.add(STATE_SECONDS, seconds, *NAMES[pair])
    out.add(UNOBSERVED_SECONDS, account.booked.unobserved)
    if account.booked.energy.counted is not None:
        for spent, names in NAMES.items():
            out.add(STATE_JOULES, account.booked.energy.joules.get(spent, 0.0), *names)
    for culprit, seconds in account.waits.items():
        out.add(WAITS_FOR, seconds, culprit)
    if unjudged and (unjudged.reason is Reason.LOST or account.booked.unobserved):
        out.absences.append(unjudged)
        return
    if account.verdict is not None:
        out.add(_METRICS["dgx_gpu_state_confidence_ratio"], account.verdict.confidence)
    out.samples += _states(out.labels, account.verdict.pair if account.verdict else None)


@lru_cache(maxsize=512)
def _states(gpu: model.Labels, leader: Pair | None) -> tuple[Sample, ...]:
    """Return a sample for each state and cause of a GPU: 1 for the leader, and 0 for all others.
    For a new GPU, all samples are 0, because none of its time has been observed yet."""
    return tuple(Sample(STATE, gpu + NAMES[pair], float(pair == leader)) for pair in model.PAIRS)
