"""The recipe of DCGM.md in a real Prometheus, in both directions: names go on, none is doubled."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack.running import eventually
from tests.support.board_data import agents
from tests.support.dcgm_exporter import answering
from tests.support.prometheus import Prometheus, wait_for

pytestmark = pytest.mark.prometheus


GPUS, WATTS = 8, 123.456
"""Of the stand-in for dcgm-exporter: no simulated GPU draws this."""

PAGE = "".join(
    f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:1B:00.0",'
    f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",hostname="node1"}} {WATTS}\n'
    for gpu in range(GPUS)
)
RECIPE = Path(__file__).parents[2] / "exporters" / "DCGM.md"


def recipe(agent: str, exporter: str) -> dict[str, Any]:
    """The job of DCGM.md, with the addresses of this test in the place of its own."""
    block = re.search(r"```yaml\n(scrape_configs.*?)```", RECIPE.read_text(), re.DOTALL)
    assert block is not None
    text = block[1].replace('"node1:9935", "node2:9935"', f'"{agent}"')
    for there, here in (("9935", agent), ("9400", exporter)):
        text = text.replace(there, here.rpartition(":")[2])
    job: dict[str, Any] = yaml.safe_load(text)["scrape_configs"][0]
    return job


def changed_back(job: dict[str, Any], exporter: str) -> dict[str, Any]:
    """As "Change back" says: the port and the path of dcgm-exporter, and no relabelling."""
    kept = {key: job[key] for key in job.keys() - {"relabel_configs", "metrics_path"}}
    return {**kept, "static_configs": [{"targets": [exporter]}]}


def test_names_go_on_in_both_directions(tmp_path: Path) -> None:
    with (
        answering(PAGE) as exporter,
        agents({"node": "dgx-h100:idle"}, tmp_path) as targets,
        Prometheus(tmp_path, {}, []) as server,
    ):
        wait_for(f"http://{targets['node']}/metrics/dcgm")
        ours = recipe(targets["node"], exporter)
        theirs = changed_back(ours, exporter)
        asked = f'DCGM_FI_DEV_POWER_USAGE{{job="dcgm-exporter", instance="{exporter}"}}'

        def change(job: dict[str, Any], *, by_exporter: bool) -> None:
            def shown() -> bool:
                values = [one.value == WATTS for one in server.now(asked)]
                return values == [by_exporter] * GPUS

            scrapes = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
            (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scrapes))
            server.signal(signal.SIGHUP)
            eventually(shown, f"{job} alone answers")

        change(theirs, by_exporter=True)
        change(ours, by_exporter=False)
        change(theirs, by_exporter=True)
