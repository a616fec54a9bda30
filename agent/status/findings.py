"""Findings for display, each with its alert and first step. Identical findings on several GPUs are
merged."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.diagnosis.advice import ALERTS
from agent.faults.findings import of_gpus
from agent.faults.watch import LATE_READ_SECONDS, ActiveFault, AlertState, FaultWatch
from agent.jobs.job import percent
from agent.limits.paths import PathAccounts
from agent.model import Finding, GpuKey, Snapshot
from agent.ranges import gpus_named
from agent.status.model import AlertStatus, FindingStatus, Level
from agent.status.words import (
    LEVEL,
    alert_status,
    began,
    finding_text,
    fires_in,
    wait,
)

OF_STATES = frozenset(alert for alert, _ in ALERTS.values())
PCIE_KINDS = frozenset({"pcie_lanes", "pcie_generation", "pcie_slot"})
NEAR = 0.5
"""Share of the limit below which a degraded PCIe link does not currently reduce throughput."""


def finding_statuses(
    watch: FaultWatch,
    snapshot: Snapshot,
    bandwidth: PathAccounts,
    places: Mapping[str, tuple[str, Sequence[int]]],
    step: Callable[[ActiveFault], str],
) -> tuple[FindingStatus, ...]:
    """Return the active faults, most serious first. `places` contains places and GPUs for kinds of
    faults that have no place of their own. `step` returns the first step for a fault."""
    added = {one.hidden_by: one.fault.finding.adds for one in watch.active if one.fault.finding}
    words = {
        one.id: (
            _brief(one.finding, bandwidth, snapshot.at) + added.get(one.id, ""),
            wait(LATE_READ_SECONDS) if one.late else step(one),
        )
        for one in watch.active
    }
    alike: dict[object, list[ActiveFault]] = {}
    for one in watch.active:
        told = one.finding.kind, words[one.id], one.alert, one.over, bool(one.hidden_by)
        alike.setdefault(told if one.finding.gpu else one.id, []).append(one)
    hiders = {one.id: (same[0].id, one.fault.alert) for same in alike.values() for one in same}
    found = (_status(same, words, snapshot, watch, hiders) for same in alike.values())
    return tuple(_placed(one, *places.get(one.kind, ("", ()))) for one in found)


def _port(one: ActiveFault) -> tuple[str, ...]:
    return one.finding.device, *one.finding.names[:1]


def _under(one: ActiveFault, same: Sequence[ActiveFault]) -> bool:
    """Return whether a fault of a port or disk of the host is hidden by another fault of the same
    port or disk that is at least as old."""
    return not one.finding.gpu and any(
        one.hidden_by == other.id and one.finding.device and _port(one) == _port(other)
        for other in same
    )


def _placed(finding: FindingStatus, place: str, gpus: Sequence[int]) -> FindingStatus:
    if not place:
        return finding
    text = f"{finding.text}: {place}"
    devices = tuple(f"gpu{number}" for number in gpus)
    return replace(finding, text=text, brief=text, devices=devices or finding.devices)


def _status(
    alike: Sequence[ActiveFault],
    words: Mapping[str, tuple[str, str]],
    snapshot: Snapshot,
    watch: FaultWatch,
    hiders: Mapping[str, tuple[str, str]],
) -> FindingStatus:
    first = alike[0]
    finding = first.finding
    gpus = sorted({one.finding.gpu.index for one in alike if one.finding.gpu})
    brief, do = (of_gpus(text, gpus) for text in words[first.id])
    hidden, hider = hiders.get(first.hidden_by or "", (None, ""))
    port = finding.names[:1] if first.fault.place == "port" else ()
    device = ":".join((finding.device, *port))
    sights = [one.since for one in (*alike, *(one for one in watch.active if _under(one, alike)))]
    begun = [(watch.first or 0.0) if since is None else since for since in sights]
    where = f"{gpus_named(gpus)}: " if gpus else ""
    return FindingStatus(
        id=first.id,
        kind=finding.kind,
        level=LEVEL[first.severity],
        text=f"{where}{brief}",
        brief=brief,
        devices=tuple(f"gpu{n}" for n in gpus) or tuple(filter(None, (device,))),
        since=began(snapshot, snapshot.at - min(begun)),
        or_before=None in sights,
        do=None if hidden else do or None,
        alert=_alert(first, hider, snapshot.at - (first.since or watch.first or 0.0)),
        runbook=first.fault.alert.lower() or None,
        hidden_by=hidden,
        over=first.over,
        in_doubt=first.in_doubt,
        can_wait=first.fault.can_wait,
    )


def _brief(finding: Finding, bandwidth: PathAccounts, now: float) -> str:
    """Return the text without the GPU name. If the traffic on a PCIe link is well below the limit
    of the link, the text mentions this."""
    text = finding_text(finding, named=False)
    if finding.kind not in PCIE_KINDS or finding.gpu is None:
        return text
    ratios = [
        path.ratio
        for key, path in bandwidth.paths.items()
        if key.path == "pcie" and key.of == finding.gpu and path.until >= now
        if path.ratio is not None
    ]
    if not ratios or max(ratios) >= NEAR:
        return text
    return f"{text}; not near its limit now ({percent(max(ratios))})"


def _alert(one: ActiveFault, hider: str, stood: float) -> AlertStatus | None:
    name, severity = one.fault.alert, one.finding.severity
    if hider:
        return alert_status(name, severity, AlertState.OFF, f"is held back by {hider}")
    if one.alert is AlertState.WOULD_FIRE:
        return alert_status(name, severity, AlertState.WOULD_FIRE, "would fire now")
    if one.alert is AlertState.HOLDING:
        when = fires_in(one.hold - stood)
        return alert_status(name, severity, AlertState.HOLDING, when)
    return alert_status(name, severity, AlertState.OFF, "does not fire")


def grave(findings: Iterable[FindingStatus]) -> bool:
    """Return whether any finding is critical and has not ended."""
    return any(one.level is Level.CRITICAL and not one.over for one in findings)


def is_fault(one: FindingStatus) -> bool:
    """Return whether a finding is a current fault, and not a state that loses time."""
    lost = one.alert is not None and one.alert.name in OF_STATES
    return one.level is not Level.INFO and not one.over and not lost


def not_good(level: Level | None, findings: Iterable[FindingStatus]) -> Level | None:
    """Return the level of a GPU's work. Return None for good work on a GPU with a critical finding:
    the work is not healthy, but it is not at fault either."""
    return None if level is Level.GOOD and grave(findings) else level


def by_gpu(
    found: Iterable[FindingStatus], gpus: Iterable[GpuKey]
) -> dict[str, tuple[FindingStatus, ...]]:
    """Return the findings of each GPU, by UUID."""
    findings = list(found)
    return {
        gpu.uuid: tuple(one for one in findings if f"gpu{gpu.index}" in one.devices) for gpu in gpus
    }


Ailing = Mapping[tuple[str, str], Level]
"""Level of the most severe finding, by kind of path and device. The kind is empty for host devices,
because most findings of a GPU do not concern a path."""

OF_FABRIC = frozenset({"fabric_service", "switch_error"})
OF_PATH = {
    **dict.fromkeys(OF_FABRIC, "nvlink"),
    "fabric_health": "nvlink",
    "fabric_state": "nvlink",
    "link_errors": "nvlink",
    "links_down": "nvlink",
    "pcie_generation": "pcie",
    "pcie_lanes": "pcie",
    "pcie_replays": "pcie",
    "pcie_slot": "pcie",
}
"""Path that is affected by a finding of a GPU, by kind of finding."""


def ailing_paths(findings: Sequence[FindingStatus], gpus: Iterable[int]) -> Ailing:
    """Return the devices, and the paths of GPUs, that have a finding which has not ended. A fault
    of the switches concerns the NVLinks of all GPUs."""
    found: dict[tuple[str, str], Level] = {}
    all_of = tuple(f"gpu{number}" for number in gpus)
    for one in findings:
        devices = all_of if one.kind in OF_FABRIC else one.devices
        for device in () if one.over else devices:
            found.setdefault((OF_PATH.get(one.kind, ""), device), one.level)
    return found
