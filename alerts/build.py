"""Everything that this package generates, as texts by file name."""

from agent.config.settings import Settings
from agent.specs.clusters import ClustersConfig
from alerts.agent import monitoring
from alerts.fleet import fleet
from alerts.fleet_records import fleet_records, node_records
from alerts.hardware import hardware
from alerts.model import Group, rule_file
from alerts.parameters import RuleParameters
from alerts.receivers import Receivers
from alerts.records import long_records, records, report_records
from alerts.routing import configuration
from alerts.runbook import runbook
from alerts.runbook_page import runbook_page
from alerts.thresholds import AlertThresholds
from alerts.workload import workload

GROUPS = (
    *(records, long_records, report_records, fleet_records, node_records),
    *(hardware, workload, fleet, monitoring),
)


def parameters_of(settings: Settings, scale: float = 1.0) -> RuleParameters:
    """What the rules of this configuration depend on."""
    return RuleParameters(settings[AlertThresholds], scale, settings[ClustersConfig].bisections)


def groups(settings: Settings, scale: float = 1.0) -> list[Group]:
    """Every group of rules; `scale` multiplies every range and `for`, and nothing else."""
    parameters = parameters_of(settings, scale)
    return [group(parameters) for group in GROUPS]


def rules(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of every Prometheus rule file."""
    parameters = parameters_of(settings, scale)
    return {f"{group.name}.yaml": rule_file(group, parameters) for group in groups(settings, scale)}


def alertmanager(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of the Alertmanager configuration; `scale` multiplies its times."""
    parameters = parameters_of(settings, scale)
    return {"alertmanager.yaml": configuration(settings[Receivers], parameters)}


def files(settings: Settings) -> dict[str, str]:
    """Relative path to text of everything that `dgx-telemetry build` writes of this package."""
    book = runbook(parameters_of(settings), groups(settings))
    return {
        **{f"prometheus/{name}": text for name, text in rules(settings).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(settings).items()},
        "RUNBOOK.md": book,
        "runbook.html": runbook_page(book),
    }
