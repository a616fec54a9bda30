"""All boards as files."""

from dashboards.gpu import gpu_board


def files() -> dict[str, str]:
    """Relative path to text of everything that this room generates."""
    return {"grafana/dashboards/dgx-gpu.json": gpu_board()}
