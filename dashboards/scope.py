"""The boards, their variables, and links between them that keep time and choice."""

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
"""Every board, with the labels of a row that a link to it selects."""


def _values_of(label: str, metric: Metric, scope: str = "", every: str | None = "") -> Variable:
    """A variable over the values of a label, within the variables before it."""
    title = {"instance": "Node", "gpu": "GPU"}.get(label, label.capitalize())
    return Variable(label, title, f"label_values({metric}{scope}, {label})", every)


UP = METRICS["up"]
VARIABLES = {
    # jobs of agents: All selects each of them, and no other target of Prometheus
    "job": _values_of("job", agent_health.BUILD_INFO),
    # labels that targets may have: All of them selects targets without such a label too
    "cluster": _values_of("cluster", UP, '{job=~"$job"}', ".*"),
    "rack": _values_of("rack", UP, '{job=~"$job", cluster=~"$cluster"}', ".*"),
    # nodes that do not answer are included: Prometheus has `up` of each that it scrapes
    "nodes": _values_of("instance", UP, '{job=~"$job", cluster=~"$cluster", rack=~"$rack"}'),
    "node": _values_of("instance", UP, '{job=~"$job"}', None),  # begins with one
    "gpu": _values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}', ".+"),
}


def link_to(board: str) -> str:
    """Return the address of a board for the node (and GPU) of a row, at the same time."""
    if board not in BOARDS:
        raise ValueError(f"{board} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in BOARDS[board])
    kept = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}"
    return f"/d/dgx-{board}?{kept}{chosen}"
