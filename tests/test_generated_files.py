"""Generated files that are committed equal the output of `build`; names once released stay."""

import json
import sys
import tomllib
from functools import cache

import pytest

from agent.catalogue import EXPORTED
from agent.cli.build import generated
from agent.config.settings import Settings
from tests.conftest import Committed
from tests.support.repository import ROOT

BOARDS = ("dgx-fleet", "dgx-node", "dgx-gpu", "dgx-agent")
GROUPS = tomllib.loads((ROOT / "agent/faults/subjects/groups.toml").read_text(encoding="utf-8"))
RULES = [group["name"] for group in GROUPS["group"]]
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


CONTRACT = ROOT / "tests/golden/contract.txt"
"""Each metric that leaves the agent, with its labels. `tests/update` adds the new ones."""


def test_every_metric_that_leaves_the_agent_keeps_its_name_and_labels(
    request: pytest.FixtureRequest,
) -> None:
    known = set(CONTRACT.read_text().splitlines())
    now = {" ".join((metric.name, *metric.labels)) for metric in EXPORTED}
    if request.config.getoption("--update-golden"):
        known |= now
        CONTRACT.write_text("".join(f"{line}\n" for line in sorted(known)))
    assert not now - known, f"{now - known} is new: tests/update adds it"
    assert not known - now, f"{known - now} was released: delete its line only with its metric"


STATUS = ["at", "headline", "groups", "findings", "paths", "jobs", "links", "absences", "events"]


def test_the_status_keeps_its_keys() -> None:
    schema = json.loads((ROOT / "exporters/status.schema.json").read_text())
    assert set(STATUS) <= set(schema["$defs"]["Status"]["required"])
