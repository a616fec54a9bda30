"""All metrics, by name. Each metric is declared once, next to the code that reads it."""

import re
from collections.abc import Iterable, Mapping

from agent.diagnosis import accounting, gpu_shares, job_watch, pulses
from agent.limits import paths
from agent.model import Kind, Metric
from agent.sources import agent_health
from agent.sources.table import SOURCES, declared

NAME = re.compile(r"dgx_[a-z0-9]+(_[a-z0-9]+)+")


class CatalogueError(ValueError):
    """Raised on import for a metric declaration that violates the naming rules."""


def catalogue(metrics: Iterable[Metric]) -> Mapping[str, Metric]:
    """Return the metrics by name. Raise CatalogueError for duplicate or invalid names."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if found.setdefault(metric.name, metric) is not metric:
            raise CatalogueError(f"{metric.name} is declared twice")
        if not NAME.fullmatch(metric.name):
            raise CatalogueError(f"{metric.name} is not a name of the form dgx_subsystem_what_unit")
        if (metric.kind is Kind.COUNTER) != metric.name.endswith("_total"):
            raise CatalogueError(f"{metric.name}: counters, and only they, end in _total")
    return found


OTHERS = (paths, pulses, accounting, gpu_shares, job_watch, agent_health)
METRICS = catalogue(declared((*SOURCES, *OTHERS)))
EXPORTED = tuple(metric for metric in METRICS.values() if metric.kind is not Kind.INTERNAL)
