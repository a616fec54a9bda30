"""The findings that the outputs show, each with its alert and first step. Identical findings on
several GPUs are merged."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from agent.diagnosis.advice import ALERTS
from agent.faults.findings import of_gpus
from agent.faults.model import Finding
from agent.faults.watch import LATE_READ_SECONDS, ActiveFault, AlertState, FaultEvent, FaultWatch
from agent.jobs.job import percent
from agent.limits.paths import PathAccounts
from agent.model import GpuKey, Labels, Snapshot
from agent.ranges import gpus_named
from agent.status.model import AlertStatus, FindingStatus, Level
from agent.status.words import LEVEL, alert_status, began, duration, finding_text, wait

OF_STATES = frozenset(alert.lower() for alert, _ in ALERTS.values())
"""Runbook anchors of the alerts on lost GPU time."""

PCIE_KINDS = frozenset({"pcie_lanes", "pcie_generation", "pcie_slot"})
SAME_SHARE = 0.02
"""Maximum difference of time shares (0-1) that are shown as the same share, so that rounding does
not split the GPUs of a job into groups."""


def finding_statuses(
    watch: FaultWatch,
    snapshot: Snapshot,
    bandwidth: PathAccounts,
    places: Mapping[str, tuple[str, Sequence[int]]],
    step: Callable[[ActiveFault], str],
    *,
    peers: Mapping[Labels, int | None],
) -> tuple[FindingStatus, ...]:
    """Return a finding for each active fault, most serious first. `places` contains names and GPU
    indices, by kind of fault, for faults whose metrics lack them. `step` is a function that returns
    the first step for a fault. `peers` maps each NVLink to the GPU at its remote end."""
    findings = merged_shares(one.finding for one in watch.active)
    added = {one.hidden_by: f.adds for one in watch.active if (f := one.finding.fault.finding)}
    words = {
        one.id: (
            _brief(findings[one.id], bandwidth, snapshot.at) + added.get(one.id, ""),
            wait(LATE_READ_SECONDS) if one.late else step(one),
        )
        for one in watch.active
    }
    near = near_ends((one for one in watch.active if not one.hidden_by), peers)
    alike: dict[object, list[ActiveFault]] = {}
    for one in watch.active:
        told = one.finding.kind, words[one.id], one.alert, one.over, bool(one.hidden_by)
        merges = one.finding.gpu and one.id not in {*near, *near.values()}
        alike.setdefault(told if merges else one.id, []).append(one)
    hiders = {f.id: (g[0].id, f.finding.fault.alert) for g in alike.values() for f in g}
    found = (_status(same, words, snapshot, watch, hiders, near=near) for same in alike.values())
    return tuple(_placed(one, *places.get(one.kind, ("", ()))) for one in found)


def merged_shares(findings: Iterable[Finding]) -> dict[str, Finding]:
    """Return the findings by ID. If a share of time differs by at most SAME_SHARE from that of an
    earlier finding for the same reason, use the earlier one."""
    found: dict[str, Finding] = {}
    for one in findings:
        shares = [figure.value for figure in one.figures if figure.name == "share"]
        near = (
            other.figures
            for other in found.values()
            if (other.kind, other.names, len(shares)) == (one.kind, one.names, len(one.figures))
            and all(abs(other.figures[0].value - share) <= SAME_SHARE for share in shares)
        )
        found[one.id] = dataclasses.replace(one, figures=next(near, one.figures))
    return found


def near_ends(
    faults: Iterable[ActiveFault | FaultEvent], peers: Mapping[Labels, int | None]
) -> dict[str, str]:
    """Find pairs of faults in which two GPUs report that the NVLinks between them are down. Return
    a dict that maps the ID of one fault in each pair to the ID of the other."""
    ends = {
        one.id: (gpu.index, [peers.get((*gpu.labels, link)) for link in one.finding.names])
        for one in faults
        if one.finding and one.finding.kind == "links_down" and (gpu := one.finding.gpu)
    }
    near: dict[str, str] = {}
    for far, (index, remote) in reversed(ends.items()):
        for one, (its, others) in ends.items():
            if {*remote} == {its} and others.count(index) >= len(remote) and one not in near:
                near[far] = one
    return near


def _between(one: ActiveFault, other: ActiveFault) -> str:
    """Return a string with the NVLinks that are down and the GPUs that they connect."""
    count = len(one.finding.names)
    link, links, are = ("link", "NVLink", "is") if count == 1 else ("links", "NVLinks", "are")
    found = [(end.finding.gpu, ", ".join(end.finding.names)) for end in (one, other)]
    ends = " and ".join(f"GPU {gpu.index} ({link} {names})" for gpu, names in found if gpu)
    return f"{count} {links} between {ends} {are} down"


def _port(one: ActiveFault) -> tuple[str, ...]:
    return one.finding.device, *one.finding.names[:1]


def _under(one: ActiveFault, same: Sequence[ActiveFault]) -> bool:
    """Return whether a fault of a port or disk is hidden by another fault of the same port or disk,
    which must be in `same`."""
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
    *,
    near: Mapping[str, str],
) -> FindingStatus:
    first = alike[0]
    finding = first.finding
    gpus = sorted({one.finding.gpu.index for one in alike if one.finding.gpu})
    brief, do = (of_gpus(text, gpus) for text in words[first.id])
    hidden, hider = hiders.get(first.hidden_by or "", (near.get(first.id), ""))
    device = ":".join(_port(first) if finding.fault.place == "port" else (finding.device,))
    far = [one for one in watch.active if near.get(one.id) == first.id]
    ours = [*alike, *far, *(one for one in watch.active if _under(one, alike))]
    text = f"{gpus_named(gpus)}{', each' * (len(gpus) > 1)}: {brief}" if gpus else brief
    if len(far) == 1 and len(far[0].finding.names) == len(finding.names):
        text = _between(first, far[0])
    return FindingStatus(
        id=first.id,
        kind=finding.kind,
        level=LEVEL[finding.severity],
        text=text,
        brief=brief,
        devices=tuple(f"gpu{n}" for n in gpus) or tuple(filter(None, (device,))),
        since=began(snapshot, snapshot.at - min(one.since for one in ours)),
        or_before=any(one.or_before for one in ours),
        do=None if hidden else do or None,
        alert=_alert(first, hider, snapshot.at - first.since),
        runbook=finding.fault.alert.lower() or None,
        hidden_by=hidden,
        over=first.over,
        in_doubt=first.in_doubt,
        can_wait=finding.fault.can_wait,
    )


def _brief(finding: Finding, bandwidth: PathAccounts, now: float) -> str:
    """Return the text of a finding without the GPU name. For a degraded PCIe link, add a remark if
    its traffic is below half of its limit."""
    text = finding_text(finding)
    if finding.kind not in PCIE_KINDS or finding.gpu is None:
        return text
    ratios = [
        path.ratio
        for key, path in bandwidth.paths.items()
        if key.path == "pcie" and key.of == finding.gpu and path.until >= now
        if path.ratio is not None
    ]
    if not ratios or max(ratios) >= 0.5:  # below that, the link does not slow its traffic
        return text
    return f"{text}; not near its limit now ({percent(max(ratios))})"


def _alert(one: ActiveFault, hider: str, stood: float) -> AlertStatus | None:
    name, severity = one.finding.fault.alert, one.finding.severity
    if one.alert is None:
        return None
    if hider:
        return alert_status(name, severity, AlertState.OFF, f"is held back by {hider}")
    left = one.hold - stood
    when = {
        AlertState.WOULD_FIRE: "would fire now",
        AlertState.HOLDING: f"would fire {f'in {duration(left)}' if left > 0 else 'soon'}",
        AlertState.OFF: "is disabled in the configuration",
    }
    return alert_status(name, severity, one.alert, when[one.alert])


def grave(findings: Iterable[FindingStatus]) -> bool:
    """Return whether any current finding is critical."""
    return any(one.level is Level.CRITICAL and not one.over for one in findings)


def is_fault(one: FindingStatus) -> bool:
    """Return whether a finding is about a current fault. False for findings about lost GPU time."""
    return one.level is not Level.INFO and not one.over and one.runbook not in OF_STATES


def not_good(level: Level | None, findings: Iterable[FindingStatus]) -> Level | None:
    """Return the level of a group of GPUs, but None instead of `good` if a finding is critical. The
    GPUs may be busy, but are then not shown as healthy."""
    return None if level is Level.GOOD and grave(findings) else level


def by_gpu(
    found: Iterable[FindingStatus], gpus: Iterable[GpuKey]
) -> dict[str, tuple[FindingStatus, ...]]:
    """Return the findings of each GPU, by UUID."""
    known, names = list(found), {gpu.uuid: f"gpu{gpu.index}" for gpu in gpus}
    return {u: tuple(one for one in known if name in one.devices) for u, name in names.items()}


Ailing = Mapping[tuple[str, str], Level]
"""Level of the most severe finding, by kind of path and device. The kind is empty if a finding
concerns the whole device."""

OF_FABRIC = frozenset({"fabric_service", "switch_error"})
OF_PATH = {
    **dict.fromkeys(OF_FABRIC, "nvlink"),
    **dict.fromkeys(("fabric_health", "fabric_state", "link_errors", "links_down"), "nvlink"),
    **dict.fromkeys((*PCIE_KINDS, "pcie_replays"), "pcie"),
}
"""Maps kinds of findings about GPUs to the kind of data path that they affect."""


def ailing_paths(findings: Sequence[FindingStatus], gpus: Iterable[int]) -> Ailing:
    """Return the level of the most severe current finding, by kind of path and device. The kind is
    empty if the finding affects the whole device. NVSwitch faults affect all GPUs' NVLinks."""
    found: dict[tuple[str, str], Level] = {}
    all_of = tuple(f"gpu{number}" for number in gpus)
    for one in findings:
        devices = all_of if one.kind in OF_FABRIC else one.devices
        for device in () if one.over else devices:
            found.setdefault((OF_PATH.get(one.kind, ""), device), one.level)
    return found
