"""What a rule is, and how it becomes a Prometheus rule: data over metrics of the catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from alerts.spans import Terms

SEVERITIES = ("critical", "warning", "info", "none")
"""For a person now; for somebody soon, for it costs work; good to know; for no person."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule; `hold` is for how long `expr` must hold, as Prometheus writes it.

    Several rules may share a name: they are one alert to those who receive it.
    """

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    hold: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)

    def rule(self, terms: Terms) -> dict[str, Any]:
        """As Prometheus reads it."""
        hold = {} if self.hold == "0s" else {"for": terms.over(self.hold)}
        return {
            "alert": self.name,
            "expr": self.expr,
            **hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{terms.thresholds.runbook}#{self.name.lower()}",
            },
        }


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule; `record` is named level:metric:operations."""

    record: str
    expr: str

    def rule(self, _: Terms) -> dict[str, Any]:
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


def rule_file(group: Group, terms: Terms) -> str:
    """The text of a Prometheus rule file."""
    every = {"interval": terms.over(group.every)} if group.every else {}
    rules = [rule.rule(terms) for rule in group.rules]
    content = {"groups": [{"name": group.name, **every, "rules": rules}]}
    return yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
