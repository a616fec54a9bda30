"""What an alert is, and how it becomes a Prometheus rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert; `expr` is PromQL over metrics of the catalogue, `hold` a Prometheus duration."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str
    description: str

    def rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Alerts that the same people act on."""

    name: str
    alerts: Sequence[Alert]


def rule_file(groups: Sequence[Group]) -> str:
    """The text of a Prometheus rule file."""
    content = {"groups": [{"name": g.name, "rules": [a.rule() for a in g.alerts]} for g in groups]}
    return yaml.safe_dump(content, sort_keys=False, width=100)
