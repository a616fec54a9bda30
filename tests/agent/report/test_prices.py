"""Money in reports of nodes with several prices, from a real Prometheus."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.parser import run_command
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.prometheus

SECONDS = "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m"
WEST, EAST, FREE = (
    f'instance="{node}",cluster="{cluster}",job="dgx-telemetry"'
    for node, cluster in (("n1", "west"), ("n1", "east"), ("n2", "west"))
)
PRICES = ((WEST, 4, 1200), (f'{WEST},rack="r1"', 2, 600), (EAST, 3, 600))
"""With their age (s): the last node has none. The first has a rack since its price fell, and the
higher one counts."""
PARTS = "cost", "cost_lost", "unpriced_gpu_hours"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that has seen an hour of each node."""
    now, lines = time.time(), [f"# TYPE {SECONDS} gauge"]
    for labels in (
        f'{WEST},user="ada",state="busy",cause="none"',
        f'{EAST},user="eve",state="starved",cause="disk"',
        f'{FREE},user="ada",state="starved",cause="disk"',
    ):
        named = f'{SECONDS}{{{labels},job_id="1"}}'
        lines += [f"{named} 300 {now - age:.0f}" for age in range(3600, 0, -300)]
    lines.append("# TYPE dgx_cost_gpu_hour gauge")
    lines += [f"dgx_cost_gpu_hour{{{node}}} {each} {now - age:.0f}" for node, each, age in PRICES]
    (tmp_path / "samples").write_text("\n".join([*lines, "# EOF\n"]))
    database = Prometheus(tmp_path / "prometheus", {}, [])
    database.backfill(tmp_path / "samples")
    with database:
        yield database.address


@pytest.mark.parametrize(
    ("by", "expected", "line"),
    [
        (
            "node",
            {"n1west": [4, 0, 0], "n1east": [3, 3, 0], "n2west": [None, None, 1]},
            "n2 west 50 % 1.00 0 % 1.00 100 % 0.00 - starved by disk",
        ),
        (
            "user",
            {"ada": [4, 0, 1], "eve": [3, 3, 0]},
            "ada 2.00 2.00 50 % 1.00 50 % 0.00 >= 0.00 starved by disk",
        ),
    ],
)
def test_each_node_costs_its_own_price(
    by: str, expected: Any, line: str, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["report", "--prometheus", address, "--since", "2h", "--by", by]
    assert run_command([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {row["name"] + row.get("cluster", ""): [row[part] for part in PARTS] for row in rows}
    assert found == expected
    assert run_command(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    cost = "3.00 to 4.00 per GPU-hour; 1.00 GPU-hours on nodes without a price"
    assert f"Cost >= 7.00 ({cost}), of which lost >= 3.00." in text
    assert "Lost: 2.00 GPU-hours (>= 3.00), 67 % of all: starved by disk 2.00 (>= 3.00)." in text
    assert line in text
