"""What is generated and committed is what `build` writes now."""

from pathlib import Path

import pytest

from agent.commands.build import generated

ROOT = Path(__file__).parents[1]
COMMITTED = {
    "METRICS.md": "exporters/METRICS.md",
    "prometheus/alerts.yaml": "deploy/prometheus/alerts.yaml",
    "grafana/dashboards/dgx-gpu.json": "deploy/grafana/dashboards/dgx-gpu.json",
}
"""Where users find each generated file in the repository."""


def test_everything_generated_is_committed() -> None:
    assert set(generated()) == set(COMMITTED)


@pytest.mark.parametrize("name", COMMITTED)
def test_is_fresh(name: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / COMMITTED[name]
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated()[name])
    assert path.read_text() == generated()[name]
