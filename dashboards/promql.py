"""Translates the PromQL of dashboard files: restricts metrics by the variables of the dashboard,
and replaces the names that the dashboard defines with their expressions.

For example, the dashboard files contain `sum by (gpu) (dgx_gpu_processes)`; in Grafana's
expression, the metric has the selector `{job=~"$job",instance=~"$instance",gpu=~"$gpu"}`.
"""

import re
from collections.abc import Mapping

from msgspec import convert

from agent.catalogue import EXPORTED
from agent.faults.declarations import declared
from agent.faults.records import BUSY_DISK
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.metrics import Declaration, Declarations
from agent.model import WHAT_LOST, Metric
from dashboards.board import LOOKS

RECORDED = [
    Metric(rule.record, "Of recording rules.", "recording rules", tuple(rule.labels))
    for group in declared(RuleParameters(AlertThresholds())).groups
    for rule in group.records
    if rule.labels
]
FOREIGN = Declarations(convert(LOOKS["foreign"], dict[str, Declaration])).values()  # of others
METRICS = {metric.name: metric for metric in (*EXPORTED, *RECORDED, *FOREIGN)}

Definitions = Mapping[str, str]
GIVEN: Definitions = {"LOSING": f'state=~"{WHAT_LOST}"', "BUSY_DISK": f"{BUSY_DISK:g}"}
"""Definitions for all dashboards: states whose time is lost, and the threshold for busy disks."""

PLACES_OF_NODES = 'cluster=~"$cluster|",instance=~"$instance"'
PLACES_OF_FLEET = 'cluster=~"$cluster|",rack=~"$rack|",instance=~"$instance|"'
"""Matchers for alerts. They also match alerts for racks and clusters, which lack an instance."""

OF_GPU = {"nvlink", "pcie", "hbm"}
"""Kinds of data paths of GPUs. All other paths have an empty `gpu` label."""

TOKEN = re.compile(r'"[^"]*"|(?<![$\w])([A-Za-z_:][\w:]*)(?:\{([^}]*)\})?')
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)("[^"]*")|(\w+)')


def scoped(expr: str, definitions: Definitions = GIVEN, places: str = PLACES_OF_NODES) -> str:
    """Return PromQL for Grafana. Raise ValueError for an unknown metric, name, or label."""

    def replaced(found: re.Match[str]) -> str:
        name, given = found[1], found[2] or ""
        if name in definitions:
            meant = definitions[name]
            if given and "{*}" not in meant:
                raise ValueError(f"{name} takes no matchers")
            return scoped(meant.replace("{*}", f"{{{given}}}"), definitions, places)
        if name in METRICS:
            return _selector(METRICS[name], _matchers(given, definitions), places)
        if name and re.match(r"dgx_|.*:|[A-Z_]{2}", name):
            raise ValueError(f"{name} is no metric, no record and no definition")
        return found[0]

    return TOKEN.sub(replaced, expr)


def _matchers(given: str, definitions: Definitions) -> dict[str, tuple[str, str]]:
    """Return the operator and the quoted value of each label matcher, with definitions replaced."""
    found: dict[str, tuple[str, str]] = {}
    for label, operator, value, name in MATCHER.findall(given):
        found |= _matchers(definitions[name], {}) if name else {label: (operator, value)}
    return found


def _selector(metric: Metric, matchers: Mapping[str, tuple[str, str]], places: str) -> str:
    for label in matchers:
        if label not in metric.labels:
            raise ValueError(f"{metric} has no label {label}")
    own = [f"{label}{operator}{value}" for label, (operator, value) in matchers.items()]
    if metric.name.startswith("ALERTS"):  # only the agent's alerts, without the watchdog
        ours = ['alertname=~"Dgx.+"', 'alertname!="DgxWatchdog"']
        if "alertstate" in metric.labels:
            ours.insert(0, 'alertstate="firing"')
        scope = [*ours, *own, 'job=~"$job|"', places]
    else:
        agents = 'job=~"$job",cluster=~"$cluster",instance=~"$instance"'
        scope = [agents, *_of_gpus(metric, matchers), *own]
    return f"{metric.name}{{{','.join(scope)}}}"


def _of_gpus(metric: Metric, matchers: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return label matchers for the selected GPUs. If the metric also has series for data paths of
    the host, the matchers also match these series."""
    if "gpu" not in metric.labels:
        return []
    operator, path = matchers.get("path", ("=~", ""))
    if "path" not in metric.labels or path.strip('"') in OF_GPU:
        return ['gpu=~"$gpu"']
    return ['gpu=~"$gpu|"'] if operator == "=~" else []


def aggregated(operator: str, expr: str, by: tuple[str, ...]) -> str:
    return f"{operator} by ({', '.join(by)}) ({expr})"
