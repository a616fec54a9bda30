"""Generated files that are committed equal the output of `build`."""

from functools import cache

import pytest

from agent.cli.build import generated
from agent.config.settings import Settings
from tests.conftest import Committed
from tests.support.repository import ROOT

BOARDS = ("dgx-fleet", "dgx-node", "dgx-gpu", "dgx-agent")
RULES = (
    *("dgx-gpus", "dgx-xids", "dgx-xids-lesser", "dgx-links", "dgx-host", "dgx-slow"),
    *("dgx-lost-time", "dgx-lost-hours", "dgx-jobs", "dgx-paths"),
    *("dgx-fleet", "dgx-racks", "dgx-agent", "dgx-report", "dgx-fleet-records"),
)
COMMITTED = {
    "METRICS.md": "exporters/METRICS.md",
    "RUNBOOK.md": "alerts/RUNBOOK.md",
    "status.schema.json": "exporters/status.schema.json",
    "runbook.html": "exporters/live/static/runbook.html",
    "alertmanager/alertmanager.yaml": "deploy/alertmanager/alertmanager.yaml",
    **{f"prometheus/{r}.yaml": f"deploy/prometheus/{r}.yaml" for r in RULES},
    **{f"grafana/dashboards/{b}.json": f"deploy/grafana/dashboards/{b}.json" for b in BOARDS},
}
"""Path in the repository of each generated file for users."""


@cache
def built() -> dict[str, str]:
    return generated(Settings())


def test_everything_generated_is_committed() -> None:
    assert set(built()) == set(COMMITTED)


@pytest.mark.parametrize("name", COMMITTED)
def test_is_fresh(name: str, committed: Committed) -> None:
    committed(ROOT / COMMITTED[name], built()[name])
