"""All boards as files."""

from dashboards.agent import agent_board
from dashboards.fleet import fleet_board
from dashboards.gpu import gpu_board
from dashboards.input_pipeline import input_pipeline_board
from dashboards.links import links_board
from dashboards.node import node_board
from dashboards.panels import text_of

WITH_ALERTS = (fleet_board, node_board, gpu_board, links_board)
OTHERS = (input_pipeline_board, agent_board)


def files(runbook: str = "") -> dict[str, str]:
    """Relative path to text of everything that this package generates; `runbook` is its address."""
    boards = [*(build(runbook) for build in WITH_ALERTS), *(build() for build in OTHERS)]
    return {f"grafana/dashboards/{board.uid}.json": text_of(board) for board in boards}
