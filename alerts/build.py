"""Everything that this room generates, as texts by file name."""

from agent.config import Config
from alerts.agent import monitoring
from alerts.hardware import hardware
from alerts.model import Group, rule_file
from alerts.records import records
from alerts.routing import configuration
from alerts.runbook import runbook
from alerts.spans import Terms
from alerts.workload import workload

PARTS = (records, hardware, workload, monitoring)


def groups(config: Config, scale: float = 1.0) -> list[Group]:
    """Every group of rules; `scale` multiplies every range and `for`, and nothing else."""
    terms = Terms(config.alerts, scale)
    return [part(terms) for part in PARTS]


def rules(config: Config, scale: float = 1.0) -> dict[str, str]:
    """File name to text of every Prometheus rule file."""
    terms = Terms(config.alerts, scale)
    return {f"{group.name}.yaml": rule_file(group, terms) for group in groups(config, scale)}


def alertmanager(config: Config, scale: float = 1.0) -> dict[str, str]:
    """File name to text of the Alertmanager configuration; `scale` multiplies its times."""
    terms = Terms(config.alerts, scale)
    return {"alertmanager.yaml": configuration(config.alertmanager, terms)}


def files(config: Config) -> dict[str, str]:
    """Relative path to text of everything that `dgx-telemetry build` writes of this room."""
    return {
        **{f"prometheus/{name}": text for name, text in rules(config).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(config).items()},
        "RUNBOOK.md": runbook(Terms(config.alerts), groups(config)),
    }
