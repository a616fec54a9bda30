"""Everything that this room generates, as texts by file name."""

from agent.config.settings import Settings
from alerts.agent import monitoring
from alerts.hardware import hardware
from alerts.model import Group, rule_file
from alerts.receivers import Receivers
from alerts.records import long_records, records, report_records
from alerts.routing import configuration
from alerts.runbook import runbook
from alerts.runbook_page import runbook_page
from alerts.spans import Terms
from alerts.thresholds import AlertThresholds
from alerts.workload import workload

PARTS = (records, long_records, report_records, hardware, workload, monitoring)


def groups(settings: Settings, scale: float = 1.0) -> list[Group]:
    """Every group of rules; `scale` multiplies every range and `for`, and nothing else."""
    terms = Terms(settings[AlertThresholds], scale)
    return [part(terms) for part in PARTS]


def rules(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of every Prometheus rule file."""
    terms = Terms(settings[AlertThresholds], scale)
    return {f"{group.name}.yaml": rule_file(group, terms) for group in groups(settings, scale)}


def alertmanager(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of the Alertmanager configuration; `scale` multiplies its times."""
    terms = Terms(settings[AlertThresholds], scale)
    return {"alertmanager.yaml": configuration(settings[Receivers], terms)}


def files(settings: Settings) -> dict[str, str]:
    """Relative path to text of everything that `dgx-telemetry build` writes of this room."""
    book = runbook(Terms(settings[AlertThresholds]), groups(settings))
    return {
        **{f"prometheus/{name}": text for name, text in rules(settings).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(settings).items()},
        "RUNBOOK.md": book,
        "runbook.html": runbook_page(book),
    }
