"""Tracks the faults of this machine: the start of each fault, the state of its alert, the fault
that hides it, and the events of the last 24 hours."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial

from agent.config.settings import Configuration
from agent.diagnosis.advice import severity
from agent.faults.declarations import declared
from agent.faults.findings import WORST_FIRST, Search, by_kind
from agent.faults.hiding import OF_FINDINGS, Inhibition, alert_labels, hides, inhibitions
from agent.faults.model import NEVER, Finding, function
from agent.faults.monitoring import NVML
from agent.faults.promql import seconds
from agent.faults.thresholds import AlertPatches, AlertThresholds, RuleParameters
from agent.model import GpuKey, Pair, Reason, Severity, Snapshot
from agent.polling.gpu_state import GpuInventory
from agent.specs.sheets import SystemSpec

LOOK_EVERY, READER_EVERY = 15.0, 5.0
"""Seconds between two checks for faults. LOOK_EVERY equals the evaluation interval of the rules in
Prometheus. READER_EVERY applies while clients request the status."""

BRIDGED = 60.0
"""This many seconds are the maximum gap between two occurrences of a fault that are shown as one,
the minimum duration of a state that becomes an event, and the time after the start of the agent in
which a fault may be older than the agent."""

REMEMBERED_FOR, MOST_EVENTS = 86_400.0, 200
"""REMEMBERED_FOR: seconds for which events are kept. MOST_EVENTS: maximum number of events."""

READS = frozenset({"driver_hangs", "gpu_not_answering", "source_down", "values_absent"})
"""Kinds of faults about late or failed reads. A single late read is not an event."""

LATE_READ_SECONDS = 30.0
"""Seconds in which a late read may still succeed, so that the first step is to wait."""

IN_DOUBT = frozenset({"ecc_uncorrected", "xid:48", "xid:94", "xid:95", "xid:140"})
"""Faults after which job results may be wrong. They precede others of the same severity."""


class AlertState(StrEnum):
    """State of a fault's alert, based on how long the agent has seen that the condition is true."""

    WOULD_FIRE = "would_fire"  # the condition has been true for as long as the rule requires
    HOLDING = "holding"  # the condition is true, but not for long enough yet
    OFF = "off"  # the alert is disabled


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A current fault, with its alert and the fault that hides it."""

    id: str  # kind and place, such as `gpu_lost:GPU-3f...`
    finding: Finding
    since: float  # agent clock (s)
    alert: AlertState | None  # None if the fault never fires an alert
    hold: float = 0.0  # seconds for which the condition must be true to fire the alert
    hidden_by: str | None = None  # ID of the active fault that hides it
    over: bool = False  # only the counter still shows past events
    late: bool = False  # a read is late, but may still succeed
    or_before: bool = False  # already active at agent startup

    @property
    def in_doubt(self) -> bool:
        """Whether the results of jobs on the fault's GPU may be wrong."""
        kind, device = self.finding.kind, self.finding.device
        return (f"{kind}:{device}" if kind == "xid" else kind) in IN_DOUBT


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault, or a loss of GPU time, from `since` to `until` (seconds on the agent's clock).
    `since` is None if it began before the agent started. `until` is None while it continues."""

    id: str
    severity: Severity
    since: float | None
    until: float | None
    finding: Finding | None = None
    pair: Pair | None = None
    gpu: GpuKey | None = None
    waits_for: GpuKey | None = None


@dataclass(slots=True)
class _Standing:
    """Times at which a fault or state that is still present began, was last seen, and changed."""

    event: FaultEvent
    began: float
    last: float
    changed: float


@dataclass(slots=True, eq=False)
class FaultWatch:
    """Checks snapshots for faults every 15 s or 5 s, and tracks faults across checks."""

    configuration: Configuration
    inventory: Callable[[], GpuInventory]
    spec: Callable[[], SystemSpec | None]
    search: Search = field(default_factory=Search)
    active: tuple[ActiveFault, ...] = ()  # most severe first
    events: tuple[FaultEvent, ...] = ()  # of the last 24 hours, latest last
    waits: bool = True  # wait for late reads; a command that runs a single pass cannot
    looked: float | None = None  # time of the last pass (agent clock, s)
    first: float | None = None  # time of the first pass
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(-1, 0.0, 0.0))  # of the last pass
    _standing: dict[str, _Standing] = field(default_factory=dict)
    _past: list[FaultEvent] = field(default_factory=list)

    def due(self, now: float, every: float = LOOK_EVERY) -> bool:
        return self.looked is None or now - self.looked >= every

    def observe(self, snapshot: Snapshot) -> None:
        """Check a snapshot for faults. It must contain the readings about the agent itself."""
        at = snapshot.at
        if self.looked == at:
            return
        if self.first is None:
            self.first = at
        self.snapshot = snapshot
        self.looked = at
        thresholds = self.configuration.current[AlertThresholds]
        wrong = self.search.findings(snapshot, self.spec(), thresholds)
        self._take(snapshot, wrong)
        rank = partial(_rank, list(by_kind(thresholds)))
        found = sorted((self._active(one, at) for one in wrong), key=rank)
        self.active = tuple(_hidden(found, _inhibitions(thresholds)))
        self.events = tuple(self._events(at))

    def _take(self, snapshot: Snapshot, wrong: Iterable[Finding]) -> None:
        """Update the current faults and states. Those that have ended become events."""
        at, now = snapshot.at, {one.event.id: one for one in self._now(snapshot, wrong)}
        unseen = {  # UUIDs of the GPUs not seen in this pass; empty string for all GPUs
            one.gpu.uuid if one.kind == "gpu_not_answering" and one.gpu else ""
            for one in wrong
            if one.kind in ("gpu_not_answering", "driver_hangs")
            or (one.kind, one.device) == ("source_down", NVML)
        }
        for name, old in self._standing.items():
            new = now.get(name)
            if new is not None:
                same = _lasting(new.event.finding) == _lasting(old.event.finding)
                new.changed = old.changed if same else at
                new.began = old.began
                new.event = replace(new.event, since=old.event.since)
                continue
            uuid = old.event.gpu.uuid if old.event.gpu else ""
            kind = old.event.finding.kind if old.event.finding else ""
            if kind not in READS and ("" in unseen or uuid in unseen):
                old.last = at
            elif at - old.last > BRIDGED:
                if not _early(old):
                    self._past.append(replace(old.event, until=old.last))
                continue
            now[name] = old
        self._standing = now
        kept = (e for e in self._past if e.until is None or at - e.until < REMEMBERED_FOR)
        self._past = list(kept)[-MOST_EVENTS:]

    def _now(self, snapshot: Snapshot, wrong: Iterable[Finding]) -> Iterator[_Standing]:
        at = snapshot.at
        fresh = at - (self.first or 0.0) <= BRIDGED
        for finding in wrong:
            known = self._start(finding, snapshot)
            # A driver that has never responded may have hung before.
            met = finding.kind != "driver_hangs" or self.inventory().generation
            began = at if known is None else known
            since = None if fresh and (known is None or not met) else began
            event = FaultEvent(finding.id, finding.severity, since, None, finding, gpu=finding.gpu)
            yield _Standing(event, began, at, at)
        for gpu, verdict in snapshot.verdicts.items():
            grade = severity(verdict.pair)
            if grade is not None and at - verdict.since >= BRIDGED:
                event = FaultEvent(
                    f"{'/'.join(verdict.pair)}:{gpu.uuid}",
                    *(grade, verdict.since, None, None, verdict.pair, gpu, verdict.waits_for),
                )
                yield _Standing(event, verdict.since, at, at)

    def _start(self, finding: Finding, snapshot: Snapshot) -> float | None:
        """Return the time at which a fault began, or None if it is only known when it was seen."""
        uuid, inventory = finding.gpu.uuid if finding.gpu else "", self.inventory()
        for figure in finding.figures:
            if figure.name == "ago":
                return snapshot.at - figure.value
        if finding.kind == "gpu_lost":
            return inventory.lost.get(uuid)
        if finding.kind == "gpu_not_answering" and uuid in inventory.not_answering:
            return inventory.not_answering[uuid][0]
        if finding.names == (Reason.STALLED,):
            old = (one.at for one in snapshot.readings.values() if not one.fresh(snapshot.at))
            return min(old, default=None)
        return snapshot.turns.get(NVML) if finding.kind == "driver_hangs" else None

    def _active(self, finding: Finding, at: float) -> ActiveFault:
        standing = self._standing[finding.id]
        stood = at - standing.began
        hold, alert = self._alert(finding, stood)
        early = stood < LATE_READ_SECONDS and alert is AlertState.HOLDING
        late = self.waits and finding.kind in READS and early
        over = finding.kind in ("xid", "link_errors") and at - standing.changed > 900.0  # s
        seen = standing.event.since
        since = min(standing.began, self.first or 0.0) if seen is None else seen
        return ActiveFault(
            finding.id, finding, since, alert, hold, None, over, late, or_before=seen is None
        )

    def _alert(self, finding: Finding, stood: float) -> tuple[float, AlertState | None]:
        fault = finding.fault
        patch = self.configuration.current[AlertPatches].patches.get(fault.alert)
        by = fault.finding.hold if fault.finding else ""
        span = function(by)(finding) if by else fault.hold
        if not fault.alert or span == NEVER:
            return 0.0, None
        if patch and not patch.enabled:
            return 0.0, AlertState.OFF
        hold = seconds((patch.hold if patch else None) or span)
        return hold, AlertState.WOULD_FIRE if stood >= hold else AlertState.HOLDING

    def _events(self, at: float) -> Iterator[FaultEvent]:
        yield from self._past
        for one in self._standing.values():
            if not _early(one):
                bridged = 0.0 if one.event.finding else BRIDGED
                yield replace(one.event, until=None if at - one.last <= bridged else one.last)


def _lasting(finding: Finding | None) -> object:
    if finding is None:
        return None
    return finding.names, [figure for figure in finding.figures if figure.name != "ago"]


def _early(one: _Standing) -> bool:
    finding, lasted = one.event.finding, one.last - one.began
    if finding and finding.kind == "job_slower":  # slower steps may be due to a pause
        return lasted < seconds(finding.fault.hold)
    return finding is not None and finding.kind in READS and lasted < BRIDGED


def _rank(kinds: Sequence[str], one: ActiveFault) -> tuple[bool, int, bool, bool, int, str]:
    """Return a key that sorts faults: current faults first, then by severity, whether job results
    may be wrong, whether the repair can wait, the order of declaration, and the GPU."""
    finding = one.finding
    return (
        one.over,
        WORST_FIRST.index(finding.severity),
        not one.in_doubt,
        finding.fault.can_wait,
        kinds.index(finding.kind),
        f"{finding.gpu.index if finding.gpu else 0:04} {one.id}",
    )


def _causes(name: str, hider: Mapping[str, str]) -> Iterator[str]:
    """Yield the ID of a fault, then that of the fault that hides it, and so on up the chain."""
    while name:
        yield name
        name = hider.get(name, "")


@lru_cache(maxsize=1)
def _inhibitions(thresholds: AlertThresholds) -> tuple[Inhibition, ...]:
    groups = declared(RuleParameters(thresholds)).groups
    return (*inhibitions([fault for group in groups for fault in group.faults]), *OF_FINDINGS)


def _hidden(found: Sequence[ActiveFault], rules: Sequence[Inhibition]) -> Iterator[ActiveFault]:
    """Yield each fault with the first fault that hides it and whose alert is active. If faults hide
    each other, the last of them remains visible."""
    labels = [alert_labels(one.finding) for one in found]
    hider: dict[str, str] = {}
    for one, own in zip(found, labels, strict=True):
        for other, theirs in zip(found, labels, strict=True):
            sound = other.alert not in (None, AlertState.OFF) and not other.over
            if sound and one.id not in _causes(other.id, hider) and hides(rules, theirs, own):
                hider[one.id] = other.id
                break
        yield replace(one, hidden_by=hider.get(one.id))
