"""The dashboards, their variables, and links that keep the time range and selection."""

from agent.model import Metric
from agent.sources import agent_health, gpu
from dashboards.board import Variable
from dashboards.promql import METRICS

BOARDS = {
    "fleet": (),
    "node": ("instance",),
    "gpu": ("instance", "gpu"),
    "agent": ("instance",),
}
"""Every dashboard, and the labels of a row that a link to the dashboard selects."""


def _values_of(label: str, metric: Metric, scope: str = "", every: str | None = "") -> Variable:
    """Return a variable for the values of a label, restricted by the preceding variables."""
    title = {"instance": "Node", "gpu": "GPU"}.get(label, label.capitalize())
    return Variable(label, title, f"label_values({metric}{scope}, {label})", every)


UP = METRICS["up"]
VARIABLES = {
    # jobs of agents: All selects every agent, but no other Prometheus targets
    "job": _values_of("job", agent_health.BUILD_INFO),
    # optional target labels: All also selects targets without this label
    "cluster": _values_of("cluster", UP, '{job=~"$job"}', ".*"),
    "rack": _values_of("rack", UP, '{job=~"$job", cluster=~"$cluster"}', ".*"),
    # includes nodes that do not respond, because every target has `up`
    "nodes": _values_of("instance", UP, '{job=~"$job", cluster=~"$cluster", rack=~"$rack"}'),
    # initially a single node
    "node": _values_of("instance", UP, '{job=~"$job", cluster=~"$cluster"}', None),
    "gpu": _values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}', ".+"),
}


def link_to(board: str) -> str:
    """Return the URL of a dashboard for a row's node (and GPU), with the same time range."""
    if board not in BOARDS:
        raise ValueError(f"{board} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in BOARDS[board])
    kept = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${cluster:queryparam}"
    return f"/d/dgx-{board}?{kept}{chosen}"
