"""What is wrong by the word of the driver's memory, the fabric, disks, fans and the clock."""

from collections.abc import Iterator

from agent.diagnosis.finding_kinds import FindingKind
from agent.model import Figure, Finding, GpuKey, Severity
from agent.series import SampleStore
from agent.sources import (
    chassis_faults,
    disk_faults,
    ecc,
    fabric,
    fabric_service,
    kernel_log,
)
from agent.sources.agent_health import CLOCK_STEPS

MOST_ROWS, MOST_PAGES, NEAR = 512, 63, 0.8
"""What has a GPU replaced (DCGM 4.6), and the share of it that is told."""

REGISTERED = 3
"""State of a GPU that has joined the fabric."""


def _count(name: str, found: float, limit: float | None = None) -> tuple[Figure, ...]:
    return (Figure(name, found, limit, "count"),)


def health_findings(samples: SampleStore) -> Iterator[Finding]:
    """In the order of their weight."""
    yield from _fabric(samples)
    yield from _memory(samples)
    yield from _box(samples)
    steps = samples.value(CLOCK_STEPS)
    if steps:
        kind, severity = FindingKind.CLOCK_STEPPED, Severity.WARNING
        yield Finding(kind, severity, figures=_count("times", steps))
    closed = samples.absence(kernel_log.READABLE)
    if closed:
        yield Finding(FindingKind.LOG_CLOSED, Severity.INFO, names=(closed.detail,))


def _fabric(samples: SampleStore) -> Iterator[Finding]:
    if samples.value(fabric_service.RUNNING) == 0:
        yield Finding(FindingKind.FABRIC_SERVICE, Severity.CRITICAL)
    for (index, uuid), state in sorted(samples.all(fabric.STATE).items()):
        if state < REGISTERED:
            key, figures = GpuKey(int(index), uuid), _count("state", state, REGISTERED)
            yield Finding(FindingKind.FABRIC_STATE, Severity.CRITICAL, key, figures=figures)
    for (index, uuid, kind), holds in sorted(samples.all(fabric.HEALTH).items()):
        if holds:
            key = GpuKey(int(index), uuid)
            yield Finding(FindingKind.FABRIC_HEALTH, Severity.WARNING, key, kind)
    for (switch, severity, code), times in sorted(samples.all(kernel_log.SWITCH_ERRORS).items()):
        if severity == "fatal":
            figures = _count("times", times)
            kind = FindingKind.SWITCH_ERROR
            yield Finding(kind, Severity.CRITICAL, None, switch, figures, (code,))


def _memory(samples: SampleStore) -> Iterator[Finding]:
    for (index, uuid), pending in sorted(samples.all(ecc.RETIRED_PENDING).items()):
        if pending:
            key = GpuKey(int(index), uuid)
            yield Finding(FindingKind.PAGES_PENDING, Severity.WARNING, key)
    rows = samples.where(ecc.REMAPPED_ROWS, severity="uncorrected")
    for (index, uuid, _), count in sorted(rows.items()):
        if count >= MOST_ROWS * NEAR:
            key, figures = GpuKey(int(index), uuid), _count("rows", count, MOST_ROWS)
            yield Finding(FindingKind.ROWS_NEAR, Severity.WARNING, key, figures=figures)
    pages: dict[GpuKey, float] = {}
    for (index, uuid, _), count in samples.all(ecc.RETIRED_PAGES).items():
        key = GpuKey(int(index), uuid)
        pages[key] = pages.get(key, 0.0) + count
    for key, count in sorted(pages.items()):
        if count >= MOST_PAGES * NEAR:
            figures = _count("pages", count, MOST_PAGES)
            yield Finding(FindingKind.PAGES_NEAR, Severity.WARNING, key, figures=figures)


def _box(samples: SampleStore) -> Iterator[Finding]:
    for metric, kind in (
        (disk_faults.FAULT, FindingKind.DISK_FAULT),
        (chassis_faults.FAULT, FindingKind.CHASSIS_FAULT),
    ):
        for (device, sign), holds in sorted(samples.all(metric).items()):
            if holds:
                yield Finding(kind, Severity.WARNING, None, device, (), (sign,))
