"""NVIDIA's board 12239 over `/metrics/dcgm`, by a real Prometheus: each panel, in right units, and
the recipe of DCGM.md in both directions: names go on, none is doubled."""

import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import yaml

from exporters.dcgm import table
from tests.stack.running import eventually
from tests.support.answering import answering
from tests.support.board_data import agents
from tests.support.dcgm_exporter import BOARD, VARIABLES, Panel, of_4_9
from tests.support.prometheus import Prometheus, Series, wait_for

pytestmark = pytest.mark.prometheus

GPUS = 8

CHOSEN = {"Hostname": gethostname(), "hostname": gethostname(), "gpu": "(0|1|2|3|4|5|6|7)"}
"""Values that Grafana puts in the place of variables."""

RENAMED = {
    field.before.name: field.since.name for field in table().field if field.before and field.since
}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("board")
    with (
        agents({"node": "dgx-h100:training"}, folder) as targets,
        Prometheus(folder, targets, [], path="/metrics/dcgm") as server,
    ):
        for one in BOARD:
            eventually(partial(complete, server, one), f"every GPU of {one.title}")
        yield server


def complete(server: Prometheus, panel: Panel) -> bool:
    return len(asked(server, panel.expr)) == (1 if panel.whole else GPUS)


def asked(server: Prometheus, expr: str) -> list[Series]:
    for name, value in CHOSEN.items():
        expr = expr.replace(f"${name}", value)
    return server.now(expr)


@pytest.mark.parametrize("panel", BOARD, ids=lambda panel: panel.title)
def test_a_panel_has_its_series(prometheus: Prometheus, panel: Panel) -> None:
    for expr, per in ((panel.expr, 1.0), (of_4_9(panel.expr, RENAMED), panel.per)):
        eventually(partial(complete, prometheus, panel._replace(expr=expr)), expr)
        found = asked(prometheus, expr)
        for one in found:
            assert panel.least * per <= one.value <= panel.most * per, (expr, one)
        if not panel.whole:
            assert {one.labels["gpu"] for one in found} == {str(gpu) for gpu in range(GPUS)}
            assert not {"GPU_I_ID", "GPU_I_PROFILE"} & found[0].labels.keys()


def test_its_variables_have_values(prometheus: Prometheus) -> None:
    for label, series in VARIABLES.items():
        match = series.replace("$Hostname", gethostname())
        found = prometheus.ask(f"label/{label}/values", **{"match[]": match})
        assert len(found) == {"Hostname": 1, "gpu": GPUS}[label]


def test_prometheus_takes_the_types(prometheus: Prometheus) -> None:
    metadata = prometheus.ask("metadata")
    for name in ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"):
        assert {one["type"] for one in metadata[name]} == {"counter"}
    assert {one["type"] for one in metadata["DCGM_FI_DEV_GPU_UTIL_RATIO"]} == {"gauge"}


WATTS = 123.456
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
        answering(PAGE.encode()) as exporter,
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
