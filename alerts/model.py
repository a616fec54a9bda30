"""What a rule is, and how it becomes a Prometheus rule: data over metrics of the catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from alerts.parameters import RuleParameters
from alerts.places import FLEET_BOARD, Place

SEVERITIES = ("critical", "warning", "info", "none")
"""For a person now; for somebody soon, for it costs work; good to know; for no person."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule; `summary` says what is wrong in a few words, after the name of the `place`
    (None: no place in particular), `hold` for how long `expr` must hold, as Prometheus writes it.

    Several rules may share a name: they are one alert to those who receive it.
    """

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    hold: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None

    def book(self, parameters: RuleParameters) -> str:
        """Where the runbook is; an alert of no node cannot lead to that of its agent."""
        book = parameters.thresholds.runbook
        of_node = self.place is not None and self.place.board != FLEET_BOARD
        return book if of_node or "{{" not in book else "RUNBOOK.md"

    def rule(self, parameters: RuleParameters) -> dict[str, Any]:
        """As Prometheus reads it."""
        grafana = parameters.thresholds.grafana.rstrip("/")
        hold = {} if self.hold == "0s" else {"for": parameters.over(self.hold)}
        where = f"{self.place.text}: " if self.place else ""
        board = {"dashboard": f"{grafana}{self.place.board}"} if self.place and grafana else {}
        return {
            "alert": self.name,
            "expr": self.expr,
            **hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": f"{where}{self.summary}",
                "description": self.description,
                "runbook_url": f"{self.book(parameters)}#{self.name.lower()}",
                **board,
            },
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule; `record` is named level:metric:operations."""

    record: str
    expr: str

    def rule(self, _: RuleParameters) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {"record": self.record, "expr": self.expr}

    def __str__(self) -> str:
        return self.record


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that the same people act on."""

    name: str
    rules: Sequence[Alert | Recording]
    every: str = ""  # between two evaluations; empty: as Prometheus is configured


def rule_file(group: Group, parameters: RuleParameters) -> str:
    """The text of a Prometheus rule file."""
    every = {"interval": parameters.over(group.every)} if group.every else {}
    rules = [rule.rule(parameters) for rule in group.rules]
    content = {"groups": [{"name": group.name, **every, "rules": rules}]}
    return yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
