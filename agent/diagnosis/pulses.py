"""Tracks the pulse of each GPU: the step time of its job, measured in its power samples."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from agent import model
from agent.diagnosis.active_share import ALWAYS
from agent.diagnosis.process_evidence import SPAN
from agent.diagnosis.tick_context import LastTick
from agent.jobs.grouping import JobGroup
from agent.jobs.pulse import Pulse, PulseReading
from agent.jobs.speed import SLOWER
from agent.metrics import declared_beside
from agent.model import EXPIRY_INTERVALS, Absent, GpuKey, Reading, ReadKey, Reason, Snapshot
from agent.polling import intervals
from agent.polling.gpu_state import GpuInventory
from agent.polling.reads import ReadOutput
from agent.series import SampleStore
from agent.sources import activity, power, process, workload

_METRICS = declared_beside(__file__)
STEP = _METRICS["dgx_gpu_step_seconds"]
STEPS = _METRICS["dgx_gpu_steps_total"]
CONFIDENCE = _METRICS["dgx_gpu_step_confidence_ratio"]

KEY = ReadKey("pulse", "steps")
REASONS = {
    Reason.NOT_ENOUGH: "its power has few samples so far",
    Reason.TOO_SHORT: "its power repeats faster than it is sampled",
    Reason.IRREGULAR: "its power varies without repeating",
    Reason.FLAT: "at rest, evenly at work, or held at its power limit",
}
"""Texts that explain why there is no step time, by reason."""


@dataclass(slots=True)
class GpuPulse:
    """The pulse of a GPU's current processes, and the number of steps since the agent started."""

    pulse: Pulse = field(default_factory=Pulse)
    reading: PulseReading | None = None  # None if there is no process, or no sample yet
    at: float = 0.0  # time at which the latest sample was received (monotonic seconds)
    occupied: bool = False
    ambiguous: str = ""  # phrase: why the period of the power may not be a step
    _steps: float = 0.0
    _pids: frozenset[str] = frozenset()

    @property
    def steps(self) -> int:
        """Number of steps since the agent started, rounded down."""
        return int(self._steps)

    @property
    def step(self) -> float | None:
        """Step time in seconds."""
        return self.reading.step_seconds if self.reading and not self.ambiguous else None

    @property
    def reason(self) -> Reason | None:
        """Reason why there is no step time, or None if there is a step time or no reading."""
        if self.reading is None:
            return None
        return self.reading.reason or (Reason.IRREGULAR if self.ambiguous else None)

    def note_processes(self, pids: frozenset[str]) -> None:
        """Store the PIDs on the GPU. If all processes are new, start a new pulse."""
        if self.occupied and not pids & self._pids:
            self.pulse, self.reading = Pulse(), None
        self.occupied, self._pids = bool(pids), pids

    def feed(self, series: model.TimedSeries, now: float) -> None:
        """Add the power samples received since the last tick. `now` is the time of this tick."""
        before = self.reading.steps if self.reading else 0.0
        self.reading = self.pulse.feed(zip(series.times, series.values, strict=True))
        self._steps += 0.0 if self.ambiguous else self.reading.steps - before
        self.at = now


class JobPulse(NamedTuple):
    """Pulse of a job: its step time in seconds (None if its GPUs disagree), the confidence (0-1),
    the seconds until a change of the step time is visible, and the UUIDs of GPUs that disagree."""

    step: float | None = None
    confidence: float = 0.0
    lag: float = 0.0
    apart: frozenset[str] = frozenset()


def agreed(pulses: Mapping[str, GpuPulse], *, exchange: bool) -> JobPulse:
    """Return the pulse of a job, with the step time on which most of its GPUs agree. `pulses` maps
    UUIDs to pulses. If the GPUs exchange data (`exchange`), they run the same steps, and GPUs with
    other step times are in `apart`. Otherwise, they may run different parts of a sweep."""
    steps = {uuid: pulse.step for uuid, pulse in pulses.items() if pulse.step}
    middle = median(steps.values()) if steps else 0.0
    near = {uuid for uuid, step in steps.items() if abs(step / middle - 1) <= SLOWER}
    if 2 * len(near) <= len(steps):
        near = set()
    apart = frozenset(steps.keys() - near) if exchange else frozenset()
    believed = [p.reading for uuid, p in pulses.items() if uuid in near and p.reading]
    if not near:
        return JobPulse(apart=apart)
    return JobPulse(
        step=fmean(steps[uuid] for uuid in near),
        confidence=fmean(one.confidence for one in believed),
        lag=max((one.lag for one in believed), default=0.0),
        apart=apart,
    )


@dataclass(slots=True)
class GpuPulses:
    """Detects the pulse of each GPU in its power samples."""

    inventory: Callable[[], GpuInventory]
    speed: float = 1.0  # clock speed
    _apart: frozenset[str] = frozenset()
    """UUIDs of GPUs whose step time differs from that of the other GPUs of their job."""

    pulses: dict[str, GpuPulse] = field(default_factory=lambda: defaultdict(GpuPulse))
    """Pulses of all GPUs seen so far, by UUID."""

    def take(
        self, snapshot: Snapshot, samples: SampleStore, groups: Sequence[JobGroup], last: LastTick
    ) -> dict[JobGroup, JobPulse]:
        """Add the power samples received since the last tick, and return the pulses of all jobs."""
        pids: dict[str, set[str]] = {}
        for _, uuid, pid in samples.all(process.PROCESS):
            pids.setdefault(uuid, set()).add(pid)
        several = any(len(working) > 1 for working in pids.values())
        shared = _shared_gpus(samples) if several else frozenset()
        for identity in self.inventory().gpus:
            gpu, one = identity.key, self.pulses[identity.uuid]
            if samples.value(process.PROCESSES, *gpu.labels) is not None:
                one.note_processes(frozenset(pids.get(gpu.uuid, ())))
            if one.occupied:
                several_feed = SEVERAL if _fed_by_several(samples, gpu) else ""
                one.ambiguous = SHARED if gpu.uuid in shared else several_feed
        for series in samples.fresh_series(power.SAMPLES):
            fed = self.pulses.get(series.labels[1])
            if fed is not None and fed.occupied:
                fed.feed(series, snapshot.at)
        of_jobs = {}
        for group in groups:
            uuids = {gpu.uuid for gpu in group.gpus}
            known = {uuid: self.pulses[uuid] for uuid in uuids if uuid in self.pulses}
            of_jobs[group] = agreed(known, exchange=not uuids.isdisjoint(last.exchanging))
        self._apart = frozenset(uuid for one in of_jobs.values() for uuid in one.apart)
        return of_jobs

    def report(self, snapshot: Snapshot) -> Reading:
        """Return a reading with the steps and the step time (or an absence) of GPUs with jobs."""
        out = ReadOutput(snapshot.at)
        refused = {
            absence.labels: Absent(absence.reason, absence.detail)
            for reading in snapshot.readings.values()
            for absence in reading.absences
            if absence.metric is power.SAMPLES
        }
        for identity in self.inventory().gpus:
            gpu, one = identity.key, self.pulses.get(identity.uuid)
            if one is None:
                continue
            out.labels, refusal = gpu.labels, refused.get(gpu.labels)
            out.add(STEPS, refusal or one.steps)
            if one.occupied:
                why, reading = refusal or self._why_not(gpu, one, snapshot.at), one.reading
                out.add(STEP, why or one.step or 0.0)
                out.add(CONFIDENCE, why or (reading.confidence if reading else 0.0))
        return out.reading(KEY)

    def _why_not(self, gpu: GpuKey, one: GpuPulse, now: float) -> Absent | None:
        """Return why the step time of a GPU with a process is unknown, or None if it is known."""
        if one.reading is None:
            return Absent(Reason.NOT_ENOUGH, REASONS[Reason.NOT_ENOUGH])
        if now - one.at > EXPIRY_INTERVALS * 2 * max(intervals.POWER_BUFFER, self.speed):
            return Absent(Reason.STALLED, "no sample of its power came lately")
        if one.reading.reason:
            return Absent(one.reading.reason, REASONS[one.reading.reason])
        why = one.ambiguous or (APART if gpu.uuid in self._apart else "")
        return Absent(Reason.IRREGULAR, why) if why else None


def _shared_gpus(samples: SampleStore) -> frozenset[str]:
    """Return the UUIDs of GPUs on which several processes compute. Either the driver reports shares
    for several processes, or they are MPS clients, for which it reports no shares."""
    turns = [
        uuid
        for (_, uuid, _), part in samples.all(process.SHARE).items()
        if part >= workload.REST_CORES
    ]
    working = samples.all(process.PROCESS)
    clients = [uuid for _, uuid, _ in working]
    listed = samples.all(process.PROGRAM)
    served = {uuid for gpu, uuid, pid, _ in listed if (gpu, uuid, pid) not in working}
    of_mps = {uuid for uuid in served if clients.count(uuid) > 1}
    return frozenset(of_mps | {uuid for uuid in turns if turns.count(uuid) > 1})


def _fed_by_several(samples: SampleStore, gpu: GpuKey) -> bool:
    """Return whether a GPU waits for batches that several workers prepare in parallel. Each of
    these workers must be active most of the time."""
    active = samples.mean(activity.ACTIVITY, *gpu.labels, seconds=SPAN)
    workers = samples.mean(workload.WORKERS, *gpu.labels, seconds=SPAN) or 0.0
    if active is None or active >= ALWAYS or workers < 2:
        return False
    rates = (
        samples.rate(workload.THREADS, *gpu.labels, "working", what, seconds=SPAN)
        for what in workload.DOING
    )
    return 2 * sum(rate or 0.0 for rate in rates) >= workers


SEVERAL = "several loaders bring its batches: the period of its power may be several steps"
SHARED = "several processes share it: the period of its power is not the step of any of them"
APART = "its rhythm is not that of the other GPUs of its job"
