"""Findings: what is wrong with a machine, for `check`, its exit status and the page."""

from collections.abc import Mapping
from functools import cache, lru_cache

from agent.faults.model import Fault, Look
from agent.faults.parameters import RuleParameters
from agent.faults.table import found_by_look
from agent.faults.thresholds import AlertThresholds
from agent.model import Finding, Severity, Snapshot
from agent.series import SampleStore
from agent.specs import SystemSpec

WORST_FIRST = list(Severity)[::-1]
USUAL = AlertThresholds()


@lru_cache(maxsize=2)
def _faults(thresholds: AlertThresholds) -> tuple[Fault, ...]:
    return found_by_look(RuleParameters(thresholds))


def findings(
    snapshot: Snapshot,
    spec: SystemSpec | None = None,
    samples: SampleStore | None = None,
    thresholds: AlertThresholds = USUAL,
) -> list[Finding]:
    """Everything wrong that one snapshot shows, the worst first; `spec` is what the system is.

    `samples` are the snapshot's, for a caller who has them or wants to know which were asked for.
    """
    machine = Look(samples or SampleStore.of(snapshot), snapshot, spec)
    found = [finding for fault in _faults(thresholds) for finding in fault.findings(machine)]
    return sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity))


@cache
def by_kind() -> Mapping[str, Fault]:
    """The fault that a finding is an instance of, by its kind."""
    return {fault.kind: fault for fault in _faults(USUAL)}


def action(finding: Finding) -> str:
    """The first step to take."""
    do = by_kind()[finding.kind].do
    return do if isinstance(do, str) else do(finding)
