"""Faults as Prometheus rules."""

from typing import Any

import yaml

from agent.faults.model import Fault, Group
from agent.faults.parameters import RuleParameters, span
from agent.faults.places import FLEET_BOARD
from agent.faults.promql import Recording
from agent.faults.templates import described, sentence_of
from agent.faults.values import seconds

AT_ONCE = 60.0
"""Seconds for which failed scrapes are bridged where an alert is sent at once; else it is half of
its `for`, so that what was so at one scrape alone never lasts as long as that."""


def rule_file(group: Group, parameters: RuleParameters) -> str:
    """The text of a Prometheus rule file."""
    every = {"interval": parameters.over(group.every)} if group.every else {}
    rules = [
        {"record": rule.record, "expr": rule.expr}
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
    if "{{" in book and not of_node:  # an alert of no node cannot lead to that of its agent
        book = "RUNBOOK.md"
    where = f"{place.text}: " if place else ""
    board = {"dashboard": f"{grafana}{place.board}"} if place and grafana else {}
    return {
        "alert": fault.alert,
        "expr": fault.bridged(span(bridged * parameters.scale)),
        **({} if fault.hold == "0s" else {"for": parameters.over(fault.hold)}),
        "labels": {"severity": str(fault.severity), **fault.labels},
        "annotations": {
            "summary": f"{where}{fault.summary or sentence_of(fault)}",
            "description": described(fault),
            "runbook_url": f"{book}#{fault.alert.lower()}",
            **board,
        },
    }
