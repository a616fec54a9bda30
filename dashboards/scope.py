"""What boards share besides panels: their variables, and links that keep time and choice."""

from agent.model import Metric
from agent.polling.health import BUILD_INFO
from agent.sources import gpu
from dashboards.board import Board, Row, Variable
from dashboards.shares import alerts

TITLES = {
    "dgx-fleet": "DGX Fleet",
    "dgx-node": "DGX Node",
    "dgx-gpu": "DGX GPU",
    "dgx-links": "DGX Links",
    "dgx-input-pipeline": "DGX Input pipeline",
    "dgx-agent": "DGX Agent",
}
"""Every board: a link leads only to one of these."""


def values_of(label: str, metric: Metric, scope: str = "") -> Variable:
    """A variable over the values of a label, within the variables before it."""
    query = f"label_values({metric}{scope}, {label})"
    return Variable(label, label.capitalize() if label != "gpu" else "GPU", query)


def variables(metric: Metric) -> tuple[Variable, Variable]:
    return values_of("job", metric), values_of("instance", metric, '{job=~"$job"}')


GPUS = values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}')
OF_GPUS = (*variables(gpu.INFO), GPUS)
OF_AGENTS = variables(BUILD_INFO)
"""An agent is there also where there is no GPU, or no driver that answers."""


def board(uid: str, about: str, *rows: Row, choices: tuple[Variable, ...] = OF_GPUS) -> Board:
    return Board(TITLES[uid], uid, about, rows, choices, alerts())


def link_to(uid: str, *labels: str) -> str:
    """The address of a board for the node (and GPU) of a table's row, at the same time."""
    if uid not in TITLES:
        raise ValueError(f"{uid} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in labels)
    return f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}{chosen}"


TO_NODE = link_to("dgx-node", "instance")
TO_GPU = link_to("dgx-gpu", "instance", "gpu")
TO_LINKS = link_to("dgx-links", "instance")
