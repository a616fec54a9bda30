"""Durations as Prometheus writes them, and the parameters of one set of rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.faults.thresholds import AlertThresholds
from agent.faults.values import UNITS, seconds


def span(length: float) -> str:
    """So many seconds, to the millisecond, in the largest unit that says it in whole numbers."""
    milliseconds = max(1, round(length * 1000))
    for unit in ("d", "h", "m", "s"):
        size = round(UNITS[unit] * 1000)
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


@dataclass(frozen=True, slots=True)
class RuleParameters:
    """Thresholds, and the factor by which every range and `for` is multiplied: 1 for users, less
    where a stack is tested on a faster clock. `bisections` are bytes per second by cluster."""

    thresholds: AlertThresholds
    scale: float = 1.0
    bisections: Mapping[str, float] = field(default_factory=dict)

    def over(self, text: str) -> str:
        return text if self.scale == 1.0 else span(seconds(text) * self.scale)
