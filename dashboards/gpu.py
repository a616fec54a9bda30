"""The GPU board: what does each GPU do?"""

from agent.sources import activity, power
from dashboards.panels import board, position, time_series

LEGEND = "{{instance}} GPU {{gpu}}"


def gpu_board() -> str:
    """The board as JSON."""
    panels = [
        time_series(metric, str(metric), LEGEND, position(0, column))
        for column, metric in enumerate((activity.ACTIVITY, power.POWER))
    ]
    return board("DGX GPU", "dgx-gpu", panels)
