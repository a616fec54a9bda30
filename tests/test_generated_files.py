"""Generated files that are committed equal the output of `build`."""

import sys
from functools import cache

import pytest

from agent.cli.build import generated
from agent.config.settings import Settings
from tests.conftest import Committed
from tests.support.repository import ROOT

BOARDS = ("dgx-fleet", "dgx-node", "dgx-gpu", "dgx-agent")
RULES = (
    *("dgx-gpus", "dgx-memory", "dgx-xids", "dgx-xids-lesser", "dgx-links", "dgx-host", "dgx-slow"),
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


def test_without_the_library_of_boards_all_else_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a node that was installed from a package."""
    monkeypatch.setitem(sys.modules, "dashboards.build", None)
    found = generated(Settings())
    assert found == {name: built()[name] for name in COMMITTED if not name.startswith("grafana/")}
    assert capsys.readouterr().err.startswith("no boards: dashboards.build is not here")


@pytest.mark.parametrize("name", COMMITTED)
def test_is_fresh(name: str, committed: Committed) -> None:
    committed(ROOT / COMMITTED[name], built()[name])
