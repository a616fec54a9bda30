"""Tracks the history of a GPU: its power levels, clocks, bursts of activity, and idle time."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt
from statistics import fmean

from agent.bounds import HOUR, POWER_SAMPLES
from agent.diagnosis.active_share import (
    LINKS_AT_REST,
    ActiveSecond,
    WorkLevel,
    only_spins,
    work_level,
)
from agent.diagnosis.evidence import HOLDING_DOWN, Evidence
from agent.diagnosis.hang import activity_of, waits_at_rest
from agent.diagnosis.power_levels import PowerLevels, power_levels
from agent.diagnosis.process_evidence import SPAN
from agent.diagnosis.tick_context import GpuHistory, RankActivity
from agent.model import EXPIRY_INTERVALS, Metric, TimedSeries
from agent.polling import intervals
from agent.sources import activity, pcie, workload

OF_BEFORE = EXPIRY_INTERVALS * intervals.TICK
"""For this many seconds after new processes appear, readings may be about earlier processes."""

LOADED = 0.5
"""Minimum activity at which a GPU is assumed to run at the highest SM clock for its power. Like
POWER_STEP, this value is chosen, not measured, because no recorded GPU is throttled."""

POWER_STEP = 0.05
"""Width of the ranges in which power counts as similar, as a fraction of the power limit."""

READINGS = 30
"""Number of 100 ms windows from which `work_level` is computed, and number of activity readings
(one per second) that are searched for bursts. Fewer readings are not searched, because activity is
uneven when a job starts. A server receives data at least once in READINGS seconds."""

UNEVEN = 0.12
"""Minimum coefficient of variation of activity that comes in bursts, as requests cause. In
recordings, it is 0.00 to 0.08 for trainers that wait for data or a peer, and 0.31 to 1.5 for
servers (0.15 and more at full load). With 0.2, the waits of three server GPUs at 80 and 100 % load
would have an unknown cause. UNEVEN is also the minimum share of readings in which activity crosses
its mean, because work that only starts or ends is no burst."""


@dataclass(slots=True)
class Bursts:
    """Detects bursts in the GPU activity of the current processes, or in the bytes that they
    receive. The time before the first activity, in which they load data, is excluded."""

    worked: float = -inf  # time of the latest activity
    _readings: deque[float] = field(default_factory=lambda: deque(maxlen=READINGS))
    _at: float = -inf  # time of the latest reading
    _uneven: bool = False

    def take(self, activity: float, at: float, quiet: float) -> None:
        """Add a reading from time `at` (s), unless it was added before. Less than `quiet` is no
        work: a polling thread may copy a flag to the GPU."""
        if activity >= quiet:
            self.worked = at
        if self.worked == -inf or at <= self._at:
            return
        self._at = at
        self._readings.append(activity)
        if len(self._readings) < READINGS or max(self._readings) < quiet:  # idle, so inconclusive
            return
        mean = fmean(self._readings)
        # pstdev is slow because it uses fractions; fmean has to count an iterator first
        spread = sqrt(fmean([(value - mean) ** 2 for value in self._readings]))
        crossed = sum((one < mean) is not (then < mean) for one, then in pairwise(self._readings))
        if spread < UNEVEN * mean:
            self._uneven = False
        elif crossed >= UNEVEN * READINGS:  # a start or a pause is inconclusive
            self._uneven = True

    def seen(self, now: float) -> bool:
        """Return whether the latest readings with activity show bursts, and the last activity is at
        most an hour old. A server that has been idle for longer may no longer be in use."""
        return self._uneven and now - self.worked <= HOUR


@dataclass(slots=True)
class Pairs:
    """The latest values of two metrics that one read returns together."""

    metrics: tuple[Metric, Metric]
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=READINGS))
    _at: float = 0.0

    def take(self, e: Evidence) -> None:
        """Add the values in this tick, unless they were added before."""
        first, second = (e.context.samples.point(one, *e.labels) for one in self.metrics)
        if first is not None and second is not None and first.at > self._at:
            self.latest.append((first.value, second.value))
            self._at = first.at


@dataclass(slots=True)
class GpuHistoryTracker:
    """Updates the history of a GPU on every tick. Rules use the history in `seen`."""

    seen: GpuHistory = field(default_factory=lambda: GpuHistory(nvlink_seen=False))
    _pids: frozenset[str] = frozenset()
    _idle_since: float | None = None
    _waits_since: float | None = None
    _spins_since: float | None = None  # based on single readings
    _nvlink_seen: bool = False
    _sent_abroad: bool = False
    _came: float | None = None  # when the current processes appeared; None before the first tick
    _power: deque[float] = field(default_factory=lambda: deque(maxlen=POWER_SAMPLES))
    _levels: PowerLevels | None = None
    _windows: Pairs = field(
        default_factory=lambda: Pairs((activity.WINDOW_SM, activity.WINDOW_DRAM))
    )
    _moments: Pairs = field(default_factory=lambda: Pairs(pcie.MOMENT))
    _sampled: float = 0.0
    _bursts: Bursts = field(default_factory=Bursts)
    _deliveries: Bursts = field(default_factory=Bursts)  # in bytes per second
    _clocks: dict[int, tuple[float, float]] = field(default_factory=dict)  # by power step: Hz, time

    def sample_power(self, series: TimedSeries, now: float) -> None:
        """Add the power samples (W) received since the last tick."""
        self._power.extend(series.values)
        self._levels, self._sampled = power_levels(self._power), now

    def update(self, e: Evidence, now: float) -> None:
        """Update the history with the evidence in this tick."""
        pids = e.context.pids.get(e.labels, frozenset())
        if e.processes == 0 or not pids & self._pids:
            self.forget()
            # Processes found in the first tick may already have been running for a long time.
            self._came = -OF_BEFORE if self._came is None else now
        self._pids = pids
        if e.processes == 0:
            return
        idle = e.is_quiet and e.host.rests()
        self._idle_since = (now if self._idle_since is None else self._idle_since) if idle else None
        self._note_waiting(e, rank := activity_of(e), now)
        if self._came is None or now - self._came >= OF_BEFORE:
            self._nvlink_seen |= e.nvlink is not None and e.nvlink.ratio > LINKS_AT_REST
            self._deliveries.take(e.host.rate(workload.RECEIVED, seconds=1.0) or 0.0, now, 1.0)
        if now - self._sampled > SPAN:
            self._power.clear()
            self._levels = None
        self._learn(e, now)
        self._windows.take(e)
        self._moments.take(e)
        if (point := e.context.samples.point(activity.ACTIVITY, *e.labels)) is not None:
            self._bursts.take(point.value, point.at, e.context.thresholds.quiet)
        self.seen = GpuHistory(
            idle_for=0.0 if self._idle_since is None else now - self._idle_since,
            waits_for=0.0 if self._waits_since is None else now - self._waits_since,
            rank=rank,
            sent_abroad=self._sent_abroad,
            # If a value is unknown in this tick, traffic is assumed but not remembered.
            nvlink_seen=self._nvlink_seen or e.nvlink is None,
            power=self._levels,
            level=work_level([WorkLevel(*pair) for pair in self._windows.latest]),
            # A server receives data over the network; a notebook or a trainer does not.
            bursts=self._bursts.seen(now) and now - self._deliveries.worked < READINGS,
            deliveries=self._deliveries.seen(now),
            clock=self._clock_at(e, now),
            moments=tuple(self._moments.latest),
            came=self._came,
        )

    def _note_waiting(self, e: Evidence, rank: RankActivity, now: float) -> None:
        """Update the start of the GPU's wait: the time of the first reading that shows it."""
        self._sent_abroad = self._sent_abroad or e.context.sends_abroad
        if not _spins_now(e):
            self._spins_since = None
        elif self._spins_since is None:
            self._spins_since = now
        if not e.spins and not waits_at_rest(e, rank):
            self._waits_since = None
        elif self._waits_since is None:
            begun = self._spins_since if e.spins else None
            self._waits_since = now if begun is None else begun

    def forget(self) -> None:
        """Discard the history of earlier processes, because it does not apply to new ones."""
        self._idle_since = self._waits_since = self._spins_since = None
        self._nvlink_seen, self._levels = False, None
        self._sent_abroad, self._bursts, self._deliveries = False, Bursts(), Bursts()
        self._power.clear()
        self._windows.latest.clear()
        self._moments.latest.clear()
        self.seen = GpuHistory(nvlink_seen=False)

    def _learn(self, e: Evidence, now: float) -> None:
        """If the GPU is loaded and unthrottled, remember the highest SM clock at its power draw."""
        clock, power = e.sm_clock, e.power
        if clock is None or power is None or (e.activity or 0.0) < LOADED:
            return
        step = int(power / POWER_STEP)
        highest, at = self._clocks.get(step, (0.0, -HOUR))
        # a power cap at the board's default limit is normal
        held = e.throttled(*HOLDING_DOWN) > 0 or (e.limit_lowered and e.throttled("power_cap") > 0)
        if (clock >= highest or now - at > HOUR) and not held:
            self._clocks[step] = clock, now

    def _clock_at(self, e: Evidence, now: float) -> float | None:
        """Return the highest unthrottled SM clock (Hz) at similar power within the last hour."""
        if e.power is None:
            return None
        step = int(e.power / POWER_STEP)
        known = [self._clocks[s] for s in (step - 1, step, step + 1) if s in self._clocks]
        return max((clock for clock, at in known if now - at <= HOUR), default=None)


OF_SPINNING = activity.SM_ACTIVE, activity.TENSOR_ACTIVE, activity.MEMORY_BANDWIDTH


def _spins_now(e: Evidence) -> bool:
    """Return whether kernels only spin (wait actively), judging by the latest readings."""
    if not e.activity:
        return False
    newest = e.context.samples.value
    sm, tensor, dram = (newest(metric, *e.labels) for metric in OF_SPINNING)
    return only_spins(ActiveSecond(e.activity, sm, tensor, dram, payload=0.0))
