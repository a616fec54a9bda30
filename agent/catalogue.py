"""All metrics by name. Each metric is declared once, next to the code that reads it."""

from collections.abc import Mapping

from agent.diagnosis import accounting, gpu_shares, job_watch, pulses
from agent.limits import paths
from agent.model import Kind, Metric
from agent.sources import agent_health
from agent.sources.table import SOURCES, declared

OTHERS = paths, pulses, accounting, gpu_shares, job_watch, agent_health
DECLARED = tuple(declared((*SOURCES, *OTHERS)))
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in DECLARED}
EXPORTED = tuple(metric for metric in METRICS.values() if metric.kind is not Kind.INTERNAL)
