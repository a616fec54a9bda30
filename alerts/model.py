"""What a rule is, and how it becomes a Prometheus rule: data over metrics of the catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from alerts.spans import Terms

SEVERITIES = ("critical", "warning", "info", "none")
"""For a person now; for somebody soon, for it costs work; good to know; for no person."""


ON = "{{ $labels.instance }}"
GPU = f"GPU {{{{ $labels.gpu }}}} of {ON}"
PLACES = (
    ("link", f"NVLink {{{{ $labels.link }}}} of {GPU}"),
    ("path", f"{{{{ $labels.path }}}} {{{{ $labels.device }}}} of {ON}"),
    ("gpu", GPU),
    ("port", f"{{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {ON}"),
    ("device", f"{{{{ $labels.device }}}} of {ON}"),
    ("switch", f"{{{{ $labels.switch }}}} of {ON}"),
    ("sensor", f"{{{{ $labels.sensor }}}} of {ON}"),
    ("instance", ON),
    ("rack", "Rack {{ $labels.rack }}"),
)
"""What an alert is about, by the label that its description names: the narrowest first."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule; `summary` says what is wrong in a few words, `hold` for how long `expr`
    must hold, as Prometheus writes it.

    Several rules may share a name: they are one alert to those who receive it.
    """

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    hold: str = "0s"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """What the summary begins with: the first of PLACES that the description names."""
        text = self.description
        return next((f"{place}: " for label, place in PLACES if f"$labels.{label} " in text), "")

    @property
    def dashboard(self) -> str:
        """The board of what it is about, below the address of Grafana."""
        if "$labels.gpu " in self.description:
            return f"/d/dgx-gpu?var-instance={ON}&var-gpu={{{{ $labels.gpu }}}}"
        if "$labels.instance " in self.description:
            return f"/d/dgx-node?var-instance={ON}"
        return "/d/dgx-fleet?var-rack={{ $labels.rack }}"

    def book(self, terms: Terms) -> str:
        """Where the runbook is; an alert of no node cannot lead to that of its agent."""
        place = terms.thresholds.runbook
        return place if ON in self.where or "{{" not in place else "RUNBOOK.md"

    def rule(self, terms: Terms) -> dict[str, Any]:
        """As Prometheus reads it."""
        grafana = terms.thresholds.grafana.rstrip("/")
        hold = {} if self.hold == "0s" else {"for": terms.over(self.hold)}
        return {
            "alert": self.name,
            "expr": self.expr,
            **hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": f"{self.where}{self.summary}",
                "description": self.description,
                "runbook_url": f"{self.book(terms)}#{self.name.lower()}",
                **({"dashboard": f"{grafana}{self.dashboard}"} if self.where and grafana else {}),
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
