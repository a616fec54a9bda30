"""Faults as Prometheus rules."""

from typing import Any

import yaml

from agent.faults.model import Fault, Group
from agent.faults.monitoring import DOWN
from agent.faults.places import FLEET_BOARD
from agent.faults.promql import Recording
from agent.faults.records import once
from agent.faults.templates import described, sentence_of
from agent.faults.thresholds import RuleParameters, span
from agent.faults.values import seconds
from agent.sources.agent_health import LAST_TICK

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
