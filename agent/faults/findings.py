"""Finds the faults of a machine, for `check` (and its exit status) and for the page."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.faults.declarations import declared
from agent.faults.model import Fault, Look, function
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.faults.windows import FaultSamples
from agent.model import Finding, Severity, Snapshot
from agent.specs.sheets import SystemSpec

WORST_FIRST = list(Severity)[::-1]
USUAL = AlertThresholds()


def by_kind(thresholds: AlertThresholds = USUAL) -> Mapping[str, Fault]:
    """Return all faults that have a finding, by kind, with the given thresholds."""
    return declared(RuleParameters(thresholds)).findings


@dataclass(slots=True, eq=False)
class Search:
    """Checks a machine for faults repeatedly. A condition is evaluated again only if a sample of
    its metrics has changed, or if a minute has passed for a condition with a window."""

    samples: FaultSamples = field(default_factory=FaultSamples)
    _thresholds: AlertThresholds | None = None

    def findings(
        self, snapshot: Snapshot, spec: SystemSpec | None, thresholds: AlertThresholds
    ) -> list[Finding]:
        """Return the findings for a snapshot, most serious first."""
        faults = by_kind(thresholds)
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self.samples.forget(answers=True)
            for fault in faults.values():
                self.samples.keep(fault.asks)
        self.samples.take_whole(snapshot.at, snapshot.readings)
        machine = Look(self.samples, snapshot, spec, faults)
        found = [finding for fault in faults.values() for finding in self._of(fault, machine)]
        self.samples.forget()
        return sorted(found, key=lambda finding: WORST_FIRST.index(finding.severity))

    def _of(self, fault: Fault, machine: Look) -> list[Finding]:
        found = self.samples.answer(fault, fault.asks, lambda: list(fault.findings(machine)))
        return list(fault.findings(machine)) if found and fault.ages else found


def findings(
    snapshot: Snapshot, spec: SystemSpec | None = None, thresholds: AlertThresholds = USUAL
) -> list[Finding]:
    """Return the findings for a snapshot, most serious first. `spec` is the system's data sheet."""
    return Search().findings(snapshot, spec, thresholds)


def action(finding: Finding) -> str:
    """Return the first step, and insert the name of the disk or the PID into its commands."""
    fault = by_kind()[finding.kind]
    assert fault.finding
    text = function(fault.finding.do)(finding) if fault.finding.do else fault.do
    text = text.replace("DEVICE", finding.device).replace("http://NODE", "")
    if "pid" in fault.names:
        text = text.replace("PID", finding.names[fault.names.index("pid")])
    return text


def of_gpus(text: str, gpus: Iterable[int]) -> str:
    """Return the text, and insert the given GPUs into its commands."""
    listed = ",".join(map(str, gpus))
    return text.replace("-i GPU", f"-i {listed}") if listed else text
