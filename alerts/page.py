"""A page of the runbook: what it says of one alert beyond its rules."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """One section: `confirm` are commands, or expressions for Prometheus, with what they show."""

    alert: str
    meaning: str
    confirm: tuple[str, ...]
    act: tuple[str, ...]
    ignore: str
    table: tuple[str, ...] = ()  # lines of a table, at its end
