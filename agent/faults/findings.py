"""Finds the faults of a machine, for `check` and for the page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.faults.declarations import declared
from agent.faults.model import Fault, Finding, Look, function
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.windows import FaultSamples
from agent.model import Severity, Snapshot
from agent.specs.sheets import SystemSpec

WORST_FIRST = list(Severity)[::-1]
USUAL = AlertThresholds()


def by_kind(thresholds: AlertThresholds) -> Mapping[str, Fault]:
    """Return the declarations of all faults with a finding, by kind, with the given thresholds."""
    return declared(RuleParameters(thresholds)).findings


@dataclass(slots=True, eq=False)
class Search:
    """Checks a machine for faults repeatedly. Between checks, it keeps sums over time windows."""

    samples: FaultSamples = field(default_factory=FaultSamples)
    _thresholds: AlertThresholds | None = None

    def findings(
        self,
        snapshot: Snapshot,
        spec: SystemSpec | None = None,
        thresholds: AlertThresholds = USUAL,
    ) -> list[Finding]:
        """Return the findings in a snapshot, most serious first. `spec` is the spec sheet."""
        faults = by_kind(thresholds)
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self.samples.derived.known.clear()
            for fault in faults.values():
                self.samples.keep(fault.condition.asks if fault.condition else ())
        self.samples.take_whole(snapshot.at, snapshot.readings)
        machine = Look(self.samples, snapshot, spec, faults)
        found = [finding for fault in faults.values() for finding in fault.findings(machine)]
        return sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity))


def action(finding: Finding) -> str:
    """Return the first step for a finding. Its commands contain the finding's disk name or PID."""
    fault = finding.fault
    assert fault.finding
    text = function(fault.finding.do)(finding) if fault.finding.do else fault.do
    text = text.replace("DEVICE", finding.device).replace("http://NODE", "")
    if "pid" in fault.names:
        text = text.replace("PID", finding.names[fault.names.index("pid")])
    return text


def of_gpus(text: str, gpus: Iterable[int]) -> str:
    """Return `text` with `-i GPU` in its commands replaced with `-i` and the given GPU indices."""
    listed = ",".join(map(str, gpus))
    return text.replace("-i GPU", f"-i {listed}") if listed else text
