"""Everything that this package generates, as texts by file name."""

from collections.abc import Iterable

from agent.config.settings import Settings
from agent.faults.findings import hardware, monitoring
from agent.faults.fleet import fleet
from agent.faults.fleet_records import fleet_records, node_records
from agent.faults.model import Fault, Group
from agent.faults.records import long_records, records, report_records
from agent.faults.thresholds import AlertPatches, AlertThresholds, RuleParameters
from agent.faults.workload import workload
from agent.specs.clusters import ClustersConfig
from alerts.receivers import Receivers
from alerts.routing import configuration
from alerts.rules import rule_file
from alerts.runbook import runbook, runbook_page

GROUPS = (
    *(records, long_records, report_records, fleet_records, node_records),
    *(hardware, workload, fleet, monitoring),
)


def parameters_of(settings: Settings, scale: float = 1.0) -> RuleParameters:
    return RuleParameters(settings[AlertThresholds], scale, settings[ClustersConfig].bisections)


def groups(settings: Settings, scale: float = 1.0) -> list[Group]:
    """Every group of rules, as `[alerts.NAME]` patches them; `scale` multiplies every range and
    `for`, and nothing else."""
    parameters, patches = parameters_of(settings, scale), settings[AlertPatches]
    return [patches.applied_to(group(parameters)) for group in GROUPS]


def alerts_of(groups: Iterable[Group]) -> list[Fault]:
    rules = (rule for group in groups for rule in group.rules)
    return [rule for rule in rules if isinstance(rule, Fault)]


def rules(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    parameters = parameters_of(settings, scale)
    every = groups(settings, scale)
    return {f"{group.name}.yaml": rule_file(group, parameters) for group in every if group.rules}


def alertmanager(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of the Alertmanager configuration; `scale` multiplies its times."""
    parameters, faults = parameters_of(settings, scale), alerts_of(groups(settings, scale))
    return {"alertmanager.yaml": configuration(settings[Receivers], parameters, faults)}


def files(settings: Settings) -> dict[str, str]:
    """Relative path to text of everything that `dgx-telemetry build` writes of this package."""
    book = runbook(parameters_of(settings), groups(settings))
    return {
        **{f"prometheus/{name}": text for name, text in rules(settings).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(settings).items()},
        "RUNBOOK.md": book,
        "runbook.html": runbook_page(book),
    }
