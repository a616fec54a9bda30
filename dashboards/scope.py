"""Parts that boards share besides panels: their variables, and links that keep time and choice."""

from agent.model import Metric
from agent.sources import gpu
from agent.sources.agent_health import BUILD_INFO
from dashboards.board import Board, Row, Variable
from dashboards.queries import UP
from dashboards.shares import PLACES_OF_FLEET, PLACES_OF_NODES, alerts

TITLES = {
    "dgx-fleet": "DGX Fleet",
    "dgx-node": "DGX Node",
    "dgx-gpu": "DGX GPU",
    "dgx-links": "DGX Links",
    "dgx-input-pipeline": "DGX Input pipeline",
    "dgx-agent": "DGX Agent",
}
"""Every board: a link leads only to one of these."""


LABELS = {"instance": "Node", "gpu": "GPU"}


def values_of(label: str, metric: Metric, scope: str = "", every: str | None = "") -> Variable:
    """A variable over the values of a label, within the variables before it."""
    query = f"label_values({metric}{scope}, {label})"
    return Variable(label, LABELS.get(label, label.capitalize()), query, every)


JOB = values_of("job", BUILD_INFO)
"""Jobs of agents: All is each of them, and no other target of Prometheus."""

PLACES = (
    values_of("cluster", UP, '{job=~"$job"}', ".*"),
    values_of("rack", UP, '{job=~"$job", cluster=~"$cluster"}', ".*"),
)
"""Labels that targets may have. All of them is also a target without: such a label is empty."""

NODES = values_of("instance", UP, '{job=~"$job", cluster=~"$cluster", rack=~"$rack"}')
"""Also nodes that do not answer: Prometheus has `up` of each that it scrapes."""

NODE = values_of("instance", UP, '{job=~"$job"}', None)
GPUS = values_of("gpu", gpu.INFO, '{job=~"$job", instance=~"$instance"}', ".+")
OF_NODE = (JOB, NODE, GPUS)
"""A board of a node begins with one; more can be chosen."""

OF_FLEET = (JOB, *PLACES, NODES, GPUS)
OF_AGENTS = (JOB, *PLACES, NODES)
"""An agent is there also where there is no GPU, or no driver that answers."""


def board(uid: str, about: str, *rows: Row, choices: tuple[Variable, ...] = OF_NODE) -> Board:
    places = PLACES_OF_FLEET if choices is OF_FLEET else PLACES_OF_NODES
    return Board(TITLES[uid], uid, about, rows, choices, alerts(places=places))


def link_to(uid: str, *labels: str) -> str:
    """The address of a board for the node (and GPU) of a table's row, at the same time."""
    if uid not in TITLES:
        raise ValueError(f"{uid} is no board of ours")
    chosen = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in labels)
    return f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{job:queryparam}}{chosen}"


TO_NODE = link_to("dgx-node", "instance")
TO_GPU = link_to("dgx-gpu", "instance", "gpu")
TO_LINKS = link_to("dgx-links", "instance")
