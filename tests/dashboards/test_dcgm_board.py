"""NVIDIA's board 12239 over `/metrics/dcgm`, by a real Prometheus: each panel, in right units."""

from collections.abc import Iterator
from functools import partial
from socket import gethostname

import pytest

from exporters.dcgm import table
from tests.stack.running import eventually
from tests.support.board_data import agents
from tests.support.dcgm_exporter import BOARD, VARIABLES, Panel, of_4_9
from tests.support.prometheus import Prometheus, Series

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
