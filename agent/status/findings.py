"""Findings for display, each with its alert and first step; equal findings on several GPUs are
merged."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.faults.findings import action
from agent.faults.watch import LATE_READ_SECONDS, ActiveFault, AlertState
from agent.jobs.job import percent
from agent.limits.paths import PathAccounts
from agent.model import Finding, GpuKey, Snapshot
from agent.ranges import gpus_named
from agent.status.model import AlertStatus, FindingStatus, Level
from agent.status.words import (
    LEVEL,
    alert_status,
    began,
    duration,
    finding_text,
    wait,
)

PCIE_KINDS = frozenset({"pcie_lanes", "pcie_generation", "pcie_slot"})
NEAR = 0.5
"""Share of the limit below which a degraded PCIe link does not currently reduce throughput."""


def finding_statuses(
    active: Sequence[ActiveFault],
    snapshot: Snapshot,
    bandwidth: PathAccounts,
    missing: Sequence[int] = (),
    step: Callable[[ActiveFault], str] = lambda one: action(one.finding),
) -> tuple[FindingStatus, ...]:
    """Return the active faults, most severe first. `missing` are the indices of GPUs that the agent
    has never seen, and `step` returns the first step for a fault."""
    words = {
        one.id: (
            _brief(one.finding, bandwidth, snapshot.at),
            wait(LATE_READ_SECONDS) if one.late else step(one),
        )
        for one in active
    }
    alike: dict[object, list[ActiveFault]] = {}
    for one in active:
        told = one.finding.kind, words[one.id], one.alert, one.over, bool(one.hidden_by)
        alike.setdefault(told if one.finding.gpu else one.id, []).append(one)
    first_of = {one.id: same[0].id for same in alike.values() for one in same}
    names = {one.id: one.fault.alert for one in active}
    found = (_status(same, words, snapshot, first_of, names) for same in alike.values())
    return tuple(_naming(one, missing) if one.kind == "gpus_missing" else one for one in found)


def _naming(finding: FindingStatus, missing: Sequence[int]) -> FindingStatus:
    """Return the finding about missing GPUs, with their indices if the driver still counts them."""
    if not missing:
        return finding
    text = f"{finding.text}: {gpus_named(missing)}"
    devices = tuple(f"gpu{number}" for number in missing)
    return replace(finding, text=text, brief=text, devices=devices)


def _status(
    alike: Sequence[ActiveFault],
    words: Mapping[str, tuple[str, str]],
    snapshot: Snapshot,
    first_of: Mapping[str, str],
    names: Mapping[str, str],
) -> FindingStatus:
    first = alike[0]
    finding, (brief, do) = first.finding, words[first.id]
    gpus = sorted({one.finding.gpu.index for one in alike if one.finding.gpu})
    hidden = first.hidden_by
    port = finding.names[:1] if first.fault.place == "port" else ()
    device = ":".join((finding.device, *port))
    begun = [one.since for one in alike if one.since is not None]
    where = f"{gpus_named(gpus)}: " if gpus else ""
    return FindingStatus(
        id=first.id,
        kind=finding.kind,
        level=LEVEL[first.severity],
        text=f"{where}{brief}",
        brief=brief,
        devices=tuple(f"gpu{n}" for n in gpus) or tuple(filter(None, (device,))),
        since=began(snapshot, snapshot.at - min(begun)) if len(begun) == len(alike) else None,
        do=None if hidden else do or None,
        alert=_alert(first, names.get(hidden or "", "")),
        runbook=first.fault.alert.lower() or None,
        hidden_by=first_of.get(hidden) if hidden else None,
        over=first.over,
        in_doubt=first.in_doubt,
    )


def _brief(finding: Finding, bandwidth: PathAccounts, now: float) -> str:
    """Return the text without the GPU name. For a PCIe link whose traffic is well below its limit,
    the text says so."""
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


def _alert(one: ActiveFault, hider: str) -> AlertStatus | None:
    name, severity = one.fault.alert, one.finding.severity
    if hider:
        return alert_status(name, severity, AlertState.OFF, f"is held back by {hider}")
    if one.alert is AlertState.WOULD_FIRE:
        return alert_status(name, severity, AlertState.WOULD_FIRE, "would fire now")
    if one.alert is AlertState.HOLDING:
        when = f"would fire after {duration(one.hold)}"
        return alert_status(name, severity, AlertState.HOLDING, when)
    return alert_status(name, severity, AlertState.OFF, "does not fire")


def grave(findings: Iterable[FindingStatus]) -> bool:
    """Return whether any finding is critical and still present."""
    return any(one.level is Level.CRITICAL and not one.over for one in findings)


def not_good(level: Level | None, findings: Iterable[FindingStatus]) -> Level | None:
    """Return the level of a GPU's work, or None for good work on a GPU with a critical finding,
    because the work is neither healthy nor the fault."""
    return None if level is Level.GOOD and grave(findings) else level


def by_gpu(
    found: Iterable[FindingStatus], gpus: Iterable[GpuKey]
) -> dict[str, tuple[FindingStatus, ...]]:
    """Return the findings of each GPU, by UUID."""
    findings = list(found)
    return {
        gpu.uuid: tuple(one for one in findings if f"gpu{gpu.index}" in one.devices) for gpu in gpus
    }
