"""Everything that this package generates, as texts by file name."""

from collections.abc import Iterable
from typing import Any

import yaml

from agent.config.settings import Settings
from agent.faults.findings import hardware, monitoring
from agent.faults.fleet import fleet
from agent.faults.model import Fault, Group
from agent.faults.monitoring import DOWN
from agent.faults.places import FLEET_BOARD
from agent.faults.promql import Recording, seconds
from agent.faults.records import fleet_records, long_records, once, records, report_records
from agent.faults.templates import described, sentence_of
from agent.faults.thresholds import AlertPatches, AlertThresholds, RuleParameters, span
from agent.faults.workload import workload
from agent.sources.agent_health import LAST_TICK
from alerts.receivers import Receivers
from alerts.routing import configuration
from alerts.runbook import runbook, runbook_page

AT_ONCE = 60.0
"""Seconds for which failed scrapes are bridged where an alert is sent at once; else it is half of
its `for`, so that what was so at one scrape alone never lasts as long as that."""

OWN = "{{$labels.instance}}/"
WITH_PORT = '{{$labels.instance}}{{if not (match ":" $labels.instance)}}:9935{{end}}/'
"""Instance with the agent's usual port, where it is named by its node alone."""

ANSWERS = f'{{{{with query "topk(1, {LAST_TICK})"}}}}{{{{with label "instance" (first .)}}}}'
"""An agent that answers, where there is one: that of the alert does not, or there is none."""


def rule_file(group: Group, parameters: RuleParameters) -> str:
    every = {"interval": parameters.over(group.every)} if group.every else {}
    rules = [
        {"record": str(rule), "expr": rule.expr}
        if isinstance(rule, Recording)
        else alert_rule(rule, parameters)
        for rule in group.rules
    ]
    content = {"groups": [{"name": group.name, **every, "rules": rules}]}
    return yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)


def alert_rule(fault: Fault, parameters: RuleParameters) -> dict[str, Any]:
    """One alerting rule."""
    place, thresholds = fault.place, parameters.thresholds
    grafana, book = thresholds.grafana.rstrip("/"), thresholds.runbook
    bridged = seconds(fault.hold) / 2 or AT_ONCE
    of_node = place is not None and place.board != FLEET_BOARD
    if OWN in book and (not of_node or fault.alert == DOWN):
        there = book.replace(OWN, WITH_PORT).replace("$labels.instance", ".")
        book = f"{ANSWERS}{there}{{{{end}}}}{{{{else}}}}RUNBOOK.md{{{{end}}}}"
    book = book.replace(OWN, WITH_PORT)
    where = f"{place.text}: " if place else ""
    board = {"dashboard": f"{grafana}{place.board}"} if place and grafana else {}
    expr = fault.bridged(span(bridged * parameters.scale))
    return {
        "alert": fault.alert,
        "expr": once(expr) if place else expr,
        **({} if fault.hold == "0s" else {"for": parameters.over(fault.hold)}),
        "labels": {"severity": str(fault.severity), **fault.labels},
        "annotations": {
            "summary": f"{where}{fault.summary or sentence_of(fault)}",
            "description": described(fault),
            "runbook_url": f"{book}#{fault.alert.lower()}",
            **board,
        },
    }


GROUPS = (
    *(records, long_records, report_records, fleet_records),
    *(hardware, workload, fleet, monitoring),
)


def groups(settings: Settings, scale: float = 1.0) -> list[Group]:
    """Every group of rules, as `[alerts.NAME]` patches them; `scale` multiplies every range and
    `for`, and nothing else."""
    parameters = RuleParameters(settings[AlertThresholds], scale)
    return [settings[AlertPatches].applied_to(group(parameters)) for group in GROUPS]


def alerts_of(groups: Iterable[Group]) -> list[Fault]:
    rules = (rule for group in groups for rule in group.rules)
    return [rule for rule in rules if isinstance(rule, Fault)]


def rules(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    parameters = RuleParameters(settings[AlertThresholds], scale)
    every = groups(settings, scale)
    return {f"{group.name}.yaml": rule_file(group, parameters) for group in every if group.rules}


def alertmanager(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """File name to text of the Alertmanager configuration; `scale` multiplies its times."""
    parameters = RuleParameters(settings[AlertThresholds], scale)
    faults = alerts_of(groups(settings, scale))
    return {"alertmanager.yaml": configuration(settings[Receivers], parameters, faults)}


def files(settings: Settings) -> dict[str, str]:
    """Relative path to text of everything that `dgx-telemetry build` writes of this package."""
    book = runbook(RuleParameters(settings[AlertThresholds]), groups(settings))
    return {
        **{f"prometheus/{name}": text for name, text in rules(settings).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(settings).items()},
        "RUNBOOK.md": book,
        "runbook.html": runbook_page(book),
    }
