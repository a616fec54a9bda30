"""The pulse of every GPU: how long a step of its job takes, read from the samples of its power."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.jobs.pulse import NoPulse, Pulse, PulseReading
from agent.model import (
    EXPIRY_INTERVALS,
    GPU_LABELS,
    Absence,
    GpuKey,
    Metric,
    Reading,
    ReadKey,
    Reason,
    Snapshot,
    TimedSeries,
    counter,
    gauge,
)
from agent.polling import intervals
from agent.polling.inventory import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import SampleStore
from agent.sources import activity, power, process, workload

STEP = gauge(
    "dgx_gpu_step_seconds",
    "How long an iteration of the job on this GPU takes, in seconds, as the rhythm of its power "
    "shows it; absent where there is no rhythm.",
    "nvmlDeviceGetSamples(TOTAL_POWER), agent/jobs/pulse.py",
    GPU_LABELS,
)
STEPS = counter(
    "dgx_gpu_steps_total",
    "Iterations counted one by one in the power of this GPU since the agent started, while they "
    "have a rhythm.",
    "nvmlDeviceGetSamples(TOTAL_POWER), agent/jobs/step_count.py",
    GPU_LABELS,
)
CONFIDENCE = gauge(
    "dgx_gpu_step_confidence_ratio",
    "How sure dgx_gpu_step_seconds is, 0-1: the autocorrelation of the power at that period.",
    "nvmlDeviceGetSamples(TOTAL_POWER), agent/jobs/autocorrelation.py",
    GPU_LABELS,
)

KEY = ReadKey("pulse", "steps")
EXPIRES = EXPIRY_INTERVALS * 2 * intervals.POWER_BUFFER
"""Seconds without a sample after which the last ones say nothing of now."""

WAITS_FOR_DATA = 0.9
"""Activity below which a GPU may wait for those who bring its batches."""

BRING_AT_ONCE = 0.4
"""Share of the time for which each loader does something, at least, where it is loaders that hold
the GPU up."""

NEWEST_TICK = 0.2
"""Part that a tick has in whether several bring batches: it must hold for some four."""

COMPUTES = 0.1
"""Share of the time for which a process has kernels on the GPU from which it computes there: the
notebook beside a training does not."""

AT_LIMIT = 0.97
"""Mean power over the limit from which the board holds it there."""

CONTROL_DEPTH = 0.12
"""Range of power samples over their mean that this control makes by itself, in swings of some
0.95 s (an H200 under nothing but matrix products: 0.06 to 0.11; jobs with steps: from 0.18)."""

SEVERAL_STEPS = 1.9
"""Times as long as a step was before that period at least is where it may be several steps."""

REASONS = {
    NoPulse.NOT_ENOUGH: (Reason.NOT_ENOUGH, "too few samples of its power so far"),
    NoPulse.TOO_SHORT: (Reason.TOO_SHORT, "its steps are too short for the samples of its power"),
    NoPulse.IRREGULAR: (Reason.IRREGULAR, "its power varies, and not in a rhythm"),
    NoPulse.FLAT: (Reason.FLAT, "its power hardly varies"),
}
"""Why there is no period: the agent's reason, and a sentence."""


@dataclass(slots=True)
class GpuPulse:
    """One GPU: the pulse of those who work on it now, and the steps of all who ever did.

    `at` is when its newest sample came (monotonic seconds), `lag` what to add to the driver's time
    to have the agent's, at most a sample more.
    """

    phase: int = 0  # of several GPUs, each works at its own samples
    pulse: Pulse = field(init=False)
    reading: PulseReading | None = None  # None: no one is there, or no sample has come
    at: float = 0.0
    lag: float = 0.0
    missed: int = 0
    occupied: bool = False
    shared: bool = False
    """Whether several processes compute on it at once: its power is that of all of them."""
    at_limit: bool = False  # its power is held at the board's limit
    _several: float = 0.0  # share of the latest ticks at which several brought its batches
    _known: float | None = None  # s of a step when it was last sure
    _before: int = 0
    _pids: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.phase)

    @property
    def steps(self) -> int:
        """Steps found since the agent started."""
        return self._before + (self.reading.steps if self.reading else 0)

    @property
    def step(self) -> float | None:
        """Seconds of a step."""
        return self.reading.step_seconds if self.reading and not self.ambiguous else None

    @property
    def reason(self) -> NoPulse | None:
        """Why it has no step; None where it has one, or where nothing has been read."""
        if self.reading is None:
            return None
        if self.controlled:
            return self.reading.reason or NoPulse.FLAT
        several = NoPulse.IRREGULAR if self.ambiguous else None
        return self.reading.reason or several

    @property
    def controlled(self) -> bool:
        """Whether its power varies no more than where the board alone controls it."""
        return self.at_limit and self.pulse.depth < CONTROL_DEPTH

    @property
    def ambiguous(self) -> bool:
        """Whether its period, once it is found, may be no step: of the board's own control, of
        several processes, or of several loaders or threads that bring the batches it waits for,
        where its steps were not nearly as long when they did not."""
        if self.controlled or self.shared or self._several <= 0.5:
            return self.controlled or self.shared
        period = self.reading.step_seconds if self.reading else None
        return self._known is None or (period or 0.0) >= SEVERAL_STEPS * self._known

    def note_feeding(self, several: bool) -> None:
        """Whether several bring its batches at this tick."""
        self._several += NEWEST_TICK * (several - self._several)

    @property
    def since(self) -> float | None:
        """When steps began to take as long as they do now (monotonic seconds)."""
        since = self.reading.since if self.reading else None
        return None if since is None else since + self.lag

    def settle(self, pids: frozenset[str]) -> None:
        """These processes are on the GPU now; those who come after others have a pulse of their
        own."""
        if self.occupied and not pids & self._pids:
            self._end()
        self.occupied, self._pids = bool(pids), pids

    def feed(self, series: TimedSeries, now: float) -> None:
        """Samples that came since the last tick."""
        if not series.times:
            return
        before = self.steps
        self.reading = self.pulse.feed(zip(series.times, series.values, strict=True))
        if self.ambiguous:
            self._before -= self.steps - before
        elif self._several < 0.5:
            self._known = self.reading.step_seconds or self._known
        self.missed = self.pulse.missed_beats(series.times[-1])
        self.at, self.lag = now, now - series.times[-1]

    def _end(self) -> None:
        self._before = self.steps
        self.pulse, self.reading, self.missed = Pulse(self.phase), None, 0
        self._several, self._known, self.shared = 0.0, None, False


@dataclass(slots=True)
class GpuPulses:
    """Feeds each GPU's samples to its pulse; an observer of the poller."""

    inventory: Callable[[], GpuInventory]
    apart: frozenset[str] = frozenset()
    """UUIDs of GPUs whose rhythm is not that of the others of their job."""

    _pulses: dict[str, GpuPulse] = field(default_factory=dict)  # by UUID

    @property
    def pulses(self) -> Mapping[str, GpuPulse]:
        """By UUID, of every GPU that was met."""
        return MappingProxyType(self._pulses)

    def observe(self, snapshot: Snapshot, samples: SampleStore) -> Snapshot:
        """Take in the samples of a tick."""
        pids: dict[str, set[str]] = {}
        for _, uuid, pid in samples.all(process.PROCESS):
            pids.setdefault(uuid, set()).add(pid)
        several = any(len(working) > 1 for working in pids.values())
        shared = _shared_gpus(samples) if several else frozenset()
        for identity in self.inventory().gpus:
            one = self._pulses.get(identity.uuid)
            if one is None:
                one = self._pulses[identity.uuid] = GpuPulse(len(self._pulses))
            if samples.value(process.PROCESSES, *identity.key.labels) is not None:
                one.settle(frozenset(pids.get(identity.uuid, ())))
            if one.occupied:
                one.note_feeding(_fed_by_several(samples, identity.key))
                one.shared = identity.uuid in shared
                one.at_limit = _held_at_limit(samples, identity.key)
        for series in samples.fresh_series(power.SAMPLES):
            known = self._pulses.get(series.labels[1])
            if known is not None and known.occupied:
                known.feed(series, snapshot.at)
        return snapshot

    def report(self, snapshot: Snapshot) -> Reading:
        """The steps of every GPU that somebody works on, or why they are not known."""
        out = ReadOutput(snapshot.at)
        refused = {
            absence.labels: absence
            for reading in snapshot.readings.values()
            for absence in reading.absences
            if absence.metric is power.SAMPLES
        }
        for identity in self.inventory().gpus:
            gpu, one = identity.key, self._pulses.get(identity.uuid)
            if one is None:
                continue
            out.labels = gpu.labels
            absence = refused.get(gpu.labels)
            if absence is None:
                out.add(STEPS, one.steps)
                absence = _why_not(gpu, one, snapshot.at)
                if absence is None and gpu.uuid in self.apart:
                    absence = Absence(STEP, gpu.labels, Reason.IRREGULAR, APART)
            else:
                out.absences.append(absence._replace(metric=STEPS))
            if absence is None and one.reading and one.step:
                out.add(STEP, one.step)
                out.add(CONFIDENCE, max(0.0, min(1.0, one.reading.confidence)))
            elif absence is not None and one.occupied:
                out.absences += [absence._replace(metric=metric) for metric in OF_PERIOD]
        return Reading(KEY, snapshot.at, intervals.TICK, tuple(out.samples), tuple(out.absences))


def _shared_gpus(samples: SampleStore) -> frozenset[str]:
    """UUIDs of GPUs on which several processes compute: those that take turns, by the driver's
    word, and clients of MPS, of which it reports no share."""
    turns = [uuid for (_, uuid, _), part in samples.all(process.SHARE).items() if part >= COMPUTES]
    working = samples.all(process.PROCESS)
    clients = [uuid for _, uuid, _ in working]
    listed = samples.all(process.PROGRAM)
    served = {uuid for gpu, uuid, pid, _ in listed if (gpu, uuid, pid) not in working}
    of_mps = {uuid for uuid in served if clients.count(uuid) > 1}
    return frozenset(of_mps | {uuid for uuid in turns if turns.count(uuid) > 1})


def _held_at_limit(samples: SampleStore, gpu: GpuKey) -> bool:
    """Whether a GPU draws all that its board lets it."""
    drawn = samples.mean(power.POWER, *gpu.labels)
    limit = samples.value(power.POWER_LIMIT, *gpu.labels)
    return drawn is not None and limit is not None and drawn >= AT_LIMIT * limit


def _fed_by_several(samples: SampleStore, gpu: GpuKey) -> bool:
    """Whether a GPU waits for batches that several loaders or threads prepare at once."""
    active = samples.mean(activity.ACTIVITY, *gpu.labels)
    if active is None or active >= WAITS_FOR_DATA:
        return False
    rate, workers = samples.rate, samples.mean(workload.WORKERS, *gpu.labels) or 0.0
    doing = [rate(workload.THREADS, *gpu.labels, "working", what) for what in workload.DOING]
    return workers >= 2 and sum(one or 0.0 for one in doing) >= BRING_AT_ONCE * workers


SEVERAL = "several loaders bring its batches: what its power repeats may be several steps"
SHARED = "several processes share it: what its power repeats is no step of any one of them"
CONTROLLED = "its power is held at its limit, and varies no more than that alone makes it"
APART = "its rhythm is not that of the other GPUs of its job"
OF_PERIOD: tuple[Metric, ...] = (STEP, CONFIDENCE)


def _why_not(gpu: GpuKey, one: GpuPulse, now: float) -> Absence | None:
    """Why a GPU that somebody works on has no step; None where it has one."""
    reading = one.reading
    if reading is None:
        return Absence(STEP, gpu.labels, *REASONS[NoPulse.NOT_ENOUGH])
    if now - one.at > EXPIRES:
        return Absence(STEP, gpu.labels, Reason.STALLED, "no sample of its power has come lately")
    if one.reason is None:
        return None
    reason, detail = REASONS[one.reason]
    if one.controlled:
        return Absence(STEP, gpu.labels, Reason.FLAT, CONTROLLED)
    ambiguous = SHARED if one.shared else SEVERAL
    return Absence(STEP, gpu.labels, reason, detail if reading.reason else ambiguous)
