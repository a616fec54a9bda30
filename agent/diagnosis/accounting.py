"""The account of every GPU's seconds, by state and cause."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent import beats
from agent.bandwidth import Bandwidth
from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.diagnosis.evidence import Evidence
from agent.diagnosis.rules import judge
from agent.diagnosis.scene import Past, Scene
from agent.diagnosis.thresholds import Thresholds
from agent.diagnosis.verdict import BUSY, PAIRS, Pair, Verdict
from agent.diagnosis.window import Labels, Window
from agent.gpus import Fleet
from agent.model import (
    EXPIRY_BEATS,
    GPU_LABELS,
    Absent,
    Metric,
    Reading,
    ReadKey,
    Reason,
    Snapshot,
    counter,
    gauge,
    signal,
)
from agent.reads import Out, described
from agent.sources import (
    activity,
    clocks,
    cpu,
    disk,
    filesystem,
    nvlink,
    power,
    pressure,
    process,
    workload,
)

log = logging.getLogger(__name__)

VERDICT_LABELS = (*GPU_LABELS, "state", "cause")

STATE = gauge(
    "dgx_gpu_state",
    "1 for the state and cause that the GPU is in now, 0 for every other pair.",
    "agent/diagnosis/rules.py",
    VERDICT_LABELS,
)
STATE_SECONDS = counter(
    "dgx_gpu_state_seconds_total",
    "Seconds that the GPU spent in each state, by cause, since the agent started. The share of a "
    "starved second in which the GPU was active counts as busy; the sum over all pairs is the time "
    "observed.",
    "agent/diagnosis/rules.py",
    VERDICT_LABELS,
)
UNOBSERVED_SECONDS = counter(
    "dgx_gpu_unobserved_seconds_total",
    "Seconds since the agent met the GPU of which nothing can be said: its activity was not known, "
    "or ticks were missed.",
    "agent/diagnosis/accounting.py",
    GPU_LABELS,
)
VERDICT = signal(
    "dgx_gpu_verdict_info",
    "Seconds for which the GPU has been judged so without a break; the labels say what, with what "
    "eyes (gpm, or nvml without GPM), and what to do.",
    "agent/diagnosis/rules.py",
    (*VERDICT_LABELS, "grade", "summary", "advice"),
)
EVIDENCE = signal(
    "dgx_gpu_evidence_info",
    "1 for each figure that decided the verdict (role evidence) and for what could not be seen "
    "(role doubt), by weight.",
    "agent/diagnosis/rules.py",
    (*GPU_LABELS, "role", "place", "text"),
)

READ_BY_RULES: tuple[Metric, ...] = (
    process.PROCESSES,
    activity.ACTIVITY,
    activity.SM_ACTIVE,
    activity.NVLINK_RATE,
    power.POWER,
    power.POWER_LIMIT,
    power.DEFAULT_LIMIT,
    clocks.CLOCK,
    clocks.CLOCK_LIMIT,
    clocks.REASONS,
    clocks.THROTTLE,
    nvlink.LINKS,
    disk.READ_BYTES,
    disk.BUSY,
    cpu.BUSY,
    pressure.PRESSURE,
    filesystem.NETWORK_MOUNTS,
    workload.JOB,
    workload.LAUNCHER_CORES,
    workload.LAUNCHER_WAITING,
    workload.LOADERS,
    workload.LOADERS_WAITING,
    workload.LOADERS_RUNNING,
    workload.LOADERS_CORES,
    workload.ALLOWED_CORES,
)
SOURCES = frozenset(
    {"process", "activity", "power", "clocks", "nvlink"}
    | {"disk", "cpu", "pressure", "filesystem", "workload"}
)

KEY = ReadKey("diagnosis", "verdicts")
LONGEST = EXPIRY_BEATS * beats.TICK
"""Seconds between two ticks that one verdict may stand for; what is longer was not observed."""

NOT_KNOWN = "the activity of this GPU is not known"


@dataclass(slots=True)
class Account:
    """One GPU's seconds, as far as they were observed, and what it is judged to do now."""

    seconds: dict[Pair, float] = field(default_factory=lambda: dict.fromkeys(PAIRS, 0.0))
    unobserved: float = 0.0
    verdict: Verdict | None = None
    since: float = 0.0  # when it was first judged so
    at: float | None = None  # of the last tick
    quiet_since: float | None = None
    talked: bool = False
    failure: str = ""  # why no verdict could be reached, where a rule failed

    def enter(self, verdict: Verdict | None, now: float) -> None:
        """Let a verdict, or the lack of one, stand for the time since the last tick."""
        if self.at is not None and now > self.at:
            self._count(verdict, now - self.at)
        before = self.verdict.pair if self.verdict else None
        if verdict is not None and verdict.pair != before:
            self.since = now
        self.verdict, self.at = verdict, now

    def _count(self, verdict: Verdict | None, seconds: float) -> None:
        if verdict is None or seconds > LONGEST:
            self.unobserved += seconds
            return
        self.seconds[verdict.pair] += verdict.lost * seconds
        self.seconds[BUSY] += (1.0 - verdict.lost) * seconds

    def remember(self, e: Evidence, now: float) -> Past:
        """What the rules need to know beyond the window: how long it has been quiet, and whether
        its NVLinks have carried anything since its processes came."""
        if e.processes == 0 or not e.is_quiet:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = now
        self.talked = e.processes != 0 and (self.talked or e.talks is True)
        quiet_for = 0.0 if self.quiet_since is None else now - self.quiet_since
        # What is not known at this tick is no reason to doubt, and none to remember either.
        return Past(quiet_for, self.talked or e.talks is None)


@dataclass(slots=True)
class Diagnosis:
    """Judges every GPU once a tick, and keeps its account; an observer of the poller."""

    fleet: Callable[[], Fleet]
    bandwidth: Bandwidth
    thresholds: Callable[[], Thresholds]
    accounts: dict[str, Account] = field(default_factory=dict)  # by UUID: a lost GPU may return
    pasts: dict[Labels, Past] = field(default_factory=dict)  # of the GPUs with processes
    window: Window = field(
        default_factory=lambda: Window(frozenset(m.name for m in READ_BY_RULES), SOURCES)
    )

    def observe(self, snapshot: Snapshot, fresh: Sequence[Reading]) -> None:
        """Take in a tick, and enter it into the accounts."""
        self.window.take(snapshot.at, fresh)
        if snapshot.tick % FORGET == 0:
            self.window.forget()
        scene = Scene(self.window, self.bandwidth, self.thresholds(), dict(self.pasts))
        fleet = self.fleet()
        for identity in fleet.gpus:
            account = self.accounts.setdefault(identity.uuid, Account())
            labels = str(identity.index), identity.uuid
            lost = identity.uuid in fleet.lost
            account.enter(None if lost else self._tried(labels, account, scene), snapshot.at)

    def _tried(self, gpu: Labels, account: Account, scene: Scene) -> Verdict | None:
        """The verdict on one GPU; what is odd about it must not cost the others theirs."""
        try:
            found, failure = self._judge(gpu, account, scene), ""
        except Exception as error:
            found, failure = None, described(error)
        if failure and not account.failure:
            log.error('event=verdict_failed gpu=%s error="%s"', gpu[0], failure)
        account.failure = failure
        return found

    def _judge(self, gpu: Labels, account: Account, scene: Scene) -> Verdict | None:
        e = Evidence(gpu, scene)
        self.pasts.pop(gpu, None)
        if e.activity is None:
            account.quiet_since = None
            return None
        if e.processes == 0:
            account.quiet_since, account.talked = None, False
            return judge(e)
        e.past = self.pasts[gpu] = account.remember(e, scene.window.now)
        return judge(e)

    def report(self, snapshot: Snapshot) -> Reading:
        """Accounts and verdicts of the GPUs that are there."""
        out = Out(snapshot.at)
        fleet = self.fleet()
        for identity in fleet.gpus:
            account = self.accounts.get(identity.uuid)
            if account is None or account.at is None:
                continue
            out.labels = str(identity.index), identity.uuid
            _report(account, out, lost=identity.uuid in fleet.lost)
        return Reading(KEY, snapshot.at, beats.TICK, tuple(out.samples), tuple(out.absences))


NAMES = {pair: (pair[0].value, pair[1].value) for pair in PAIRS}
FORGET = 64
"""Ticks between two looks for series that have expired."""


def _report(account: Account, out: Out, *, lost: bool) -> None:
    for pair, seconds in account.seconds.items():
        out.add(STATE_SECONDS, seconds, *NAMES[pair])
    out.add(UNOBSERVED_SECONDS, account.unobserved)
    verdict = account.verdict
    if verdict is None and (lost or account.unobserved):
        reason = Reason.LOST if lost else Reason.FAILED if account.failure else Reason.UNKNOWN
        out.absent(STATE, Absent(reason, account.failure or ("" if lost else NOT_KNOWN)))
        return
    for pair in PAIRS:
        out.add(STATE, verdict is not None and pair == verdict.pair, *NAMES[pair])
    if verdict is None:  # just met: nothing has been there to be observed
        return
    words = verdict.grade.value, SUMMARIES[verdict.pair], ADVICE.get(verdict.pair, "")
    out.add(VERDICT, out.at - account.since, *NAMES[verdict.pair], *words)
    for role, texts in (("evidence", verdict.evidence), ("doubt", verdict.doubts)):
        for place, text in enumerate(texts):
            out.add(EVIDENCE, 1, role, str(place), text)
