"""The names that users, boards and rules rely on: once released they do not change."""

import json

import pytest

from agent.catalogue import EXPORTED
from tests.support.repository import ROOT

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
