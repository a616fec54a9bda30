"""Every fault: in the groups in which Prometheus evaluates them, and as findings, the faults of a
machine for `check`, its exit status and the page."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

from agent.faults.fabric import fabric_faults, switch_records
from agent.faults.gpus import ANSWERS, COMPARED, gpu_faults, refusing_faults
from agent.faults.host import DISK_RECORDS, host_faults
from agent.faults.lost import lost, owner
from agent.faults.memory import ecc_records, memory_faults
from agent.faults.model import CRITICAL, Fault, Group, Look
from agent.faults.monitoring import SOURCES, monitoring_faults
from agent.faults.pcie import pcie_faults, replay_records, slow_link
from agent.faults.promql import Condition
from agent.faults.records import second_names
from agent.faults.slow import slow, slow_faults
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.windows import Ask, FaultSamples
from agent.faults.workload import workload_faults
from agent.faults.xids import nvlink5_records, xid_faults, xid_records
from agent.model import Finding, Severity, Snapshot
from agent.specs.sheets import SystemSpec

Faults = Callable[[RuleParameters], Iterable[Fault]]

FAULTS: tuple[Faults, ...] = (
    *(memory_faults, xid_faults, gpu_faults, refusing_faults, fabric_faults, pcie_faults),
    *(host_faults, slow_faults, monitoring_faults, workload_faults),
)
"""All faults; among faults of equal severity the first comes first."""


def gpus(parameters: RuleParameters) -> Group:
    rules = _rules(gpu_faults, memory_faults, parameters=parameters)
    before = lost(parameters), owner(parameters), *ecc_records(parameters)
    return Group("dgx-gpus", (*before, *rules), "Hardware: repair, reset, cool")


def xids(parameters: RuleParameters) -> Group:
    critical = (f for f in _rules(xid_faults, parameters=parameters) if f.severity is CRITICAL)
    before = *xid_records(parameters), *nvlink5_records(parameters)
    return Group("dgx-xids", (*before, *critical))


def lesser_xids(parameters: RuleParameters) -> Group:
    rules = _rules(xid_faults, parameters=parameters)
    return Group("dgx-xids-lesser", [f for f in rules if f.severity is not CRITICAL])


def links(parameters: RuleParameters) -> Group:
    records = (
        *switch_records(parameters),
        *slow_link(parameters),
        *replay_records(parameters),
        ANSWERS,
        COMPARED,
    )
    rules = _rules(fabric_faults, pcie_faults, refusing_faults, parameters=parameters)
    return Group("dgx-links", (*records, *rules))


def host(parameters: RuleParameters) -> Group:
    rules = _rules(host_faults, parameters=parameters)
    return Group("dgx-host", (*DISK_RECORDS, *rules))


HARDWARE = (gpus, xids, lesser_xids, links, host, slow)


def monitoring(parameters: RuleParameters) -> Group:
    rules = _rules(monitoring_faults, parameters=parameters)
    before = *second_names(parameters), SOURCES
    return Group("dgx-agent", (*before, *rules), "Monitoring: missing data")


def _rules(*parts: Faults, parameters: RuleParameters) -> tuple[Fault, ...]:
    return tuple(
        fault
        for part in parts
        for fault in part(parameters)
        if fault.when and fault.alert and not fault.fires
    )


WORST_FIRST = list(Severity)[::-1]
USUAL = AlertThresholds()


@lru_cache(maxsize=2)
def declared(thresholds: AlertThresholds) -> tuple[Fault, ...]:
    """Return every fault that is a finding, by these thresholds."""
    parameters = RuleParameters(thresholds)
    return tuple(fault for part in FAULTS for fault in part(parameters) if fault.kind)


def asked_by(fault: Fault) -> frozenset[Ask]:
    """Return the inputs of a finding; empty for everything."""
    of_rule = isinstance(fault.when, Condition) and not fault.look
    return fault.when.asks if of_rule else fault.reads  # type: ignore[union-attr]


@dataclass(slots=True, eq=False)
class Search:
    """Searches a machine for faults again and again. A condition is evaluated anew if a reading of
    its metrics has changed, or a minute has passed over its window."""

    samples: FaultSamples = field(default_factory=FaultSamples)
    _thresholds: AlertThresholds | None = None
    _found: dict[Fault, tuple[object, list[Finding]]] = field(default_factory=dict)

    def findings(
        self, snapshot: Snapshot, spec: SystemSpec | None, thresholds: AlertThresholds
    ) -> list[Finding]:
        """Return every fault that a snapshot shows, the worst first."""
        faults = declared(thresholds)
        if thresholds != self._thresholds:
            self._thresholds, self._found = thresholds, {}
            for fault in faults:
                self.samples.keep(asked_by(fault))
        self.samples.take_whole(snapshot.at, snapshot.readings)
        machine = Look(self.samples, snapshot, spec)
        found = [finding for fault in faults for finding in self._of(fault, machine)]
        return sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity))

    def _of(self, fault: Fault, machine: Look) -> list[Finding]:
        asks = asked_by(fault)
        if not asks:
            return list(fault.findings(machine))
        version = tuple(map(self.samples.version, asks))
        known = self._found.get(fault)
        if known is None or known[0] != version:
            known = self._found[fault] = version, list(fault.findings(machine))
        return known[1]


def findings(
    snapshot: Snapshot, spec: SystemSpec | None = None, thresholds: AlertThresholds = USUAL
) -> list[Finding]:
    """Every fault that a snapshot shows, the worst first; `spec` is the system's."""
    return Search().findings(snapshot, spec, thresholds)


@cache
def by_kind() -> Mapping[str, Fault]:
    return {fault.kind: fault for fault in declared(USUAL)}


def action(finding: Finding) -> str:
    """Return the first step, with the GPU, disk or process that its commands ask for."""
    fault = by_kind()[finding.kind]
    text = fault.do if isinstance(fault.do, str) else fault.do(finding)
    text = text.replace("/dev/DISK", f"/dev/{finding.device}")
    if "pid" in fault.names:
        text = text.replace("PID", finding.names[fault.names.index("pid")])
    return text.replace("-i GPU", f"-i {finding.gpu.index}") if finding.gpu else text
