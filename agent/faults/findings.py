"""Every fault: in the groups in which Prometheus evaluates them, and as findings, which are what is
wrong with a machine, for `check`, its exit status and the page."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from agent.faults.fabric import fabric_faults
from agent.faults.gpus import gpu_faults
from agent.faults.host import host_faults
from agent.faults.memory import memory_faults
from agent.faults.model import Fault, Group, Look
from agent.faults.monitoring import monitoring_faults
from agent.faults.pcie import pcie_faults
from agent.faults.records import second_names
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.xids import HAD, recent, xid_faults
from agent.model import Finding, Severity, Snapshot
from agent.series import SampleStore
from agent.specs.sheets import SystemSpec

Faults = Callable[[RuleParameters], tuple[Fault, ...]]

HARDWARE = (gpu_faults, memory_faults, xid_faults, fabric_faults, pcie_faults, host_faults)


def hardware(parameters: RuleParameters) -> Group:
    faults = _rules(*HARDWARE, parameters=parameters)
    title = "Hardware: repair, reset, cool"
    return Group("dgx-hardware", (HAD, recent(parameters), *faults), title)


def monitoring(parameters: RuleParameters) -> Group:
    rules = _rules(monitoring_faults, parameters=parameters)
    return Group("dgx-agent", (*second_names(parameters), *rules), "Monitoring: missing data")


def _rules(*parts: Faults, parameters: RuleParameters) -> tuple[Fault, ...]:
    return tuple(
        fault for part in parts for fault in part(parameters) if fault.when and fault.alert
    )


WORST_FIRST = list(Severity)[::-1]
USUAL = AlertThresholds()


@lru_cache(maxsize=2)
def _faults(thresholds: AlertThresholds) -> tuple[Fault, ...]:
    parts, parameters = (*HARDWARE, monitoring_faults), RuleParameters(thresholds)
    return tuple(fault for part in parts for fault in part(parameters) if fault.kind)


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
    return {fault.kind: fault for fault in _faults(USUAL)}


def action(finding: Finding) -> str:
    """Return the first step, with the GPU or disk that its commands ask for."""
    do = by_kind()[finding.kind].do
    text = (do if isinstance(do, str) else do(finding)).replace(
        "/dev/DISK", f"/dev/{finding.device}"
    )
    return text.replace("-i GPU", f"-i {finding.gpu.index}") if finding.gpu else text
