"""Findings: what is wrong with a machine, for `check`, its exit status and the live page."""

from collections.abc import Iterator

from agent.diagnosis.accounting import STATE
from agent.diagnosis.finding_kinds import FindingKind
from agent.diagnosis.health_findings import health_findings
from agent.limits import paths
from agent.limits.resolution import PathKey
from agent.limits.topology import StrayLinks, wiring
from agent.model import (
    GPU_LABELS,
    Absence,
    Figure,
    Finding,
    GpuKey,
    Metric,
    Reason,
    Severity,
    Snapshot,
)
from agent.series import SampleStore
from agent.sources import (
    activity,
    chassis,
    chassis_faults,
    clocks,
    disk,
    disk_faults,
    ecc,
    gpu,
    kernel_log,
    nvlink,
    pcie,
    system,
    temperature,
    xid,
)
from agent.sources.agent_health import SOURCE_UP
from agent.specs import SystemSpec, xids

__all__ = ["FindingKind", "findings"]

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


WRONG_REASONS = (
    *(Reason.STALLED, Reason.FAILED, Reason.LOST, Reason.DENIED),
    *(Reason.NO_DRIVER, Reason.CRASHED),
)
"""Reasons of absence that somebody should see to; the others are what this hardware is like."""

SILENT = (Reason.NOT_ANSWERING, Reason.FAILED)
"""Reasons of absence, of a GPU's values, that are told with its number; the weightier first."""

HARMFUL = {"software_thermal", "hardware_thermal", "power_brake", "hardware_slowdown"}
"""Throttle reasons that are trouble; a power cap alone is health."""

LOADED = 0.5
"""Activity from which a GPU holds its PCIe link at full speed; an idle link may rest."""

TRAFFIC = 0.05
"""Share of the limit of PCIe from which it is in use: the lowest generation reaches more."""

LOW_CLOCK = 0.3
"""Share of the highest SM clock below which a GPU rests; heat and power leave more of it."""

AT_ONCE = 1.0
"""Seconds: a generation read earlier than this before the load was seen may be that of rest."""

OPTIONAL = {
    *(chassis.POWER.name, chassis.TEMPERATURE.name, chassis_faults.FAULT.name),
    *(disk_faults.FAULT.name, kernel_log.READABLE.name, kernel_log.LOST.name),
    kernel_log.FORGED.name,
    kernel_log.SWITCH_ERRORS.name,
}
"""Metrics of what many machines have none of, or keep for root: absent without harm."""

NVML = "nvml"

FLAGS = (
    (ecc.REMAP_FAILURE, FindingKind.REMAP_FAILURE, CRITICAL),
    (ecc.REMAP_PENDING, FindingKind.REMAP_PENDING, WARNING),
)

PORTS = ("network", "infiniband")


def findings(
    snapshot: Snapshot, spec: SystemSpec | None = None, samples: SampleStore | None = None
) -> Iterator[Finding]:
    """Everything wrong that one snapshot shows, by subsystem; `spec` is what the system is.

    `samples` are the snapshot's, where somebody has them or wants to know which were asked for.
    """
    samples = samples or SampleStore.of(snapshot)
    yield from _sources(samples)
    yield from _gpus(samples)
    yield from _silent(snapshot)
    yield from _memory(samples)
    yield from _events(samples)
    yield from _links(samples)
    yield from _wiring(samples, spec)
    yield from _lanes(samples)
    yield from _generations(samples)
    yield from _slots(samples, spec)
    yield from _ports(samples)
    yield from _heat(samples)
    yield from _arrays(samples)
    yield from health_findings(samples)
    yield from _unused(snapshot)
    for reason in WRONG_REASONS:
        metrics = {
            absence.metric.name
            for absence in snapshot.absences(snapshot.at)
            if absence.reason is reason and not _of_silent(absence)
        }
        metrics -= OPTIONAL
        if metrics:
            figure = _count("metrics", len(metrics))
            kind = FindingKind.VALUES_ABSENT
            yield Finding(kind, WARNING, figures=(figure,), names=(reason.value,))


def _count(name: str, found: float, expected: float | None = None) -> Figure:
    return Figure(name, found, expected, "count")


def _per_gpu(samples: SampleStore, metric: Metric) -> list[tuple[GpuKey, float]]:
    """A metric that each GPU has once, in the order of the GPUs."""
    found = samples.all(metric).items()
    return sorted((GpuKey(int(index), uuid), value) for (index, uuid), value in found)


def _sources(samples: SampleStore) -> Iterator[Finding]:
    for (source,), up in sorted(samples.all(SOURCE_UP).items()):
        gpus = samples.absence(system.GPUS) if source == NVML else None
        if not up and gpus and gpus.reason is Reason.STALLED:
            yield Finding(FindingKind.DRIVER_HANGS, CRITICAL)
        elif not up:
            yield Finding(FindingKind.SOURCE_DOWN, WARNING, device=source)
        elif gpus and gpus.reason is Reason.RELEASED:
            yield Finding(FindingKind.DRIVER_RELEASED, Severity.INFO, names=(gpus.detail,))


def _gpus(samples: SampleStore) -> Iterator[Finding]:
    found, expected = samples.value(system.GPUS), samples.value(system.GPUS_EXPECTED)
    if found is not None and expected is not None and found != expected:
        figures = (_count("gpus", found, expected),)
        if found < expected:
            kind, names = FindingKind.GPUS_MISSING, _gap(samples)
            yield Finding(kind, CRITICAL, figures=figures, names=names)
        else:
            yield Finding(FindingKind.GPUS_UNEXPECTED, WARNING, figures=figures)
    for key, action in _per_gpu(samples, gpu.RECOVERY_ACTION):
        if action:
            figures = (_count("action", action),)
            yield Finding(FindingKind.RECOVERY_NEEDED, CRITICAL, key, figures=figures)


def _of_silent(absence: Absence) -> bool:
    """Whether a value is absent because calls of one GPU fail or hang."""
    of_gpu = absence.metric.labels[:2] == GPU_LABELS and absence.metric is not STATE
    return of_gpu and absence.reason in SILENT


def _silent(snapshot: Snapshot) -> Iterator[Finding]:
    """GPUs some of whose calls fail, or that do not answer at all."""
    found: dict[GpuKey, list[Absence]] = {}
    for absence in snapshot.absences(snapshot.at):
        if _of_silent(absence) and len(absence.labels) > 1:
            key = GpuKey(int(absence.labels[0]), absence.labels[1])
            found.setdefault(key, []).append(absence)
    for key, absences in sorted(found.items()):
        figures = (_count("metrics", len({absence.metric.name for absence in absences})),)
        first = min(absences, key=lambda absence: SILENT.index(absence.reason))
        kind = FindingKind.GPU_NOT_ANSWERING
        yield Finding(kind, WARNING, key, figures=figures, names=(first.detail,))


def _gap(samples: SampleStore) -> tuple[str, ...]:
    """Which GPUs do not answer, as far as the numbers of the others tell."""
    known = {int(labels["gpu"]) for labels in samples.labelled(gpu.INFO)}
    return tuple(map(str, sorted(set(range(max(known, default=0))) - known)))


def _memory(samples: SampleStore) -> Iterator[Finding]:
    """Of uncorrected errors those since the driver was loaded; a GPU that MIG divides tells those
    of its whole life alone, which may be long mended: a warning."""
    for metric, kind, severity in FLAGS:
        for key, flag in _per_gpu(samples, metric):
            if flag:
                yield Finding(kind, severity, key)
    uncorrected = samples.where(ecc.ERRORS, severity="uncorrected")
    for (index, uuid, what, lifetime), errors in sorted(uncorrected.items()):
        fresh = lifetime == "volatile"
        if errors and (fresh or (index, uuid, what, "volatile") not in uncorrected):
            figures, key = (_count("errors", errors),), GpuKey(int(index), uuid)
            kind = FindingKind.ECC_UNCORRECTED if fresh else FindingKind.ECC_LIFETIME
            yield Finding(kind, CRITICAL if fresh else WARNING, key, figures=figures)


def _events(samples: SampleStore) -> Iterator[Finding]:
    architectures = {
        labels["uuid"]: labels["architecture"] for labels in samples.labelled(gpu.INFO)
    }
    for (index, uuid, code), count in sorted(samples.all(xid.ERRORS).items()):
        if count:
            key, at = GpuKey(int(index), uuid), samples.value(xid.AT, index, uuid, code)
            figures = [_count("times", count)]
            if at is not None:
                figures.append(Figure("ago", max(0.0, samples.now - at), None, "seconds"))
            severity = xids.meaning(int(code)).severity
            name = xids.name(int(code), architectures.get(uuid, ""))
            yield Finding(FindingKind.XID, severity, key, code, tuple(figures), (name,))


def _links(samples: SampleStore) -> Iterator[Finding]:
    for key, expected in _per_gpu(samples, nvlink.LINKS_EXPECTED):
        up = samples.value(nvlink.LINKS, *key.labels)
        if up is not None and up < expected:
            states = samples.where(nvlink.LINK_UP, uuid=key.uuid).items()
            down = tuple(link for (*_, link), state in states if not state)
            figures = (_count("links", up, expected),)
            yield Finding(FindingKind.LINKS_DOWN, CRITICAL, key, figures=figures, names=down)
    errors: dict[tuple[GpuKey, str], float] = {}
    for (index, uuid, link, _), count in samples.all(nvlink.ERRORS).items():
        place = GpuKey(int(index), uuid), link
        errors[place] = errors.get(place, 0.0) + count
    for (key, link), count in sorted(errors.items()):
        if count:
            figures = (_count("errors", count),)
            yield Finding(FindingKind.LINK_ERRORS, WARNING, key, link, figures)


def _wiring(samples: SampleStore, spec: SystemSpec | None) -> Iterator[Finding]:
    pairs = []
    for wrong in wiring(samples, spec):
        if isinstance(wrong, StrayLinks):
            figures = (_count("links", len(wrong.links)),)
            names = wrong.remote, wrong.expected, *wrong.links
            kind = FindingKind.STRAY_LINKS
            yield Finding(kind, WARNING, wrong.gpu, figures=figures, names=names)
        else:
            name = f"gpu{wrong.one}-gpu{wrong.other}"
            pairs.append(_count(name, wrong.found, wrong.expected))
    if pairs:
        yield Finding(FindingKind.WRONG_PAIRS, WARNING, figures=tuple(pairs))


def _lanes(samples: SampleStore) -> Iterator[Finding]:
    for key, limit in _per_gpu(samples, pcie.WIDTH_LIMIT):
        lanes = samples.value(pcie.WIDTH, *key.labels)
        if lanes is not None and lanes < limit:
            figures = (_count("lanes", lanes, limit),)
            yield Finding(FindingKind.PCIE_LANES, WARNING, key, figures=figures)


def _generations(samples: SampleStore) -> Iterator[Finding]:
    """Only under load: a link at rest may run slower to save power."""
    for key, most in _per_gpu(samples, pcie.GENERATION_LIMIT):
        now, since = samples.point(pcie.GENERATION, *key.labels), _under_load(samples, key)
        if now is None or since is None:
            continue
        if now.value < most and now.at >= since - AT_ONCE:
            figures = (_count("generation", now.value, most),)
            yield Finding(FindingKind.PCIE_GENERATION, WARNING, key, figures=figures)


def _under_load(samples: SampleStore, key: GpuKey) -> float | None:
    """When the GPU was last seen to compute, or to move data over PCIe; None where it rests or
    that is not known. What moves each second is no news, so that it is asked for unwatched."""
    samples = samples.unwatched
    if _at_rest(samples, key):
        return None
    active = samples.point(activity.ACTIVITY, *key.labels)
    if active is not None and active.value >= LOADED:
        return active.at
    for direction, moved in (("receive", pcie.RECEIVED), ("transmit", pcie.TRANSMITTED)):
        path = PathKey("pcie", f"gpu{key.index}", *key.labels, direction)
        ratio, counted = samples.value(paths.RATIO, *path), samples.point(moved, *key.labels)
        if ratio is not None and ratio >= TRAFFIC and counted is not None:
            return counted.at
    return None


def _at_rest(samples: SampleStore, key: GpuKey) -> bool:
    """Whether the job has ended though means of activity and traffic still tell of it: the clock
    falls with the link, at once."""
    clock = samples.value(clocks.CLOCK, *key.labels, "sm")
    most = samples.value(clocks.CLOCK_LIMIT, *key.labels, "sm")
    low = clock is not None and most is not None and clock < LOW_CLOCK * most
    return low or samples.value(gpu.UTILIZATION, *key.labels) == 0


def _slots(samples: SampleStore, spec: SystemSpec | None) -> Iterator[Finding]:
    """Slots that offer less than the system's sheet; lanes that are not in use are told above.

    Only for systems whose maker chose the slots: a single GPU may sit in any board.
    """
    if spec is None or spec.products is None:
        return
    for path in _held_by_hardware(samples, "pcie"):
        key = path.of
        speed, sheet = samples.value(paths.LIMIT, *path), samples.value(paths.SPEC, *path)
        if key is None or speed is None or sheet is None or speed >= sheet:
            continue
        lanes = samples.value(pcie.WIDTH, *key.labels)
        most = samples.value(pcie.GENERATION_LIMIT, *key.labels)
        if lanes is None or most is None or lanes != samples.value(pcie.WIDTH_LIMIT, *key.labels):
            continue
        figures = _count("generation", most), _count("lanes", lanes), _speed(speed, sheet)
        yield Finding(FindingKind.PCIE_SLOT, WARNING, key, figures=figures)


def _speed(found: float, expected: float) -> Figure:
    return Figure("speed", found, expected, "bytes_per_second")


def _held_by_hardware(samples: SampleStore, path: str) -> list[PathKey]:
    """The paths whose limit the hardware sets, not the sheet nor the configuration; one direction
    stands for both."""
    wanted = samples.where(paths.LIMIT_INFO, path=path, origin="hardware", direction="receive")
    return sorted({PathKey(*labels[: len(PathKey._fields)]) for labels in wanted})


def _ports(samples: SampleStore) -> Iterator[Finding]:
    """Ports with carrier that run below their sheet; links and lanes of GPUs are told above."""
    for kind in PORTS:
        for path in _held_by_hardware(samples, kind):
            speed, sheet = samples.value(paths.LIMIT, *path), samples.value(paths.SPEC, *path)
            if speed is not None and sheet is not None and speed < sheet:
                figures = (_speed(speed, sheet),)
                yield Finding(FindingKind.PORT_SPEED, WARNING, None, path.device, figures, (kind,))


def _unused(snapshot: Snapshot) -> Iterator[Finding]:
    """Limits in the configuration that hold for nothing."""
    for metric, labels, reason, _ in snapshot.absences(snapshot.at):
        if metric is paths.LIMIT and reason is Reason.MISSING:
            path = PathKey(*labels)
            names = path.path, path.direction
            yield Finding(FindingKind.LIMIT_UNUSED, WARNING, device=path.device, names=names)


def _heat(samples: SampleStore) -> Iterator[Finding]:
    samples = samples.unwatched
    for key, margin in _per_gpu(samples, temperature.MARGIN):
        if margin < 0:
            beyond = Figure("beyond", -margin, None, "celsius")
            yield Finding(FindingKind.TOO_HOT, WARNING, key, figures=(beyond,))
    for key, mask in _per_gpu(samples, clocks.REASONS):
        held = sorted(
            t.reason for t in clocks.THROTTLES if t.bit & int(mask) and t.reason in HARMFUL
        )
        if held:
            yield Finding(FindingKind.CLOCKS_HELD_DOWN, WARNING, key, names=tuple(held))


def _arrays(samples: SampleStore) -> Iterator[Finding]:
    for (array, _), missing in sorted(samples.where(disk.MEMBERS, state="missing").items()):
        if missing:
            members = samples.value(disk.MEMBERS, array, "working") or 0.0
            figures = (_count("members", members, members + missing),)
            yield Finding(FindingKind.ARRAY_DEGRADED, WARNING, device=array, figures=figures)
